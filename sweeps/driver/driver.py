"""From a checked configuration to a finished sweep and an exit code: the order in which things are opened and closed.

Everything that can be wrong is found before a lease is opened. Whatever happens after that, the books are closed, the
processes are ended, and a person is told what to do next.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Timer
from time import sleep

from rich.text import Text

from cost.charges.lease_charge import TAKEN_BACK
from cost.clock import FakeClock, SystemClock
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import SweepLockedError
from cost.records import StoreError
from rl.spec import Stop, StopKind
from sweeps.config.build import canonical
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.driver import deadman
from sweeps.driver.controller import SweepController
from sweeps.driver.finish import (
    EXIT_BUDGET,
    EXIT_FAILED,
    EXIT_GATE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    exit_code,
    failed,
    judge,
    keep_books,
    release_machine,
)
from sweeps.driver.resume import (
    bring_checkpoints_back,
    check_can_run,
    earlier_sweeps,
    held_sweep,
    simulated_until,
    to_go_on_with,
)
from sweeps.driver.session import BackgroundServices, Session, Undelivered
from sweeps.driver.summary import (
    print_budget,
    print_end,
    print_plan,
    print_promotion,
    print_stopped,
    resumed_text,
    write_costs,
)
from sweeps.executors import Executor
from sweeps.forecast.step_time import from_data_sheet, measured
from sweeps.journal.events import AttemptOutcome, DriverEnd, DriverEnded, DriverStarted
from sweeps.journal.lost_attempts import end_lost_attempts, end_lost_attempts_of_all
from sweeps.machines import acquire, lease, release
from sweeps.machines.cards import lock_cards, ray_address
from sweeps.machines.pricing import find_price, forecast_labels
from sweeps.planning.plan import make_plan
from sweeps.protocol.promotion import promotion
from sweeps.report import terminal
from sweeps.scheduling.budget_controller import BudgetController
from sweeps.scheduling.limits import check_limits
from sweeps.storage.uploads import unsaved_text

SIMULATED_PAUSE_SECONDS = 0.1
"""Of the world's time, for one simulated heartbeat of a sweep that is paused."""
TERMINATION_SECONDS = 20.0
"""How long trials may take to write a checkpoint after SIGTERM: those that send it often kill after 30."""


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
    check_limits(cfg, pricing)
    known = to_go_on_with(cfg, plan, root, records)
    if cfg.dry_run:
        if known and not known.finished:
            console.print(f"{known.sweep_id} is not finished: this goes on with it, {known.left} trials are left.")
        console.print("dry_run=true: nothing was run and nothing was written.")
        return EXIT_OK
    check_can_run(cfg, root, console, pricing.per_hour_text)
    if step_up.problem:
        return EXIT_GATE
    clock = SystemClock()
    if cfg.simulated:
        clock = FakeClock(utc=max(clock.utc_ns(), simulated_until(cfg, root, plan, records)))
    finished = known is not None and known.finished and cfg.resume != "failed"
    came_up = bool(cfg.machine.up) and lease.is_real_machine(cfg) and not finished
    if came_up:
        cfg = acquire.start(cfg, lambda text: console.print(Text(text), soft_wrap=True))
    try:
        with _cards(cfg) as cards, Ledger.open(cfg.database, clock) as ledger:
            ledger.usages.close_dead()
            end_lost_attempts_of_all(ledger, records)
            with held_sweep(cfg, plan, ledger, root, known) as (journal, still_held):
                session = Session(cfg, typed, console, ledger, journal, clock, pricing, time, cards, still_held)
                if session.record.finished:
                    console.print(f"{session.record.sweep_id} is finished; resume=never starts another one.")
                    return exit_code(session.record)
                try:
                    return _run_sweep(session)
                except StoreError as error:
                    print_stopped(console, error, typed)
                    if running := release.still_running_text(cfg, None, pricing.per_hour_text):
                        session.tell(f"Machine:  {running}")
                    return EXIT_FAILED
    except (StoreError, ConfigError) as error:
        undone = f"\n{acquire.undo_start(cfg, pricing)}" if came_up else ""
        raise ConfigError(f"{error}{undone}") from error


