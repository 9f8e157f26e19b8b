"""Checks of a sweep that was killed and resumed: its journal, ledger, files and MLflow, seen from outside.

The expected values come from the witness (when attempts had cards) and from the sum of the durations that the simulated
trainer was given; never from the code under test.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from cost.clock import FakeClock
from cost.close.check import run_checks
from cost.ledger.ledger import Ledger
from cost.money import pico_text, rounded
from cost.prices.book import PriceBook
from cost.records import NoLedgerError
from cost.reports.by_trial import sweep_report
from cost.reports.csv_json import CSV_PLACES
from rl.codec import to_json
from rl.spec import StepReport
from rl.trainers.simulated import SimulatedTrainer
from sweeps.config.overrides import CONF_DIR
from sweeps.config.types import SweepConfig
from sweeps.journal.event_codec import messages_in
from sweeps.journal.journal import SweepRecord, TrialState, load, sweep_events, sweep_ids
from sweeps.journal.trial_reports import TrialReports, trial_reports
from sweeps.planning.plan import PlannedTrial, make_plan, trial_spec
from tests.chaos import endings
from tests.chaos.killing import CHECKPOINT_S, COMPLETION_S, EVALUATION_S, STARTUP_S, STEP_S, Plan

SECOND_NS = 10**9
HEARTBEAT_NS = 10 * SECOND_NS
WRITTEN_WITHIN_NS = HEARTBEAT_NS
"""A driver writes a message with its next tick at the latest, and simulated ticks are this far apart."""


@dataclass(frozen=True)
class CardUse:
    """The time in which an attempt had its card, according to the witness."""

    run: int
    trial_id: str
    attempt: int
    from_ns: int
    to_ns: int
    killed: bool
    """Its driver was killed in this time."""


def problems(plan: Plan, cfg: SweepConfig, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Everything that is wrong in `paths.root` after the drivers, one sentence each."""
    root = Path(cfg.paths.root)
    end_ns = max(line["at_ns"] or 0 for line in lines)
    with Ledger.open(root / "ledger.db", FakeClock(utc=end_ns + 3600 * SECOND_NS), create=False) as ledger:
        sweeps = sweep_ids(ledger)
        if len(sweeps) != 1:
            return [f"one sweep was started and {len(sweeps)} are in the journal"]
        record = load(ledger, sweeps[0])
        return [
            *_trials(plan, record),
            *_steps(cfg, plan, record, trial_reports(ledger, record.sweep_id)),
            *_reports(ledger, record),
            *endings.pruned(plan, cfg, record, sweep_events(ledger, record.sweep_id)),
            *_runs(record, card_uses(lines)),
            *_lost_work(lines),
            *_billed(ledger, plan, record, card_uses(lines)),
            *_money(ledger, root, record),
            *_open_at_the_end(ledger, root, record),
        ]


def ends(root: Path) -> dict[str, tuple[str, int]]:
    """By trial of the one sweep, its state and its last step."""
    with Ledger.open(root / "ledger.db", create=False, read_only=True) as ledger:
        record = load(ledger, sweep_ids(ledger)[0])
    return {t.trial_id: (str(t.state), t.summary.step) for t in record.trials.values()}


def closed(root: Path) -> bool:
    """Whether a driver has written that its sweep is over."""
    if not (root / "ledger.db").exists():
        return False
    try:
        with Ledger.open(root / "ledger.db", create=False, read_only=True) as ledger:
            return any(load(ledger, sweep_id).finished for sweep_id in sweep_ids(ledger))
    except NoLedgerError:
        return False


def card_uses(lines: Sequence[Mapping[str, Any]]) -> list[CardUse]:
    """The card uses of all attempts, ordered by their start."""
    found: list[CardUse] = []
    for run, of_run in itertools.groupby(lines, key=lambda line: line["run"]):
        mine = list(of_run)
        begun: dict[tuple[str, int], int] = {}
        ended: dict[tuple[str, int], int] = {}
        for line in mine:
            if line["what"] == "granted":
                begun[line["trial"], line["attempt"]] = line["at_ns"]
            elif line["what"] == "released":
                key = line["trial"], line["attempt"]
                ended[key] = line["at_ns"]
            elif line["what"] == "closed":
                key = line["trial"], line["attempt"]
                found.append(CardUse(run, *key, begun.pop(key), ended.pop(key), False))
        last_ns: int = mine[-1]["at_ns"]
        found += [CardUse(run, *key, from_ns, ended.get(key, last_ns), True) for key, from_ns in begun.items()]
    return sorted(found, key=lambda use: use.from_ns)


