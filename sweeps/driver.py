"""From a checked configuration to a finished sweep and an exit code: the order in which things are opened and closed.

Everything that can be wrong is found before a lease is opened. Whatever happens after that, the books are closed, the
processes are ended, and a person is told what to do next.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

from rich.console import Console
from rich.text import Text

from cost.archive import archive
from cost.backup import daily_backup
from cost.bucket import BucketError
from cost.clock import FakeClock, SystemClock
from cost.ledger import Ledger
from cost.money import Money
from cost.power import PowerMeter
from cost.records import StoreError
from cost.report import Report, sweep_report, trial_costs
from rl.spec import Stop
from sweeps import deadman, holding, leaving
from sweeps.cards import hold_cards
from sweeps.config import CONF_DIR, ConfigError
from sweeps.config_types import SweepConfig
from sweeps.estimate import StepTime, from_data_sheet, measured
from sweeps.executors import Executor
from sweeps.gates import Verdict, metric_gate
from sweeps.host import SweepHost
from sweeps.journal import Journal, SweepRecord, TrialState
from sweeps.limits import check_limits
from sweeps.machine import (
    Pricing,
    draws_power,
    find_price,
    forecast_labels,
    hold_machine,
    machine_instance,
    money_text,
    ray_address,
)
from sweeps.opening import (
    check_can_run,
    database,
    earlier_sweeps,
    end_lost_attempts,
    end_lost_attempts_of_all,
    only_driver,
    open_sweep,
    simulated_until,
)
from sweeps.plan import make_plan
from sweeps.preemption import Watch, probe_of
from sweeps.promotion import promotion
from sweeps.purse import Purse
from sweeps.report import terminal
from sweeps.report.summary import print_budget, print_end, print_plan, print_promotion, print_stopped, write_costs
from sweeps.saving import Uploader, bring_back, bucket_of_sweeps, check_bucket, unsaved_text
from sweeps.tracking import Tracker, default_uri

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_GATE, EXIT_BUDGET, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130

TRACKING_DRAIN_SECONDS = 60.0
SIMULATED_PAUSE_SECONDS = 0.1
"""Of the world's time, for one simulated heartbeat of a sweep that is paused."""
INTERRUPTED_UPLOAD_SECONDS = 30.0


def run(cfg: SweepConfig, typed: Sequence[str] = ()) -> int:
    """Run one stage; the exit code of `sweep.py`. `typed` are its overrides, for the commands that are proposed.

    Raises:
        ConfigError: found before anything was started, written or billed.
    """
    console = terminal.make_console()
    plan = make_plan(cfg)
    pricing = find_price(cfg)
    root = Path(cfg.paths.root)
    records = earlier_sweeps(cfg, root)
    time = measured(records, cfg) or from_data_sheet(cfg)
    print_plan(console, cfg, plan, pricing, time)
    step_up = promotion(records, cfg)
    print_promotion(console, step_up)
    if cfg.dry_run:
        console.print("dry_run=true: nothing was run and nothing was written.")
        return EXIT_OK
    check_limits(cfg, pricing)
    check_can_run(cfg, root, console, holding.per_hour(pricing))
    _check_bucket(cfg)
    if step_up.problem:
        return EXIT_GATE
    clock = SystemClock()
    if cfg.trainer.name == "simulated":
        clock = FakeClock(utc=max(clock.utc_ns(), simulated_until(cfg, root, plan, records)))
    finished = any(r.sweep_id == cfg.resume and r.closed for r in records)
    came_up = bool(cfg.machine.up) and leaving.is_real(cfg) and not finished
    if came_up:
        cfg = holding.brought_up(cfg, console)
    try:
        with _cards(cfg) as cards, Ledger.open(database(cfg, root), clock) as ledger:
            ledger.close_dead()
            end_lost_attempts_of_all(ledger, records)
            journal = open_sweep(cfg, plan, ledger, root, records)
            sweep_id = journal.record.sweep_id
            if journal.record.closed:
                console.print(f"{sweep_id} is finished; resume=never starts another one.")
                return _exit_code(journal.record, None)
            with only_driver(root / sweep_id):
                try:
                    return _run_sweep(
                        cfg, console, ledger, journal, root / sweep_id, pricing, time, clock, typed, cards
                    )
                except StoreError as error:
                    print_stopped(console, error, typed)
                    return EXIT_FAILED
    except (StoreError, ConfigError) as error:
        undone = f"\n{holding.undone(cfg, root, pricing)}" if came_up else ""
        raise ConfigError(f"{error}{undone}") from error


