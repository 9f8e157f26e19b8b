"""Which sweep a command runs: an unfinished one that is resumed, or a new one. Its lock and its journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cost.commands import command_text
from cost.copies.s3 import BucketError
from cost.ledger.database import shown_place
from cost.ledger.ledger import HEARTBEAT_NS, Ledger
from cost.ledger.sweep_lock import LOCK, SweepLockedError, lock_owner, sweep_lock
from cost.records import NoLedgerError, StoreError
from sweeps.config.build import canonical
from sweeps.config.diff import changed_keys
from sweeps.config.identity import with_defaults
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.journal.events import RetryPlanned, SweepPlanned
from sweeps.journal.journal import Journal, SweepRecord, TrialState, load, sweep_ids
from sweeps.machines import lease, release
from sweeps.planning.plan import Plan
from sweeps.storage.checkpoint_restore import restore_checkpoints

MAX_CHANGES_SHOWN = 12
"""Changed keys that a refusal lists."""
MAX_SWEEPS_OF_A_PLAN = 100_000


def earlier_sweeps(cfg: SweepConfig) -> list[SweepRecord]:
    """Every sweep in the ledger, without imported runs, oldest first; none where there is no ledger yet.

    Raises:
        ConfigError: the ledger cannot be read.
    """
    if isinstance(cfg.database, Path) and not cfg.database.exists():
        return []
    try:
        with Ledger.open(cfg.database, create=False, read_only=True) as ledger:
            records = [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)]
            return [record for record in records if record.imported is None]
    except NoLedgerError:
        return []
    except StoreError as error:
        raise ConfigError(str(error)) from error


def simulated_until(cfg: SweepConfig, plan: Plan, earlier: Sequence[SweepRecord]) -> int:
    """Where the simulated time of this plan's sweeps has stopped, UTC nanoseconds; 0: there is none.

    Simulated time runs ahead of real time, and a resumed sweep continues from where it stopped. A driver that was
    killed may have lived up to a heartbeat longer than its last event.
    """
    same_plan = [r for r in earlier if r.plan_digest == plan.digest]
    if not same_plan:
        return 0
    leases = {lease_id for record in same_plan for lease_id in record.lease_ids}
    with Ledger.open(cfg.database, create=False, read_only=True) as ledger:
        beats = [s.last_heartbeat_ns for s in ledger.leases.find() if s.lease.lease_id in leases]
    return max([r.last_ns for r in same_plan] + beats) + HEARTBEAT_NS


def fetch_checkpoints(cfg: SweepConfig, journal: Journal, sweep_dir: Path, show: Callable[[str], None]) -> None:
    """Fetch the checkpoints that trials resume from, where they are not on this machine.

    Raises:
        ConfigError: a checkpoint cannot be fetched now.
    """
    try:
        restore_checkpoints(cfg.storage, journal, sweep_dir, notify=show)
    except (BucketError, OSError) as error:
        raise ConfigError(
            f"{error}. {journal.record.sweep_id} resumes from checkpoints that are there: try again when the bucket "
            "answers, or start another sweep of the same plan with resume=never"
        ) from error


def sweep_to_resume(cfg: SweepConfig, plan: Plan, earlier: Sequence[SweepRecord]) -> SweepRecord | None:
    """The sweep that `resume` selects among `earlier`; None: a new sweep is started.

    Raises:
        ConfigError: `resume` names a sweep that does not exist or has another plan; no trial has failed; or another
            driver runs the sweep.
    """
    selected = _select(cfg, plan, earlier, _release_pending(cfg, earlier))
    if selected is None or selected.finished:
        return selected
    try:
        owner = lock_owner(cfg.database, selected.sweep_id)
    except StoreError as error:
        raise ConfigError(str(error)) from error
    if owner is not None:  # checked here, before a machine is started and before the other driver's cards are requested
        raise _already_driven(cfg, SweepLockedError(selected.sweep_id, owner))
    return selected


def changed_content(cfg: SweepConfig, earlier: Sequence[SweepRecord]) -> str:
    """A sentence where an unfinished sweep differs in the content of its files only; else empty.

    Such a sweep is not resumed: its remaining trials would train on other questions or weights than those before.
    """
    config = canonical(cfg)
    for record in reversed(earlier):
        if record.finished or record.stage != cfg.stage.name or record.machine != cfg.machine.name:
            continue
        changes = changed_keys(with_defaults(record.config), config)
        if changes and all(change.startswith("content.") for change in changes):
            return (
                f"{record.sweep_id} is not finished and is not resumed, since its files have changed: "
                f"{'; '.join(changes)}. A run starts another sweep; restore the files to resume"
            )
    return ""


@contextmanager
def locked_sweep(
    cfg: SweepConfig, plan: Plan, ledger: Ledger, selected: SweepRecord | None
) -> Iterator[tuple[Journal, Callable[[], None]]]:
    """Lock the selected sweep, or a new one whose whole plan is in the journal, until the end of the block.

    Two drivers of one sweep would run its trials twice. Yields the sweep's journal, read under the lock, and a function
    to call at every heartbeat (`cost.ledger.sweep_lock`).

    Raises:
        ConfigError: another driver has the lock.
    """
    with ExitStack() as stack:
        try:
            if selected:
                keep_lock = stack.enter_context(sweep_lock(cfg.database, selected.sweep_id))
                journal = Journal(ledger, selected.sweep_id, selected)
            else:
                sweep_id, keep_lock = _lock_new_sweep(cfg, plan, ledger, stack)
                journal = Journal(ledger, sweep_id)
                journal.append(SweepPlanned.from_plan(plan, cfg.stage.name, cfg.machine.name, canonical(cfg)))
        except SweepLockedError as error:
            raise _already_driven(cfg, error) from error
        _write_config(Path(cfg.paths.root) / journal.record.sweep_id, journal.record.config)
        if cfg.resume == "failed":
            _retry_failed_trials(journal)
        if not journal.record.finished:
            ledger.usages.close_dead(locked_sweep=journal.record.sweep_id)
        yield journal, keep_lock


def _already_driven(cfg: SweepConfig, error: SweepLockedError) -> ConfigError:
    stop = command_text("sweeps", "stop", error.sweep_id, place=shown_place(cfg.database))
    return ConfigError(
        f"{error}: wait for it, stop it with `{stop}`, or start another sweep of the same plan with resume=never"
    )


def _release_pending(cfg: SweepConfig, earlier: Sequence[SweepRecord]) -> set[str]:
    """The sweeps that have ended and whose machine a killed driver did not release any more."""
    if not lease.is_real_machine(cfg) or not earlier:
        return set()
    with Ledger.open(cfg.database, create=False, read_only=True) as ledger:
        return {record.sweep_id for record in earlier if release.is_pending(ledger, record)}


def _select(
    cfg: SweepConfig, plan: Plan, earlier: Sequence[SweepRecord], to_release: Collection[str]
) -> SweepRecord | None:
    same_plan = [record for record in earlier if record.plan_digest == plan.digest]
    if cfg.resume == "never":
        return None
    if cfg.resume == "auto":
        return next((r for r in reversed(same_plan) if not r.finished or r.sweep_id in to_release), None)
    if cfg.resume == "failed":
        if not same_plan:
            raise ConfigError(f"resume=failed: no sweep of this plan was ever started in {cfg.paths.root}")
        if all(t.state is not TrialState.FAILED for t in same_plan[-1].trials.values()):
            raise ConfigError(
                f"resume=failed: no trial of {same_plan[-1].sweep_id} has failed; resume=auto resumes unfinished trials"
            )
        return same_plan[-1]
    named = next((record for record in earlier if record.sweep_id == cfg.resume), None)
    if named is None:
        known = ", ".join(record.sweep_id for record in earlier) or "none"
        raise ConfigError(f"resume={cfg.resume}: there is no such sweep; there are: {known}")
    if named.plan_digest != plan.digest:
        raise ConfigError(_plan_difference(cfg, named, plan))
    return named


def _lock_new_sweep(cfg: SweepConfig, plan: Plan, ledger: Ledger, stack: ExitStack) -> tuple[str, Callable[[], None]]:
    """A sweep id that was never used: stage, plan and a counter. Its lock keeps other drivers, on any host, from it."""
    root, known = Path(cfg.paths.root), sweep_ids(ledger)
    for counter in range(1, MAX_SWEEPS_OF_A_PLAN):
        sweep_id = f"{cfg.stage.name}-{plan.digest[:6]}-{counter}"
        if sweep_id in known or _folder_was_used(root / sweep_id):
            continue
        with ExitStack() as lock:
            try:
                keep_lock = lock.enter_context(sweep_lock(cfg.database, sweep_id))
            except SweepLockedError:
                if cfg.resume == "never":
                    continue
                raise
            if sweep_id in sweep_ids(ledger):  # another driver planned and ended it before the lock was free
                continue
            stack.push(lock.pop_all())
            return sweep_id, keep_lock
    raise ConfigError(f"{root} has {MAX_SWEEPS_OF_A_PLAN:,} sweeps of this plan; choose another paths.root")


def _folder_was_used(folder: Path) -> bool:
    """Whether the folder has files of a sweep, which the ledger may no longer know."""
    return folder.exists() and any(path.name != LOCK for path in folder.iterdir())


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write `config.yaml`, for people, unless it exists: a killed driver may not have written it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.yaml").exists():
        (folder / "config.yaml.new").write_text(_yaml(config), encoding="utf-8")
        (folder / "config.yaml.new").replace(folder / "config.yaml")


def _retry_failed_trials(journal: Journal) -> None:
    with journal.transaction():
        for trial in journal.record.trials.values():
            if trial.state is TrialState.FAILED:
                attempts, reason = len(trial.attempts), "requested with resume=failed"
                journal.append(RetryPlanned(trial.trial_id, attempts, 0, reason, forgive=True))


def _plan_difference(cfg: SweepConfig, record: SweepRecord, plan: Plan) -> str:
    new, old = {t.trial_id for t in plan.trials}, set(record.trials)
    changes = changed_keys(with_defaults(record.config), canonical(cfg))
    shown = [f"  {change}" for change in changes[:MAX_CHANGES_SHOWN]]
    if len(changes) > MAX_CHANGES_SHOWN:
        shown.append(f"  ... and {len(changes) - MAX_CHANGES_SHOWN} more")
    return "\n".join(
        [
            f"resume={record.sweep_id} has another plan: {len(old)} trials on {record.machine}. This configuration "
            f"gives {len(new)} trials, {len(new & old)} of them the same. What changed since:",
            *shown,
            "Type the overrides that it was started with (see its config.yaml), or start a new sweep with resume=never",
        ]
    )


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False)