def _trials(plan: Plan, record: SweepRecord) -> Iterator[str]:
    """No trial is lost, none runs again after its end, and the sweep is done."""
    if record.ended != "done" or record.gate is None:
        yield f"the sweep ended as {record.ended} with gate {record.gate}"
    for trial in record.trials.values():
        if trial.state is not (TrialState.PRUNED if trial.pruned else TrialState.COMPLETED):
            yield f"{trial.trial_id} is {trial.state}"
        outcomes = [a.outcome for a in trial.attempts]
        if {"completed", "pruned"} & set(outcomes[:-1]) or None in outcomes:
            yield f"{trial.trial_id} has attempts that ended as {outcomes}"
        if [a.attempt for a in trial.attempts] != list(range(1, len(outcomes) + 1)):
            yield f"{trial.trial_id} has attempts {[a.attempt for a in trial.attempts]}"


def _steps(cfg: SweepConfig, plan: Plan, record: SweepRecord, found: Mapping[str, TrialReports]) -> Iterator[str]:
    """The record has every step once, equal to that of an uninterrupted trial."""
    expected = make_plan(cfg)
    if len(record.trials) != expected.size or not {t.trial_id for t in expected.trials} <= record.trials.keys():
        yield f"the plan has {expected.size} trials, and the journal {len(record.trials)}"
    for trial in record.trials.values():
        planned = trial.planned
        reports, last = found.get(trial.trial_id, TrialReports()), plan.steps
        if trial.state is TrialState.PRUNED:
            last = trial.summary.accuracies[-1].step
        if sorted(reports.steps) != list(range(1, last + 1)):
            yield f"{trial.trial_id} has steps {sorted(reports.steps)}"
            continue
        if sorted(reports.evaluations) != [step for step in plan.evaluations if step <= last]:
            yield f"{trial.trial_id} was evaluated at {sorted(reports.evaluations)}"
        if planned.adaptive_lr:
            continue  # the commands that it received depend on what had arrived at the driver
        alone = _alone(cfg, planned)
        for number, step in reports.steps.items():
            if to_json(replace(step, replay=False)) != alone[number]:
                yield f"{trial.trial_id} step {number} is not what it is without interruption"