def _run_sweep(
    cfg: SweepConfig,
    console: Console,
    ledger: Ledger,
    journal: Journal,
    sweep_dir: Path,
    pricing: Pricing,
    time: StepTime | None,
    clock: SystemClock | FakeClock,
    typed: Sequence[str],
    cards: tuple[int, ...],
) -> int:
    record = journal.record
    resumed = [t for t in record.trials.values() if t.attempts]
    end_lost_attempts(journal)
    _bring_back(cfg, journal, sweep_dir, console)
    console.print(f"Sweep {record.sweep_id}" + (_resumed_text(cfg, record, ledger, pricing, time) if resumed else ""))
    # Where only the closing of the books is left, no machine is held again.
    only_to_close = record.lease_ids and not record.left
    purse = Purse(cfg, ledger, record, pricing, time, wait=_pause_of(clock))
    for note in purse.notes:
        console.print(Text(f"  {note}"), soft_wrap=True)
    held = ledger.open_lease_of(machine_instance(cfg, record.sweep_id)) is not None
    if not only_to_close and (refusal := purse.refusal(held)):
        journal.append("driver_ended", {"how": "budget", "why": refusal}, f"driver_ended:{ledger.now_ns()}")
        print_budget(console, refusal, typed)
        if cfg.machine.up and leaving.is_real(cfg) and not held:
            console.print(Text(leaving.undo_up(cfg.machine, holding.per_hour(pricing))), soft_wrap=True)
        return EXIT_BUDGET
    lease_id = record.lease_ids[-1] if only_to_close else hold_machine(cfg, ledger, record.sweep_id, pricing)
    purse.hold(ledger.lease_state(lease_id).lease)
    journal.append("driver_started", {"lease_id": lease_id, "pid": os.getpid()}, f"driver_started:{ledger.now_ns()}")
    journal.catch_up()
    deadman.start(cfg, record.sweep_id, database(cfg, Path(cfg.paths.root)))
    preemption = Watch(probe_of(cfg.machine.preemption), partial(holding.warn, console))
    preemption.start()
    tracker = _tracker(cfg, console, record.sweep_id)
    tracker.start()
    uploader = _uploader(cfg, console, record.sweep_id, sweep_dir)
    meter = PowerMeter()
    if draws_power(pricing) and cfg.machine.device == "cuda" and cfg.trainer.name != "simulated":
        meter.start()
    how, executor, host = "failed", None, None
    try:
        costs = _costs(ledger, pricing, record.sweep_id)
        with terminal.LiveView(console, record, cfg.stage.steps, costs, time) as view:
            host = SweepHost(
                cfg,
                ledger=ledger,
                journal=journal,
                lease_id=lease_id,
                sweep_dir=sweep_dir,
                view=view,
                cards=len(cards),
                purse=purse,
                forecast=lambda trial: forecast_labels(cfg, pricing, trial, time),
                notice=lambda: preemption.notice,
            )
            try:
                with _termination_as_interrupt():
                    executor = make_executor(cfg, sweep_dir, clock, cards)
                with _termination_as_interrupt():  # again: starting Ray put a handler of its own in its place
                    executor.run(host)
                how = _how_it_ended(host.stopped)
            except KeyboardInterrupt:
                how = "interrupted"
                host.stop("interrupted")
        if how == "interrupted":
            reason = host.stopped.reason.removeprefix("interrupted").lstrip(": ") if host and host.stopped else ""
            because = f" ({reason})" if reason else ""
            console.print(f"Stopping{because}: ending the trials' processes and closing the books ...", markup=False)
    finally:
        with _uninterrupted():
            preemption.close()
            if executor is not None:
                executor.close()
            if host is not None:
                host.abandon("interrupted" if how == "interrupted" else "lost", "ended by the sweep")
            verdict = None
            if how == "done":
                verdict = metric_gate(record, cfg.stage.steps, cfg.gate)
                journal.append("gate", _gate_body(verdict), f"gate:{ledger.now_ns()}")
            meter.close(ledger, machine_instance(cfg, record.sweep_id))
            why = host.stopped.reason if host and host.stopped else ""
            if not (going := leaving.goes(cfg, how, why)):
                ledger.detach(lease_id, record.sweep_id, how)
            report = _report(ledger, pricing, record.sweep_id)
            write_costs(console, report, sweep_dir)
            # Last: a driver that is killed before it is followed by one that closes the books.
            journal.append("driver_ended", {"how": how}, f"driver_ended:{ledger.now_ns()}")
            journal.catch_up()
            _back_up(database(cfg, Path(cfg.paths.root)), ledger, console)
            _archive(cfg, ledger, console)
            unsaved = uploader.close(_upload_seconds(cfg, how)) if uploader else []
            drained = tracker.close(5.0 if how == "interrupted" else TRACKING_DRAIN_SECONDS)
            shutil.rmtree(sweep_dir / "ray", ignore_errors=True) if how == "done" and not _failed(record) else None
            if how == "failed":  # nobody prints the end, and the bill goes on all the same
                holding.leave(
                    cfg, console, ledger, lease_id, sweep_dir, going, pricing, partial(_archive, cfg, ledger, console)
                )
    print_end(console, cfg, record, report, verdict, how, sweep_dir, drained, typed, why)
    if unsaved:
        console.print(Text(unsaved_text(record.sweep_id, unsaved), style="yellow"), soft_wrap=True)
    with _uninterrupted():
        holding.leave(
            cfg, console, ledger, lease_id, sweep_dir, going, pricing, partial(_archive, cfg, ledger, console)
        )
    return EXIT_INTERRUPTED if how == "interrupted" else _exit_code(record, verdict)


