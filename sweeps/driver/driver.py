"""From a checked configuration to a finished sweep and an exit code: what is opened and closed, in which order.

Everything that can be checked is checked before a lease is opened. After that, in every case, the processes are ended,
the journal and the ledger are closed, and the command to continue with is printed.

Tested in tests/sweeps/driver/test_budget_run.py and tests/e2e/test_sweep_command.py.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from time import sleep

from rich.text import Text

from cost.charges.lease_charge import TAKEN_BACK
from cost.clock import FakeClock, SystemClock
from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import SweepLockedError
from cost.records import LedgerRemovedError, StoreError
from cost.secrets import mask_secrets
from rl.spec import Stop, StopKind
from sweeps.config.build import canonical
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.driver import deadman, preflight
from sweeps.driver.background import BackgroundServices, deliver_backlog
from sweeps.driver.context import DriverContext
from sweeps.driver.controller import SweepController
from sweeps.driver.finish import (
    EXIT_BUDGET,
    EXIT_FAILED,
    EXIT_GATE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    copy_ledger,
    end_before_trials,
    exit_code,
    has_failed_trials,
    judge_gate,
    put_back,
    release_machine,
)
from sweeps.driver.preconditions import check_can_run
from sweeps.driver.resume import (
    changed_content,
    earlier_sweeps,
    fetch_checkpoints,
    locked_sweep,
    simulated_until,
    sweep_to_resume,
)
from sweeps.driver.signals import signals_ignored, sigterm_interrupts, sigterm_stops
from sweeps.driver.summary import (
    print_budget,
    print_end,
    print_not_uploaded,
    print_plan,
    print_plan_time,
    print_promotion,
    print_rules,
    print_stopped,
    report_costs,
    resumed_text,
)
from sweeps.driver.trial_check import read_inputs, trial_problems
from sweeps.executors import Executor
from sweeps.forecast.calibration import calibrated, plan_time
from sweeps.forecast.step_time import from_data_sheet, measured
from sweeps.journal.events import DriverEnded, DriverStarted
from sweeps.journal.journal import SweepRecord
from sweeps.journal.lost_attempts import end_lost_attempts, end_lost_attempts_of_all
from sweeps.journal.outcomes import AttemptOutcome, DriverEnd
from sweeps.machines import acquire, lease, release
from sweeps.machines.cards import lock_cards, ray_address
from sweeps.machines.pricing import find_price, forecast_labels
from sweeps.planning.plan import Plan, make_plan
from sweeps.protocol.promotion import promotion
from sweeps.protocol.stage_rules import stage_rules
from sweeps.report.console import make_console
from sweeps.report.live_view import LiveView
from sweeps.report.mlflow_store import load_mlflow
from sweeps.scheduling.budget_controller import BudgetController
from sweeps.scheduling.limits import check_limits

SIMULATED_PAUSE_SECONDS = 0.1
"""Real time that one simulated heartbeat of a paused sweep takes."""


def run(cfg: SweepConfig, typed: Sequence[str] = ()) -> int:
    """Run one stage; returns the exit code of `sweep.py`.

    Args:
        typed: the overrides of the command, for the commands that are printed.

    Raises:
        ConfigError: found before anything was started, written or billed.
    """
    typed = [mask_secrets(override) for override in typed]
    if cfg.stage.name == "preflight":
        return preflight.run(cfg, typed)
    console = make_console()
    inputs = read_inputs(cfg)
    cfg = replace(cfg, content=inputs.content)
    plan = make_plan(cfg)
    rules = stage_rules(cfg)
    pricing = find_price(cfg)
    records = earlier_sweeps(cfg)
    problems = trial_problems(cfg, plan, inputs)
    # A trial that cannot be built cannot be timed on this machine.
    time = (
        (measured(records, cfg) or from_data_sheet(cfg)) if problems else plan_time(records, cfg, plan, console.print)
    )
    print_plan(console, cfg, plan, pricing, time)
    print_rules(console, rules)
    step_up = promotion(records, cfg)
    print_promotion(console, step_up)
    check_limits(cfg, pricing)
    selected = sweep_to_resume(cfg, plan, records)
    if selected is None and cfg.resume == "auto" and (text := changed_content(cfg, records)):
        console.print(Text(text, style="yellow"), soft_wrap=True)
    if problems:
        raise ConfigError("\n".join(problems))
    if cfg.dry_run:
        if selected and not selected.finished:
            console.print(f"{selected.sweep_id} is not finished: a run resumes it, {selected.left} trials are left.")
        console.print("dry_run=true: nothing was run and nothing was written.")
        return EXIT_OK
    with ExitStack() as stack:
        # The cards are locked before anything slow is done. Those of a machine that is not started yet cannot be.
        sweep = f"sweep {_sweep_name(cfg, plan, selected)}"
        cards = None if cfg.machine.up else stack.enter_context(_cards(cfg, sweep))
        check_can_run(cfg, plan, console, pricing.per_hour_text)
        if step_up.problem:
            return EXIT_GATE
        if selected is None and not preflight.passes_before_smoke(cfg, plan, inputs, console):
            return EXIT_GATE
        # The model may be on this host only now.
        if (time is None or time.rough) and (found := calibrated(cfg, plan, console.print)):
            time = found
            print_plan_time(console, cfg, plan, pricing, time)
        clock = SystemClock()
        if cfg.simulated:
            clock = FakeClock(utc=max(clock.utc_ns(), simulated_until(cfg, plan, records)))
        finished = selected is not None and selected.finished and cfg.resume != "failed"
        machine_started = bool(cfg.machine.up) and lease.is_real_machine(cfg) and not finished
        if machine_started:
            cfg = acquire.start(cfg, lambda text: console.print(Text(text), soft_wrap=True))
        try:
            locked = _cards(cfg, sweep) if cards is None else nullcontext(cards)
            with locked as usable, Ledger.open(cfg.database, clock) as ledger:
                ledger.usages.close_dead()
                end_lost_attempts_of_all(ledger, records)
                with locked_sweep(cfg, plan, ledger, selected) as (journal, keep_lock):
                    context = DriverContext(
                        cfg, typed, console, ledger, journal, clock, pricing, time, usable, keep_lock, rules.rules
                    )
                    if context.record.finished:
                        if release.is_pending(ledger, context.record):
                            wanted = release.should_release(cfg, DriverEnd.DONE, None)
                            release_machine(context, context.record.lease_ids[-1], wanted=wanted)
                        deliver_backlog(context)
                        console.print(f"{context.record.sweep_id} is finished; resume=never starts another sweep.")
                        return exit_code(context.record)
                    try:
                        code = _run_sweep(context)
                        ledger.check_in_place()
                        return code
                    except KeyboardInterrupt:  # before the first trial: later, _run_sweep ends the sweep itself
                        with signals_ignored():
                            if end_before_trials(context):
                                machine_started = False
                        raise
                    except StoreError as error:
                        print_stopped(console, put_back(ledger, error), typed, ledger.place)
                        return EXIT_FAILED
        except (StoreError, ConfigError) as error:
            undone = f"\n{acquire.undo_start(cfg, pricing)}" if machine_started else ""
            raise ConfigError(f"{error}{undone}") from error
        except KeyboardInterrupt:
            if machine_started:
                with signals_ignored():
                    console.print(Text(acquire.undo_start(cfg, pricing)), soft_wrap=True)
            raise


def _sweep_name(cfg: SweepConfig, plan: Plan, selected: SweepRecord | None) -> str:
    """For people: the sweep's id, or what a new sweep's id begins with, and its folder."""
    name = selected.sweep_id if selected else f"{cfg.stage.name}-{plan.digest[:6]}"
    return f"{name} in {Path(cfg.paths.root).absolute()}"


def _run_sweep(context: DriverContext) -> int:
    cfg, journal, record, ledger = context.cfg, context.journal, context.record, context.ledger
    load_mlflow()
    resumed = any(t.attempts for t in record.trials.values())
    end_lost_attempts(journal)
    fetch_checkpoints(cfg, journal, context.sweep_dir, context.show)
    context.console.print(f"Sweep {record.sweep_id}" + (resumed_text(context) if resumed else ""))
    budget = BudgetController(cfg, ledger, record, context.pricing, context.time, wait=_pause_of(context.clock))
    for note in budget.notes:
        context.show(f"  {note}")
    # Where only the end of the sweep is missing, its machine is not acquired again.
    only_to_finish = bool(record.lease_ids) and not record.left
    if not only_to_finish and _over_budget(context, budget):
        return EXIT_BUDGET
    if only_to_finish:
        lease_id = record.lease_ids[-1]
    else:
        lease_id = acquire.attach(cfg, ledger, record.sweep_id, context.pricing, context.show)
    budget.use_lease(ledger.leases.get(lease_id).lease)
    context.keep_lock()
    config = canonical(cfg)  # machine and storage may differ from the plan's
    journal.append(DriverStarted(lease_id, os.getpid(), config["machine"], config["storage"]))
    journal.catch_up()
    end_lost_attempts(journal)  # a driver that lost the lock may have started attempts; from now on it cannot
    deadman.start(cfg, record.sweep_id)
    services = BackgroundServices(context)
    services.start()
    end, executor, controller, lock_lost = DriverEnd.FAILED, None, None, False
    try:
        with LiveView(context.console, record, cfg.stage.steps, context.costs, context.time) as view:
            controller = SweepController(
                cfg,
                ledger=ledger,
                journal=journal,
                lease_id=lease_id,
                sweep_dir=context.sweep_dir,
                view=view,
                cards=len(context.cards),
                budget=budget,
                forecast=lambda trial: forecast_labels(cfg, context.pricing, trial, context.time),
                preemption_notice=services.preemption_notice,
                keep_lock=context.keep_lock,
                rules=context.rules,
                cost_of_cards=lambda card_ns: context.pricing.of_card_share(card_ns, cfg.machine.cards),
            )
            try:
                with sigterm_interrupts():
                    executor = _make_executor(context)
                with sigterm_stops(controller):  # after Ray has installed its own handler
                    executor.run(controller)
                ledger.check_in_place()
                end = _end_by(controller.stopped)
            except KeyboardInterrupt:
                end = DriverEnd.INTERRUPTED
                controller.stop(Stop(StopKind.INTERRUPTED))
            except SweepLockedError:
                lock_lost = True
                raise
            except LedgerRemovedError as error:
                raise put_back(ledger, error) from error
        if end is DriverEnd.INTERRUPTED and controller is not None:
            reason = f" ({controller.stopped.text})" if controller.stopped and controller.stopped.text else ""
            context.show(f"Stopping{reason}: ending the trials' processes and closing the ledger ...")
    except KeyboardInterrupt:
        end = DriverEnd.INTERRUPTED
        if controller is not None:
            controller.stop(Stop(StopKind.INTERRUPTED))
    finally:
        with signals_ignored():
            if executor is not None:
                executor.close()
            if lock_lost:  # the driver that has the lock now writes the journal and the ledger
                services.stop_watching()
                services.close(DriverEnd.INTERRUPTED)
                code = EXIT_FAILED
            else:
                try:
                    code = _finish(context, lease_id, services, controller, end)
                except StoreError:
                    _finish_unwritten(context, lease_id, services, controller, end)
                    raise
    return code


def _finish(
    context: DriverContext,
    lease_id: str,
    services: BackgroundServices,
    controller: SweepController | None,
    end: DriverEnd,
) -> int:
    """Close the journal and the ledger, deliver what waits, and print the result; returns the exit code."""
    cfg, record, ledger = context.cfg, context.record, context.ledger
    stop = Stop(StopKind.INTERRUPTED) if end is DriverEnd.INTERRUPTED else None
    if controller is not None:
        stop, interrupted = controller.stopped, end is DriverEnd.INTERRUPTED
        controller.end_all(AttemptOutcome.INTERRUPTED if interrupted else AttemptOutcome.LOST, "ended by the sweep")
    services.stop_watching()
    verdict = judge_gate(context, controller.trial_rules) if controller and end is DriverEnd.DONE else None
    release_wanted = release.should_release(cfg, end, stop)
    if not release_wanted:
        ledger.leases.detach(lease_id, record.sweep_id, TAKEN_BACK if release.is_taken_back(stop) else end.value)
    report = report_costs(context)
    # The last event: after a driver that is killed before it, the next driver finishes the sweep. After a driver that
    # is killed later, the next one completes the release.
    with context.journal.transaction():
        context.journal.append(DriverEnded(end))
        if release_wanted:
            release_requests.record_planned(ledger, lease_id, str(cfg.machine.down))
    context.journal.catch_up()
    copy_ledger(context)
    undelivered = services.close(end)
    code = EXIT_INTERRUPTED if end is DriverEnd.INTERRUPTED else exit_code(record, verdict)
    if verdict is not None and verdict.healthy and not has_failed_trials(record):
        shutil.rmtree(context.sweep_dir / "ray", ignore_errors=True)
    if end is not DriverEnd.FAILED and report is not None:  # otherwise the caller reports the error
        print_end(context, report, verdict, end, stop, mlflow_complete=undelivered.mlflow_complete)
        print_not_uploaded(context, undelivered.not_uploaded)
    release_machine(context, lease_id, wanted=release_wanted)
    return code


def _finish_unwritten(
    context: DriverContext,
    lease_id: str,
    services: BackgroundServices,
    controller: SweepController | None,
    end: DriverEnd,
) -> None:
    """The ledger cannot be written: release the machine all the same, and stop the services.

    Open usages and the open lease are closed by the next driver, at the last heartbeat.
    """
    with suppress(StoreError):
        services.stop_watching()
    wanted = release.should_release(context.cfg, end, controller.stopped if controller else None)
    release_machine(context, lease_id, wanted=wanted)
    services.close(DriverEnd.INTERRUPTED)


def _over_budget(context: DriverContext, budget: BudgetController) -> bool:
    """Whether not even one trial fits into the budget. If so, that is printed, and the machine is released."""
    cfg, ledger, sweep_id = context.cfg, context.ledger, context.record.sweep_id
    state = ledger.leases.open_on(lease.machine_instance(cfg, sweep_id))
    refusal = budget.refusal(machine_acquired=state is not None)
    if not refusal:
        return False
    context.journal.append(DriverEnded(DriverEnd.BUDGET, refusal))
    print_budget(context.console, refusal, context.typed, ledger.place)
    if state is not None and sweep_id in state.sweeps:  # a driver of this sweep died while it used the machine
        release_wanted = release.should_release(cfg, DriverEnd.BUDGET, None)
        if not release_wanted:
            ledger.leases.detach(state.lease.lease_id, sweep_id, "budget")
        release_machine(context, state.lease.lease_id, wanted=release_wanted)
    elif cfg.machine.up and lease.is_real_machine(cfg) and state is None:
        context.show(acquire.release_started(cfg, context.pricing))
    return True


def _cards(cfg: SweepConfig, sweep: str) -> AbstractContextManager[tuple[int, ...]]:
    """The cards that trials can use: this host's free cards. Simulated cards and a cluster's are not locked.

    Args:
        sweep: names the sweep in the messages of others that want the same cards.
    """
    if cfg.simulated:
        return nullcontext(tuple(range(cfg.machine.cards)))
    if ray_address(cfg) != "local":
        return _cluster_cards(cfg)
    return lock_cards(cfg.machine, cfg.search.cards_per_trial, sweep)


@contextmanager
def _cluster_cards(cfg: SweepConfig) -> Iterator[tuple[int, ...]]:
    """Connects to the cluster: the cards that trials can use, at most those of the machine that is paid for."""
    from sweeps.executors.cluster import joined

    named_by = f"machine.cluster={cfg.machine.cluster}"
    with joined(ray_address(cfg), cfg.machine.device, cfg.search.cards_per_trial, named_by) as usable:
        yield tuple(range(min(usable, cfg.machine.cards)))


def _make_executor(context: DriverContext) -> Executor:
    """Ray Tune for real trials; in this process, on the fake clock, for simulated trials."""
    silence_seconds = context.cfg.retry.hung_after_seconds
    if isinstance(context.clock, FakeClock):
        from sweeps.executors.in_process import InProcessExecutor

        return InProcessExecutor(context.clock, silence_seconds=silence_seconds)
    from sweeps.executors.ray_tune import RayTuneExecutor

    return RayTuneExecutor(
        cards=context.cards,
        device=context.cfg.machine.device,
        logs=context.sweep_dir / "ray",
        silence_seconds=silence_seconds,
    )


def _pause_of(clock: SystemClock | FakeClock) -> Callable[[], None]:
    """What a paused sweep does at each heartbeat. Simulated time waits, so that a person can raise a limit."""
    return (lambda: sleep(SIMULATED_PAUSE_SECONDS)) if isinstance(clock, FakeClock) else (lambda: None)


def _end_by(stop: Stop | None) -> DriverEnd:
    """How a driver ends whose executor returned. `stop`: why the controller stopped early, if it did."""
    if stop is None:
        return DriverEnd.DONE
    return DriverEnd.BUDGET if stop.kind is StopKind.BUDGET else DriverEnd.INTERRUPTED