def _run_sweep(session: Session) -> int:
    cfg, journal, record, ledger = session.cfg, session.journal, session.record, session.ledger
    resumed = any(t.attempts for t in record.trials.values())
    end_lost_attempts(journal)
    bring_checkpoints_back(cfg, journal, session.sweep_dir, session.tell)
    session.console.print(f"Sweep {record.sweep_id}" + (resumed_text(session) if resumed else ""))
    purse = BudgetController(cfg, ledger, record, session.pricing, session.time, wait=_pause_of(session.clock))
    for note in purse.notes:
        session.tell(f"  {note}")
    # Where only the closing of the books is left, no machine is held again.
    only_to_close = bool(record.lease_ids) and not record.left
    if not only_to_close and _cannot_be_paid(session, purse):
        return EXIT_BUDGET
    if only_to_close:
        lease_id = record.lease_ids[-1]
    else:
        lease_id = acquire.attach(cfg, ledger, record.sweep_id, session.pricing, session.tell)
    purse.hold(ledger.leases.get(lease_id).lease)
    session.still_held()
    config = canonical(cfg)  # machine and storage may differ from those it was planned with
    journal.append(DriverStarted(lease_id, os.getpid(), config["machine"], config["storage"]))
    journal.catch_up()
    end_lost_attempts(journal)  # what a driver that had lost the sweep began meanwhile; now it can write no more
    deadman.start(cfg, record.sweep_id, session.database)
    beside = BackgroundServices(session)
    beside.start()
    end, executor, host = DriverEnd.FAILED, None, None
    lock_lost = False
    try:
        with terminal.LiveView(session.console, record, cfg.stage.steps, session.costs, session.time) as view:
            host = SweepController(
                cfg,
                ledger=ledger,
                journal=journal,
                lease_id=lease_id,
                sweep_dir=session.sweep_dir,
                view=view,
                cards=len(session.cards),
                purse=purse,
                forecast=lambda trial: forecast_labels(cfg, session.pricing, trial, session.time),
                notice=beside.notice,
                still_held=session.still_held,
            )
            try:
                with _termination_as_interrupt():
                    executor = _make_executor(session)
                with _termination_as_notice(host):  # after Ray has put a handler of its own in place of ours
                    executor.run(host)
                end = _end_by(host.stopped)
            except KeyboardInterrupt:
                end = DriverEnd.INTERRUPTED
                host.stop(Stop(StopKind.INTERRUPTED))
            except SweepLockedError:
                lock_lost = True
                raise
        if end is DriverEnd.INTERRUPTED:
            because = f" ({host.stopped.text})" if host.stopped and host.stopped.text else ""
            session.tell(f"Stopping{because}: ending the trials' processes and closing the books ...")
    finally:
        with _uninterrupted():
            code = _end(session, lease_id, beside, executor, host, end, lock_lost=lock_lost)
    return code


def _end(
    session: Session,
    lease_id: str,
    beside: BackgroundServices,
    executor: Executor | None,
    host: SweepController | None,
    end: DriverEnd,
    *,
    lock_lost: bool,
) -> int:
    """End the processes, close the books, deliver what waits, and tell a person; what it is that `sweep.py` returns."""
    cfg, record, ledger = session.cfg, session.record, session.ledger
    if executor is not None:
        executor.close()
    if lock_lost:  # the driver that has the lock now writes the ledger
        beside.stop_watching()
        beside.drain(DriverEnd.INTERRUPTED)
        return EXIT_FAILED
    if host is not None:
        interrupted = end is DriverEnd.INTERRUPTED
        host.abandon(AttemptOutcome.INTERRUPTED if interrupted else AttemptOutcome.LOST, "ended by the sweep")
    beside.stop_watching()
    stop = host.stopped if host is not None else None
    verdict = judge(session) if end is DriverEnd.DONE else None
    going = release.should_release(cfg, end, stop)
    if not going:
        ledger.leases.detach(lease_id, record.sweep_id, TAKEN_BACK if release.is_taken_back(stop) else end.value)
    report = session.report()
    write_costs(session.console, report, session.sweep_dir)
    # Last: a driver that is killed before it is followed by one that closes the books.
    session.journal.append(DriverEnded(end))
    session.journal.catch_up()
    keep_books(session)
    left = beside.drain(end)
    code = EXIT_INTERRUPTED if end is DriverEnd.INTERRUPTED else exit_code(record, verdict)
    if end is DriverEnd.DONE and not failed(record):
        shutil.rmtree(session.sweep_dir / "ray", ignore_errors=True)
    if end is not DriverEnd.FAILED:  # the error is reported by the caller
        print_end(session, report, verdict, end, stop, tracked=left.tracked)
        _say_unsaved(session, left)
    release_machine(session, lease_id, wanted=going)
    return code


