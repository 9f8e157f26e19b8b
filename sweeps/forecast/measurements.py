"""The step times of a finished or running sweep, in the form that `cost.forecast` reads.

A trial's reports give each step's phases per card, its evaluations and its checkpoints. The wall clock of an attempt
that ran through gives the time that nothing else explains, such as the start of the trial's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cost.forecast.hardware import Hardware, ModelSize
from cost.forecast.measured_run import MeasuredRun, MeasuredStep, OffStep
from rl.messages import CheckpointWritten, EvalReport, Started, StepReport
from sweeps.journal.event_codec import messages_in
from sweeps.journal.journal import sweep_events
from sweeps.journal.outcomes import AttemptOutcome

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from sweeps.journal.state import SweepRecord, TrialRecord


@dataclass
class _Times:
    """What one trial reported about its time."""

    steps: dict[int, StepReport] = field(default_factory=dict)
    off_steps: list[OffStep] = field(default_factory=list)
    started: Started | None = None


def measured_runs(ledger: Ledger, record: SweepRecord) -> list[MeasuredRun]:
    """One run per trial that reported a step, in the order of the plan."""
    times: dict[str, _Times] = {}
    for event in sweep_events(ledger, record.sweep_id):
        for recorded in messages_in(event):
            found = times.setdefault(recorded.trial_id, _Times())
            match recorded.message:
                case StepReport() as step:
                    found.steps[step.step] = step
                case EvalReport(wall_ns=wall_ns):
                    found.off_steps.append(OffStep("evaluation", wall_ns))
                case CheckpointWritten(wall_ns=wall_ns):
                    found.off_steps.append(OffStep("checkpoint", wall_ns))
                case Started() as started if found.started is None:
                    found.started = started
                    found.off_steps.append(OffStep("start", sum(started.phase_card_ns.values()) // started.cards))
    return [
        _run(record, record.trials[trial_id], found)
        for trial_id, found in times.items()
        if found.steps and found.started is not None
    ]


def _run(record: SweepRecord, trial: TrialRecord, times: _Times) -> MeasuredRun:
    assert times.started is not None
    cards, planned = times.started.cards, trial.planned
    completions = planned.prompts_per_step * planned.group_size
    steps = tuple(
        MeasuredStep(
            number,
            planned.prompts_per_step,
            completions,
            cards,
            {phase: ns // cards for phase, ns in report.phase_card_ns.items() if ns},
            report.tokens.completion,
            float(report.staleness),
        )
        for number, report in sorted(times.steps.items())
    )
    return MeasuredRun(
        f"{record.sweep_id}/{trial.trial_id}",
        record.config["trainer"]["name"],
        model_name(record.config["model"]),
        record.config["task"]["name"],
        record.config["machine"]["card_name"],
        steps,
        tuple(times.off_steps),
        _elapsed_ns(trial, steps, times.off_steps),
    )


def _elapsed_ns(trial: TrialRecord, steps: tuple[MeasuredStep, ...], off_steps: list[OffStep]) -> int | None:
    """Wall clock of a trial that ran through in one attempt; None for any other."""
    first = trial.attempts[0]
    if len(trial.attempts) > 1 or first.outcome is not AttemptOutcome.COMPLETED or first.ended_ns is None:
        return None
    # The driver's clock and the trainer's differ by a little, and simulated time has whole seconds.
    reported = sum(step.ns for step in steps) + sum(off.ns for off in off_steps)
    return max(first.ended_ns - first.started_ns, reported)


def model_name(model: Mapping[str, Any]) -> str:
    """`smollm2_135m`, or kind and path: `hf:Qwen/Qwen3-0.6B`."""
    return f"{model['kind']}:{model['path']}" if model["path"] else model["kind"]


def hardware_of(machine: Mapping[str, Any]) -> Hardware:
    """The data sheet of a machine of `conf/machine`."""
    return Hardware(
        machine["card_name"],
        float(machine["tflops"]),
        float(machine["memory_gb_per_s"]),
        float(machine["memory_gib_per_card"]),
        float(machine["interconnect_gb_per_s"]),
    )


def model_size(record: SweepRecord) -> ModelSize | None:
    """Parameters of the model as the first trial that started reported them; None: none has started."""
    for trial in record.trials.values():
        if trial.started is not None and trial.started.parameters:
            return ModelSize(float(trial.started.parameters), float(trial.started.trainable_parameters))
    return None