def _alone(cfg: SweepConfig, planned: PlannedTrial) -> dict[int, Any]:
    """Step reports of a trial that runs alone, without faults, driver or ledger."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        spec = trial_spec(cfg, planned, attempt=1, sweep_dir=Path(folder))
        faultless = replace(
            spec.trainer.simulated, crash_at_step=0, hang_at_step=0, preempt_at_step=0, diverge_at_step=0
        )
        spec = replace(spec, trainer=replace(spec.trainer, simulated=faultless))
        return {m.step: to_json(m) for m in SimulatedTrainer().run(spec, None) if isinstance(m, StepReport)}


def _reports(ledger: Ledger, record: SweepRecord) -> Iterator[str]:
    """In all events together, each step of a trial is new once; its other reports are marked as replayed."""
    new: Counter[tuple[str, int]] = Counter()
    raised: dict[str, set[int]] = defaultdict(set)
    step: dict[str, Mapping[str, Any]] = {}
    for event in sweep_events(ledger, record.sweep_id):
        for recorded in messages_in(event):
            if recorded.body["type"] == "step":
                step[recorded.trial_id] = recorded.body
                if not recorded.body["replay"]:
                    new[recorded.trial_id, recorded.body["step"]] += 1
        if event.kind == "warning" and "is gone" in event.body["text"]:
            yield event.body["text"]
        elif event.kind == "command" and event.body["command"]["type"] == "set_lr":
            before = step[event.body["trial_id"]]
            if event.body["command"]["lr"] > before["lr"]:
                raised[event.body["trial_id"]].add(before["step"])
    for trial in record.trials.values():
        for number in range(1, trial.summary.step + 1):
            if new[trial.trial_id, number] != 1:
                yield f"{trial.trial_id} step {number} counts {new[trial.trial_id, number]} times"
    for trial_id, steps in raised.items():
        if len(steps) > 1:
            yield f"the learning rate of {trial_id} was raised at steps {sorted(steps)}: once is allowed"


def _runs(record: SweepRecord, uses: Sequence[CardUse]) -> Iterator[str]:
    """No trial ran twice at once, and every attempt in the journal ran."""
    by_trial: dict[str, list[CardUse]] = defaultdict(list)
    for use in uses:
        by_trial[use.trial_id].append(use)
    for trial_id, mine in by_trial.items():
        for before, after in itertools.pairwise(mine):
            if after.from_ns < before.to_ns:
                yield f"{trial_id} ran twice at once, as attempts {before.attempt} and {after.attempt}"
        if len(mine) < len(record.trials[trial_id].attempts):
            yield f"the journal has attempts of {trial_id} that never ran"
    if missing := set(record.trials) - set(by_trial):
        yield f"{missing} never ran"


def _lost_work(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """An attempt resumes from the newest checkpoint that a driver had received a tick before it died, or a later."""
    known: dict[str, str] = {}
    for _, of_run in itertools.groupby(lines, key=lambda line: line["run"]):
        mine = list(of_run)
        until_ns = (mine[-1]["at_ns"] or 0) - WRITTEN_WITHIN_NS
        for line in mine:
            if line["what"] == "checkpoint_received" and line["at_ns"] <= until_ns:
                known[line["trial"]] = line["checkpoint"]
            elif line["what"] == "granted":
                due = known.get(line["trial"])
                if due is not None and (line["checkpoint"] or "") < due:
                    yield f"{line['trial']}/{line['attempt']} resumed from {line['checkpoint']}, not from {due}"


def _billed(ledger: Ledger, plan: Plan, record: SweepRecord, uses: Sequence[CardUse]) -> Iterator[str]:
    """Usage equals card use; after a killed driver it is at most one heartbeat shorter, and never longer."""
    usages = {(u.key.trial_id, u.key.attempt, u.from_ns): u for u in ledger.usages.find(sweep_id=record.sweep_id)}
    for use in uses:
        name = f"{use.trial_id}/{use.attempt} of driver {use.run}"
        usage = usages.pop((use.trial_id, use.attempt, use.from_ns), None)
        due_ns = use.to_ns - use.from_ns
        if usage is None:
            if not use.killed or due_ns > HEARTBEAT_NS:
                yield f"{name} had a card for {due_ns / SECOND_NS} s and has no usage"
            continue
        if usage.to_ns is None:
            yield f"{name} has an open usage"
            continue
        billed_ns = usage.to_ns - usage.from_ns
        lost_ns = due_ns - billed_ns
        if lost_ns < 0 or lost_ns > (HEARTBEAT_NS if use.killed else 0):
            yield f"{name} had a card for {due_ns / SECOND_NS} s and is billed {billed_ns / SECOND_NS} s"
        if usage.end_estimated and not use.killed:
            yield f"{name} ended in order and its end is marked as estimated"
    for trial_id, attempt, _ in usages:
        yield f"{trial_id}/{attempt} is billed and never ran"
    yield from _durations(ledger, plan, record)


def _durations(ledger: Ledger, plan: Plan, record: SweepRecord) -> Iterator[str]:
    """The usage of an attempt that completed or was pruned is the sum of the durations of its work."""
    usages = {(u.key.trial_id, u.key.attempt): u for u in ledger.usages.find(sweep_id=record.sweep_id)}
    for trial in record.trials.values():
        last = trial.attempts[-1]
        usage = usages[trial.trial_id, last.attempt]
        early = last.outcome == "pruned"
        if usage.end_estimated:  # its driver was killed after the attempt had ended or had received a stop
            continue
        if usage.outcome != ("PRUNED" if early else "COMPLETED"):
            yield f"{trial.trial_id}/{last.attempt} was {last.outcome}, and its usage ended as {usage.outcome}"
        step_s = Fraction(STEP_S) + Fraction(COMPLETION_S) * trial.planned.prompts_per_step * 2
        end = trial.summary.accuracies[-1].step if early else plan.steps
        to_do = range(last.from_step + 1, end + 1)
        checkpoints = sum(1 for n in to_do if n % plan.checkpoint_every == 0 or n == plan.steps) + early
        evaluations = sum(1 for n in plan.evaluations if last.from_step <= n <= end)
        due_s = STARTUP_S + step_s * len(to_do) + CHECKPOINT_S * checkpoints + EVALUATION_S * evaluations
        due_s /= plan.times_faster
        billed_s = Fraction((usage.to_ns or 0) - usage.from_ns, SECOND_NS)
        if billed_s != due_s:
            yield f"{trial.trial_id}/{last.attempt} took {float(due_s)} s and is billed {float(billed_s)} s"


def _money(ledger: Ledger, root: Path, record: SweepRecord) -> Iterator[str]:
    """`cost check` finds nothing, and the parts sum to the cost of the lease."""
    book = PriceBook.load(CONF_DIR / "pricing")
    for finding in run_checks(ledger, book, ledger.now_ns()):
        yield f"cost check: {finding.check}: {finding.where}: {finding.what}"
    report = sweep_report(ledger, book, record.sweep_id, ledger.now_ns())
    parts = sum(row.pico for row in [*report.trials, *report.overheads])
    if parts != report.total_pico:
        yield f"the parts sum to {parts}, and the report's total is {report.total_pico}"
    with (root / record.sweep_id / "cost.csv").open(encoding="utf-8") as file:
        written = sum(Decimal(row["cost"]) for row in csv.DictReader(file))
    if written != rounded(report.total_pico, CSV_PLACES):
        yield f"cost.csv sums to {written}, and the report's total is {pico_text(report.total_pico)}"


def _open_at_the_end(ledger: Ledger, root: Path, record: SweepRecord) -> Iterator[str]:
    """No lease and no reservation is open, and each checkpoint in the journal is complete."""
    if reserved := ledger.reservations.find_open():
        yield f"money is still reserved for {reserved}"
    for state in ledger.leases.find():
        if state.to_ns is None:
            yield f"lease {state.lease.lease_id} is still open"
    if len(ledger.leases.find()) != 1:
        yield f"{len(ledger.leases.find())} leases for one machine that was never released in between"
    for trial in record.trials.values():
        if trial.checkpoint is not None and not (Path(trial.checkpoint.path) / "COMPLETE").exists():
            yield f"the last checkpoint of {trial.trial_id} is not complete: {trial.checkpoint.path}"


def mlflow_problems(cfg: SweepConfig) -> Iterator[str]:
    """After `sweeps track`, MLflow has every trial once, with every parameter and every step once."""
    from mlflow import MlflowClient

    from sweeps.report.mlflow_store import default_uri
    from sweeps.report.mlflow_sync import CURSOR_TAG, MlflowSync

    root = Path(cfg.paths.root)
    uri = default_uri(root)
    with Ledger.open(root / "ledger.db", create=False, read_only=True) as ledger:
        record = load(ledger, sweep_ids(ledger)[-1])
        sync = MlflowSync(uri, cfg.tracking.experiment, root / "mlartifacts", record.sweep_id)
        sync.deliver(ledger)
        reports = trial_reports(ledger, record.sweep_id)
        last = max(event.sequence for event in sweep_events(ledger, record.sweep_id))
    client = MlflowClient(uri)
    runs = client.search_runs([sync.experiment_id])
    parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    children = {r.data.tags["trial_id"]: r for r in runs if "mlflow.parentRunId" in r.data.tags}
    if len(parents) != 1 or len(runs) != 1 + len(record.trials) or set(children) != set(record.trials):
        yield f"MLflow has {len(parents)} parents and {len(runs)} runs for {len(record.trials)} trials"
        return
    if parents[0].info.status != "FINISHED" or parents[0].data.tags[CURSOR_TAG] != str(last):
        yield f"MLflow's parent is {parents[0].info.status} at {parents[0].data.tags[CURSOR_TAG]} of {last}"
    if "stage.steps" not in parents[0].data.params:
        yield "MLflow's parent has no parameters"
    for trial_id, child in children.items():
        trial = record.trials[trial_id]
        if child.info.status != "FINISHED" or child.data.tags["state"] != str(trial.state):
            yield f"MLflow has {trial_id} as {child.info.status}, {child.data.tags['state']}, not {trial.state}"
        if child.data.params.get("prompts_per_step") != str(trial.planned.prompts_per_step):
            yield f"MLflow has no parameters of {trial_id}"
        for name, due in (
            ("reward", sorted(reports[trial_id].steps)),
            ("eval_acc", sorted(reports[trial_id].evaluations)),
        ):
            steps = sorted(metric.step for metric in client.get_metric_history(child.info.run_id, name))
            if steps != due:
                yield f"MLflow has {name} of {trial_id} at steps {steps}, not {due}"
