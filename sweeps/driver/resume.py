"""Everything before the first bill: what earlier sweeps know, whether this one can run, its place in the journal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from cost.copies.s3 import BucketError
from cost.ledger.database import shown_place
from cost.ledger.ledger import HEARTBEAT_NS, Ledger
from cost.ledger.sweep_lock import LOCK, SweepLockedError, lock_owner, sweep_lock
from cost.records import NoLedgerError, StoreError
from rl.spec import ConfigurationError
from sweeps.config.axes import recipes
from sweeps.config.build import canonical
from sweeps.config.diff import changed_keys
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.journal.events import RetryPlanned, SweepPlanned
from sweeps.journal.journal import Journal, SweepRecord, TrialState, load, sweep_ids
from sweeps.machines.cards import ray_address
from sweeps.machines.release import rent_hint
from sweeps.planning.plan import Plan
from sweeps.storage.checkpoint_restore import restore_checkpoints
from sweeps.storage.sweep_bucket import check_bucket

MOST_CHANGES = 12
"""Changed keys that a refusal lists."""


def earlier_sweeps(cfg: SweepConfig, root: Path) -> list[SweepRecord]:
    """What the ledger knows of earlier sweeps, oldest first; nothing where there is no ledger yet."""
    place = cfg.database
    if isinstance(place, Path) and not place.exists():
        return []
    try:
        with Ledger.open(place, create=False, read_only=True) as ledger:
            return [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)]
    except NoLedgerError:
        return []
    except StoreError as error:
        raise ConfigError(str(error)) from error


def simulated_until(cfg: SweepConfig, root: Path, plan: Plan, earlier: Sequence[SweepRecord]) -> int:
    """UTC nanoseconds that the simulated time of this plan's sweeps has come to; 0 where there was none.

    It runs ahead of the world's, and a resume goes on where it had come to. A driver that was killed may have lived
    up to a heartbeat longer than the last thing that it wrote.
    """
    same_plan = [r for r in earlier if r.plan_digest == plan.digest]
    if not same_plan:
        return 0
    leases = {lease_id for record in same_plan for lease_id in record.lease_ids}
    with Ledger.open(cfg.database, create=False, read_only=True) as ledger:
        beats = [s.last_heartbeat_ns for s in ledger.leases.find() if s.lease.lease_id in leases]
    return max([r.last_ns for r in same_plan] + beats) + HEARTBEAT_NS


def check_can_run(cfg: SweepConfig, root: Path, console: Console, per_hour: str = "UNPRICED") -> None:
    """Whatever would stop every trial is found here, before anything is billed.

    Args:
        per_hour: what the machine costs, for somebody who has to rent it.

    Raises:
        ConfigError: what is wrong, where, and what would be right.
    """
    if cfg.search.cards_per_trial > 1 and cfg.trainer.name == "native":
        raise ConfigError(
            f"stage {cfg.stage.name} gives each trial {cfg.search.cards_per_trial} cards; trainer=native has one: "
            "it can be planned and priced with dry_run=true, run simulated with trainer=simulated, or run on one card "
            "with search.cards_per_trial=1"
        )
    _check_writable(root)
    try:
        check_bucket(cfg.storage)
    except BucketError as error:
        raise ConfigError(f"storage.bucket={cfg.storage.bucket}: {error}; or storage=local keeps all here") from error
    if cfg.simulated:
        return
    if cfg.machine.device == "cuda" and not cfg.machine.up:
        import torch

        if torch.cuda.device_count() < cfg.machine.cards and ray_address(cfg) == "local":
            raise ConfigError(
                f"machine={cfg.machine.name} has {cfg.machine.cards} x {cfg.machine.card_name}, and this host shows "
                f"{torch.cuda.device_count()} CUDA devices: {rent_hint(cfg.machine, per_hour)}; or choose another "
                "machine with machine="
            )
    from rl.models import prepare
    from rl.tasks import load_task

    try:
        for at in recipes(cfg):
            load_task(at.task)
            prepare(at.model, at.task, Path(cfg.paths.cache), lambda line: console.print(f"  model: {line}"))
    except ConfigurationError as error:
        raise ConfigError(str(error)) from error


def bring_checkpoints_back(cfg: SweepConfig, journal: Journal, sweep_dir: Path, tell: Callable[[str], None]) -> None:
    """Fetch the checkpoints that trials go on from, where this machine has not written them itself.

    Raises:
        ConfigError: they cannot be had now.
    """
    try:
        restore_checkpoints(cfg.storage, journal, sweep_dir, notify=tell)
    except (BucketError, OSError) as error:
        raise ConfigError(
            f"{error}. {journal.record.sweep_id} goes on from checkpoints that lie there: try again once it answers, "
            "or start another sweep of the same plan with resume=never"
        ) from error


def to_go_on_with(cfg: SweepConfig, plan: Plan, root: Path, earlier: Sequence[SweepRecord]) -> SweepRecord | None:
    """What `resume` asks for, of the sweeps that `earlier_sweeps` found; None: a new one.

    Raises:
        ConfigError: `resume` names a sweep that is not there, or whose plan is another; or nothing has failed; or
            another process drives the sweep.
    """
    known = _asked_for(cfg, plan, earlier)
    if known is None or known.finished:
        return known
    try:
        by = lock_owner(cfg.database, known.sweep_id)
    except StoreError as error:
        raise ConfigError(str(error)) from error
    if by is not None:  # said before a machine is brought up, or cards are asked for that it holds
        raise ConfigError(f"{SweepLockedError(known.sweep_id, by)}: {_what_to_do(cfg, known.sweep_id)}")
    return known


@contextmanager
def held_sweep(
    cfg: SweepConfig, plan: Plan, ledger: Ledger, root: Path, known: SweepRecord | None
) -> Iterator[tuple[Journal, Callable[[], None]]]:
    """The sweep to go on with (`to_go_on_with`), or a new one with its whole plan in the journal.

    It is held until the end of the block: two drivers of one sweep would run its trials twice. Yields its journal, read
    after it was held, and what has to be called at each heartbeat (`cost.driving`).

    Raises:
        ConfigError: another process drives the sweep.
    """
    place = cfg.database
    with ExitStack() as stack:
        try:
            if known:
                still_held = stack.enter_context(sweep_lock(place, known.sweep_id))
                journal = Journal(ledger, known.sweep_id, known)
            else:
                sweep_id, still_held = _new_name(cfg, plan, ledger, root, stack)
                journal = Journal(ledger, sweep_id)
                config = canonical(cfg)
                journal.append(SweepPlanned.from_plan(plan, cfg.stage.name, cfg.machine.name, config))
                journal.catch_up()
        except SweepLockedError as error:
            raise ConfigError(f"{error}: {_what_to_do(cfg, error.sweep_id)}") from error
        _keep_configuration(root / journal.record.sweep_id, journal.record.config)
        if cfg.resume == "failed":
            _plan_failed_again(journal, ledger)
        if not journal.record.finished:
            ledger.usages.close_dead(locked_sweep=journal.record.sweep_id)
        yield journal, still_held


def _what_to_do(cfg: SweepConfig, sweep_id: str) -> str:
    """About a sweep that another process drives."""
    where = "" if cfg.paths.root == "runs" else f" --root {cfg.paths.root}"
    where += f" --db {shown_place(cfg.storage.database_url)}" if cfg.storage.database_url else ""
    return (
        f"wait for it, stop it with `python -m sweeps stop {sweep_id}{where}`, or start another sweep of the same plan "
        "with resume=never"
    )


def _check_writable(root: Path) -> None:
    existing = root.absolute()
    while not existing.exists():
        existing = existing.parent
    probe = existing / f".write-test-{os.getpid()}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"paths.root={root} cannot be written ({error.strerror} at {existing}): "
            "make it writable, or choose another folder with paths.root=DIR"
        ) from error


def _asked_for(cfg: SweepConfig, plan: Plan, earlier: Sequence[SweepRecord]) -> SweepRecord | None:
    same_plan = [record for record in earlier if record.plan_digest == plan.digest]
    if cfg.resume == "never":
        return None
    if cfg.resume == "auto":
        return next((record for record in reversed(same_plan) if not record.finished), None)
    if cfg.resume == "failed":
        if not same_plan:
            raise ConfigError(f"resume=failed: no sweep of this plan was ever started in {cfg.paths.root}")
        if all(t.state is not TrialState.FAILED for t in same_plan[-1].trials.values()):
            raise ConfigError(
                f"resume=failed: no trial of {same_plan[-1].sweep_id} has failed; resume=auto goes on with the rest"
            )
        return same_plan[-1]
    named = next((record for record in earlier if record.sweep_id == cfg.resume), None)
    if named is None:
        known = ", ".join(record.sweep_id for record in earlier) or "none"
        raise ConfigError(f"resume={cfg.resume}: there is no such sweep; there are: {known}")
    if named.plan_digest != plan.digest:
        raise ConfigError(_plan_difference(cfg, named, plan))
    return named


def _new_name(
    cfg: SweepConfig, plan: Plan, ledger: Ledger, root: Path, stack: ExitStack
) -> tuple[str, Callable[[], None]]:
    """A name that no sweep had before, here or elsewhere: stage, plan and a counter. It is held from here on, so that
    whoever starts the same plan at the same moment, on whatever host, finds it taken."""
    known = sweep_ids(ledger)
    for counter in range(1, 100_000):
        sweep_id = f"{cfg.stage.name}-{plan.digest[:6]}-{counter}"
        if sweep_id in known or _was_used(root / sweep_id):
            continue
        with ExitStack() as this_one:
            try:
                still_held = this_one.enter_context(sweep_lock(cfg.database, sweep_id))
            except SweepLockedError:
                if cfg.resume == "never":
                    continue
                raise
            if sweep_id in sweep_ids(ledger):  # and was over before we held it
                continue
            stack.push(this_one.pop_all())
            return sweep_id, still_held
    raise ConfigError(f"{root} holds 100,000 sweeps of this plan; choose another paths.root")


def _was_used(folder: Path) -> bool:
    """Whether something of a sweep lies there, be it one that its ledger does not know any more."""
    return folder.exists() and any(path.name != LOCK for path in folder.iterdir())


def _keep_configuration(folder: Path, config: Mapping[str, Any]) -> None:
    """`config.yaml`, for people; not there yet where its driver was killed, or the sweep comes from another machine."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.yaml").exists():
        (folder / "config.yaml.new").write_text(_yaml(config), encoding="utf-8")
        (folder / "config.yaml.new").replace(folder / "config.yaml")


def _plan_failed_again(journal: Journal, ledger: Ledger) -> None:
    with ledger.transaction():
        for trial in journal.record.trials.values():
            if trial.state is TrialState.FAILED:
                again = RetryPlanned(
                    trial.trial_id, len(trial.attempts), 0, "asked for with resume=failed", forgive=True
                )
                journal.append(again)
    journal.catch_up()


def _plan_difference(cfg: SweepConfig, record: SweepRecord, plan: Plan) -> str:
    new, old = {t.trial_id for t in plan.trials}, set(record.trials)
    changes = changed_keys(record.config, canonical(cfg))
    shown = [f"  {change}" for change in changes[:MOST_CHANGES]]
    if len(changes) > MOST_CHANGES:
        shown.append(f"  ... and {len(changes) - MOST_CHANGES} more")
    return "\n".join(
        [
            f"resume={record.sweep_id}: its plan is another one: it has {len(old)} trials on {record.machine}, this "
            f"configuration resolves to {len(new)}, {len(new & old)} of them the same. What changed since:",
            *shown,
            "Type the overrides it was started with (they are in its config.yaml), or start anew with resume=never",
        ]
    )


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False)