def _cards(cfg: SweepConfig) -> AbstractContextManager[tuple[int, ...]]:
    """The cards that trials may use: this host's free ones. Simulated ones and a cluster's are not locked."""
    if cfg.trainer.name == "simulated":
        return nullcontext(tuple(range(cfg.machine.cards)))
    if ray_address(cfg) != "local":
        return _cluster_cards(cfg)
    return hold_cards(cfg.machine, cfg.search.cards_per_trial)


@contextmanager
def _cluster_cards(cfg: SweepConfig) -> Iterator[tuple[int, ...]]:
    """Connected to the cluster: as many of its cards as trials can use, at most those of the machine that is paid."""
    from sweeps.executors.cluster import joined

    named_by = f"machine.cluster={cfg.machine.cluster}"
    with joined(ray_address(cfg), cfg.machine.device, cfg.search.cards_per_trial, named_by) as usable:
        yield tuple(range(min(usable, cfg.machine.cards)))


def make_executor(
    cfg: SweepConfig, sweep_dir: Path, clock: SystemClock | FakeClock, cards: tuple[int, ...]
) -> Executor:
    """Ray Tune for real work; in this process, on the fake clock, for simulated trials."""
    if isinstance(clock, FakeClock):
        from sweeps.executors.in_process import InProcessExecutor

        return InProcessExecutor(clock, silence_seconds=cfg.retry.hung_after_seconds)
    from sweeps.executors.ray_tune import RayTuneExecutor

    return RayTuneExecutor(
        cards=cards,
        device=cfg.machine.device,
        logs=sweep_dir / "ray",
        silence_seconds=cfg.retry.hung_after_seconds,
    )


def _pause_of(clock: SystemClock | FakeClock) -> Callable[[], None]:
    """What a paused sweep does at each heartbeat: simulated time must not run away from whoever is to raise a limit."""
    return (lambda: sleep(SIMULATED_PAUSE_SECONDS)) if isinstance(clock, FakeClock) else (lambda: None)


def _resumed_text(
    cfg: SweepConfig, record: SweepRecord, ledger: Ledger, pricing: Pricing, time: StepTime | None
) -> str:
    """What a sweep that goes on has left to do, has cost, has lost, and will still cost."""
    left = f"{record.left} of {len(record.trials) + record.to_propose} trials left"
    if time:
        steps = cfg.stage.steps
        to_come = [time.of(t.planned, steps - (t.checkpoint.step if t.checkpoint else 0)) for t in record.unfinished]
        if record.to_propose:
            to_come += [time.of(trial, steps) for trial in make_plan(cfg).typical[-record.to_propose :]]
        left += f", about {pricing.of(sum(to_come) * cfg.search.cards_per_trial / cfg.machine.cards)} to come"
    report = _report(ledger, pricing, record.sweep_id)
    if report.unpriced:
        return f": going on, {left}; UNPRICED so far"
    lost = sum(r.categories.get("lost_work", 0) for r in report.trials)
    spent = money_text(Money(report.total_pico, report.currency))
    return f": going on, {left}; {spent} so far, {money_text(Money(lost, report.currency))} of it lost work"


def _tracker(cfg: SweepConfig, console: Console, sweep_id: str) -> Tracker:
    root = Path(cfg.paths.root)
    return Tracker(
        uri=cfg.tracking.uri or default_uri(root),
        experiment=cfg.tracking.experiment,
        artifacts=root / "mlartifacts",
        open_ledger=lambda: Ledger.open(database(cfg, root), create=False, read_only=True),
        sweep_id=sweep_id,
        warn=lambda text: console.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True),
    )