def _cannot_be_paid(session: Session, purse: BudgetController) -> bool:
    """Whether not even one trial fits into a budget; if so, it is said, and nothing more is held."""
    cfg, ledger = session.cfg, session.ledger
    sweep_id = session.record.sweep_id
    held = ledger.leases.open_on(lease.machine_instance(cfg, sweep_id))
    if not (refusal := purse.refusal(held is not None)):
        return False
    session.journal.append(DriverEnded(DriverEnd.BUDGET, refusal))
    print_budget(session.console, refusal, session.typed)
    if held is not None and sweep_id in held.sweeps:  # a driver of this sweep died and left the machine
        going = release.should_release(cfg, DriverEnd.BUDGET, None)
        if not going:
            ledger.leases.detach(held.lease.lease_id, sweep_id, "budget")
        release_machine(session, held.lease.lease_id, wanted=going)
    elif cfg.machine.up and lease.is_real_machine(cfg) and held is None:
        session.tell(acquire.release_started(cfg, session.pricing))
    return True


def _say_unsaved(session: Session, left: Undelivered) -> None:
    if left.unsaved:
        text = unsaved_text(session.record.sweep_id, left.unsaved)
        session.console.print(Text(text, style="yellow"), soft_wrap=True)


def _cards(cfg: SweepConfig) -> AbstractContextManager[tuple[int, ...]]:
    """The cards that trials may use: this host's free ones. Simulated ones and a cluster's are not locked."""
    if cfg.simulated:
        return nullcontext(tuple(range(cfg.machine.cards)))
    if ray_address(cfg) != "local":
        return _cluster_cards(cfg)
    return lock_cards(cfg.machine, cfg.search.cards_per_trial)


@contextmanager
def _cluster_cards(cfg: SweepConfig) -> Iterator[tuple[int, ...]]:
    """Connected to the cluster: as many of its cards as trials can use, at most those of the machine that is paid."""
    from sweeps.executors.cluster import joined

    named_by = f"machine.cluster={cfg.machine.cluster}"
    with joined(ray_address(cfg), cfg.machine.device, cfg.search.cards_per_trial, named_by) as usable:
        yield tuple(range(min(usable, cfg.machine.cards)))


def _make_executor(session: Session) -> Executor:
    """Ray Tune for real work; in this process, on the fake clock, for simulated trials."""
    silence_seconds = session.cfg.retry.hung_after_seconds
    if isinstance(session.clock, FakeClock):
        from sweeps.executors.in_process import InProcessExecutor

        return InProcessExecutor(session.clock, silence_seconds=silence_seconds)
    from sweeps.executors.ray_tune import RayTuneExecutor

    return RayTuneExecutor(
        cards=session.cards,
        device=session.cfg.machine.device,
        logs=session.sweep_dir / "ray",
        silence_seconds=silence_seconds,
    )


def _pause_of(clock: SystemClock | FakeClock) -> Callable[[], None]:
    """What a paused sweep does at each heartbeat: simulated time must not run away from whoever is to raise a limit."""
    return (lambda: sleep(SIMULATED_PAUSE_SECONDS)) if isinstance(clock, FakeClock) else (lambda: None)


def _end_by(stop: Stop | None) -> DriverEnd:
    """How a driver ends whose executor returned. `stop`: why the controller stopped early, if it did."""
    if stop is None:
        return DriverEnd.DONE
    return DriverEnd.BUDGET if stop.kind is StopKind.BUDGET else DriverEnd.INTERRUPTED


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
def _termination_as_notice(host: SweepController) -> Iterator[None]:
    """SIGTERM lets trials write a checkpoint, as a notice of preemption does; after a while, or again, as Ctrl-C."""
    again = Timer(TERMINATION_SECONDS, os.kill, (os.getpid(), signal.SIGTERM))
    again.daemon = True

    def stop(*_: object) -> None:
        if host.stopped:
            raise KeyboardInterrupt
        host.stop(Stop(StopKind.TERMINATED, "the driver received SIGTERM"))
        again.start()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        again.cancel()
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