def _uploader(cfg: SweepConfig, console: Console, sweep_id: str, sweep_dir: Path) -> Uploader | None:
    """At work, where there is a bucket."""
    if cfg.storage.bucket is None:
        return None
    uploader = Uploader(
        cfg.storage,
        sweep_id,
        sweep_dir,
        open_ledger=lambda: Ledger.open(database(cfg, Path(cfg.paths.root)), create=False, read_only=True),
        warn=lambda text: console.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True),
    )
    uploader.start()
    return uploader


def _upload_seconds(cfg: SweepConfig, how: str) -> float:
    """Who interrupts a sweep, or takes its machine away, does not wait for long."""
    return (
        min(cfg.storage.wait_seconds, INTERRUPTED_UPLOAD_SECONDS) if how == "interrupted" else cfg.storage.wait_seconds
    )


def _check_bucket(cfg: SweepConfig) -> None:
    try:
        check_bucket(cfg.storage)
    except BucketError as error:
        raise ConfigError(f"storage.bucket={cfg.storage.bucket}: {error}; or storage=local keeps all here") from error


def _bring_back(cfg: SweepConfig, journal: Journal, sweep_dir: Path, console: Console) -> None:
    """The checkpoints that trials go on from, where this machine has not written them itself."""
    try:
        bring_back(cfg.storage, journal, sweep_dir, tell=lambda text: console.print(Text(text), soft_wrap=True))
    except (BucketError, OSError) as error:
        raise ConfigError(
            f"{error}. {journal.record.sweep_id} goes on from checkpoints that lie there: try again once it answers, "
            "or start another sweep of the same plan with resume=never"
        ) from error


def _back_up(place: str | Path, ledger: Ledger, console: Console) -> None:
    """A copy of the day beside a local ledger. A server's is its keeper's business."""
    if not isinstance(place, Path):
        return
    try:
        daily_backup(place, ledger.now_ns())
    except StoreError as error:
        console.print(Text(f"warning: no copy of the ledger was made: {error}", style="yellow"), soft_wrap=True)


def _archive(cfg: SweepConfig, ledger: Ledger, console: Console) -> None:
    """A snapshot in S3, where there is a bucket. Each holds everything: the next one makes good for one that failed."""
    if cfg.storage.bucket is None:
        return
    try:
        archive(ledger, bucket_of_sweeps(cfg.storage), pricing=CONF_DIR / "pricing", tries=1)
    except (BucketError, StoreError) as error:
        text = (
            f"warning: no snapshot of the ledger was made: {error}; the next sweep or `python -m cost backup --to` will"
        )
        console.print(Text(text, style="yellow"), soft_wrap=True)


def _report(ledger: Ledger, pricing: Pricing, sweep_id: str) -> Report:
    return sweep_report(ledger, pricing.book, sweep_id, ledger.now_ns())


def _costs(ledger: Ledger, pricing: Pricing, sweep_id: str) -> Callable[[], Mapping[str, str]]:
    def costs() -> Mapping[str, str]:
        if pricing.row is None:
            return dict.fromkeys((u.key.trial_id for u in ledger.usages(sweep_id=sweep_id)), "UNPRICED")
        return {k: money_text(v) for k, v in trial_costs(ledger, pricing.book, sweep_id, ledger.now_ns()).items()}

    return costs


def _how_it_ended(stopped: Stop | None) -> str:
    """What the driver's end is called in the journal, by why the host stopped, if it did."""
    if stopped is None:
        return "done"
    return "budget" if stopped.reason.startswith("budget") else "interrupted"


def _gate_body(verdict: Verdict) -> dict[str, Any]:
    return {
        "gate": verdict.gate,
        "open": verdict.open,
        "healthy": verdict.healthy,
        "simulated": verdict.simulated,
        "forced": verdict.forced,
        "checks": [{"name": c.name, "ok": c.ok, "reason": c.reason} for c in verdict.checks],
    }


def _failed(record: SweepRecord) -> bool:
    return any(t.state is TrialState.FAILED for t in record.trials.values())


def _exit_code(record: SweepRecord, verdict: Verdict | None) -> int:
    if any(t.state is TrialState.BUDGET_STOPPED for t in record.trials.values()) or record.ended == "budget":
        return EXIT_BUDGET
    gate_open = verdict.open if verdict else bool(record.gate and record.gate["open"])
    if gate_open:
        return EXIT_OK
    return EXIT_FAILED if _failed(record) or record.ended == "failed" else EXIT_GATE


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: books closed, resumable."""

    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, raise_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not leave half-closed books; closing takes seconds."""
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
