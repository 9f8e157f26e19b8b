"""A `Trainer` without a model: seeded parametric curves, durations on a simulated clock, and configurable faults.

It makes everything around a trainer (executors, gates, forecasts, the ledger) testable in milliseconds. It passes the
duration of its work to a clock and does not wait itself. Only `hang_at_step` blocks, unless the clock ends it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Protocol

from rl.codec import from_json, to_json
from rl.schedule import lr_factor
from rl.spec import (
    Checkpoint,
    CheckpointWritten,
    Command,
    ConfigurationError,
    EvalReport,
    Event,
    Finished,
    OutOfMemoryError,
    PreemptedError,
    SetLr,
    Started,
    StepReport,
    Stop,
    TrialSpec,
)
from rl.trainers import simulated_curves as curves
from rl.trainers.simulated_curves import State

MARKER = "COMPLETE"
"""Name of the marker file of a checkpoint. It is written last."""
HANG_SLICE_NS = 10_000_000_000
"""A hang advances the clock by this duration, repeatedly."""


class SimulatedClock(Protocol):
    """Receives the durations of the trainer's work. If `sleep_ns` raises, the attempt ends with that exception."""

    def sleep_ns(self, duration_ns: int) -> None: ...


class VirtualClock:
    """Adds up durations and never waits."""

    def __init__(self) -> None:
        self.now_ns = 0

    def sleep_ns(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


class SimulatedCrashError(RuntimeError):
    """The crash that `crash_at_step` configures."""


class SimulatedTrainer:
    """Implements `rl.spec.Trainer` with the parametric curves of `trainer.simulated`.

    A hang yields no more messages and advances the clock by ten seconds, repeatedly. A driver with its own clock
    notices the silence, and ends the attempt by raising from `sleep_ns`. With `VirtualClock` the calling thread never
    returns.
    """

    def __init__(self, clock: SimulatedClock | None = None, nan_on_divergence: bool = False) -> None:
        """With `nan_on_divergence`, loss and gradient norm of diverged steps are NaN; otherwise they are large."""
        self._clock = clock or VirtualClock()
        self._nan = nan_on_divergence

    def run(self, spec: TrialSpec, checkpoint: Path | None) -> Generator[Event, Command | None, None]:
        """See `rl.spec.Trainer.run`."""
        yield from _Attempt(spec, checkpoint, self._clock, self._nan).run()


class _StoppedError(Exception):
    """The driver sent `Stop`."""

    def __init__(self, command: Stop) -> None:
        super().__init__(command.text)
        self.command = command


class _Attempt:
    """The messages of one attempt."""

    def __init__(self, spec: TrialSpec, checkpoint: Path | None, clock: SimulatedClock, nan: bool) -> None:
        self._spec = _checked(spec)
        self._sim = spec.trainer.simulated
        self._clock = clock
        self._nan = nan
        self._checkpoint = checkpoint
        self._state = _read_checkpoint(checkpoint, spec) if checkpoint else State(lr=spec.algorithm.lr)
        self._saved = self._state if checkpoint else None
        """The state in the newest checkpoint. It is not written twice."""
        self._folder = Path(spec.checkpoint_dir)
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> Generator[Event, Command | None, None]:
        try:
            yield from self._send(self._started())
            if self._evaluation_is_due():
                yield from self._send(self._evaluate())
            while self._state.step < self._spec.steps:
                yield from self._send(self._step())
                if self._checkpoint_is_due():
                    yield from self._save()
                if self._evaluation_is_due():
                    yield from self._send(self._evaluate())
        except _StoppedError as stop:
            if self._saved != self._state:
                yield self._write_checkpoint()
                self._prune()
            yield Finished(self._state.step, self._state.step, stop.command)
        else:
            yield Finished(self._state.step, self._state.step)

    def _send(self, event: Event) -> Generator[Event, Command | None, None]:
        """Yield the message and carry out the command that the driver returns."""
        command = yield event
        if isinstance(event, CheckpointWritten):
            # The driver has received the message. Before that, a resume would use the previous checkpoint.
            self._prune()
        if isinstance(command, Checkpoint):
            yield from self._save()
        if isinstance(command, SetLr):
            self._state = dataclasses.replace(self._state, lr=command.lr)
        if isinstance(command, Stop):
            raise _StoppedError(command)

    def _save(self) -> Generator[Event, Command | None, None]:
        if self._saved != self._state:
            yield from self._send(self._write_checkpoint())

    def _prune(self) -> None:
        """Remove all but the newest `keep_checkpoints` checkpoints."""
        complete = sorted(p.parent for p in self._folder.glob(f"step-*/{MARKER}"))
        for old in complete[: max(0, len(complete) - self._spec.trainer.keep_checkpoints)]:
            (old / MARKER).unlink()  # first: a checkpoint that is half removed must not look complete
            shutil.rmtree(old)

    def _started(self) -> Started:
        spec = self._spec
        wall_ns = curves.noisy_ns(spec, self._state.step, self._sim.startup_seconds, purpose=5)
        self._clock.sleep_ns(wall_ns)
        phase = "recovery" if self._checkpoint else "startup"
        return Started(
            step=self._state.step,
            policy_version=self._state.step,
            cards=spec.cards,
            engine="simulated",
            device="simulated",
            parameters=1_000_000,
            trainable_parameters=1_000_000,
            train_questions=spec.task.train_questions or 1000,
            eval_questions=spec.task.eval_questions,
            phase_card_ns={phase: wall_ns * spec.cards},
            restored_from=str(self._checkpoint) if self._checkpoint else None,
        )

    def _step(self) -> StepReport:
        spec, state = self._spec, self._state
        number = state.step + 1
        self._preempt_crash_or_hang(number)
        if state.diverged_steps or self._fires("diverge", self._sim.diverge_at_step, number):
            state = dataclasses.replace(state, diverged_steps=state.diverged_steps + 1)
        updates = spec.algorithm.updates_per_rollout
        lrs = [
            state.lr * lr_factor(spec.algorithm, state.step * updates + u, spec.steps * updates) for u in range(updates)
        ]
        done = curves.simulate_step(spec, state, lrs, self._nan)
        prompts = done.prompts.trained + done.prompts.filtered + done.prompts.failed
        wall_ns = curves.step_ns(spec, number, prompts * spec.group_size)
        self._clock.sleep_ns(wall_ns)
        gained = 0.0 if state.diverged_steps else curves.progress_per_step(spec, lrs[-1])
        self._state = dataclasses.replace(state, step=number, progress=state.progress + gained)
        return StepReport(
            step=number,
            policy_version=number - 1,
            staleness=0,
            wall_ns=wall_ns,
            phase_card_ns=_phases(wall_ns * spec.cards),
            tokens=done.tokens,
            prompts=done.prompts,
            curves=done.curves,
            lr=lrs[-1],
        )

    def _preempt_crash_or_hang(self, number: int) -> None:
        """Cause the faults that are configured for step `number`, half-way through it."""
        if self._fires("preempt", self._sim.preempt_at_step, number):
            self._sleep_half(number)
            raise PreemptedError(f"simulated: the machine was taken away during step {number}")
        tokens, limit = self._spec.trainer.micro_batch_tokens, self._sim.out_of_memory_above_tokens
        if 0 < limit < tokens:
            self._sleep_half(number)
            raise OutOfMemoryError(f"simulated: a micro-batch of {tokens} tokens, but the memory fits {limit}")
        if self._fires("crash", self._sim.crash_at_step, number):
            self._sleep_half(number)
            raise SimulatedCrashError(f"simulated: the process died during step {number}")
        if self._fires("hang", self._sim.hang_at_step, number):
            while True:
                self._clock.sleep_ns(HANG_SLICE_NS)
                time.sleep(0.002)  # the clock does not end the hang: leave the core to other processes

    def _sleep_half(self, number: int) -> None:
        self._clock.sleep_ns(curves.step_ns(self._spec, number, self._spec.completions_per_step) // 2)

    def _fires(self, fault: str, at_step: int, number: int) -> bool:
        """Whether `fault` happens at step `number`.

        A fault that happened is recorded as a file beside the checkpoints, so that later attempts do not repeat it.
        """
        if number != at_step:
            return False
        happened = self._folder / f"fault-{fault}"
        if happened.exists() and not self._sim.faults_every_attempt:
            return False
        happened.touch()
        return True

    def _evaluation_is_due(self) -> bool:
        step, every = self._state.step, self._spec.evaluation.every_steps
        on_schedule = step in (0, self._spec.steps) or (every > 0 and step % every == 0)
        return on_schedule and self._state.evaluated_step != step

    def _evaluate(self) -> EvalReport:
        spec = self._spec
        wall_ns = curves.noisy_ns(spec, self._state.step, self._sim.seconds_per_evaluation, purpose=6)
        self._clock.sleep_ns(wall_ns)
        results, length, truncated = curves.evaluate(spec, self._state)
        self._state = dataclasses.replace(self._state, evaluated_step=self._state.step)
        phases = {"evaluation": wall_ns * spec.cards}
        return EvalReport(self._state.step, self._state.step, wall_ns, phases, results, length, truncated)

    def _checkpoint_is_due(self) -> bool:
        step, every = self._state.step, self._spec.trainer.checkpoint_every_steps
        return step == self._spec.steps or (every > 0 and step % every == 0)

    def _write_checkpoint(self) -> CheckpointWritten:
        """Write a folder for the current step, its marker last. Not synced to disk: no real work can be lost."""
        spec = self._spec
        wall_ns = curves.noisy_ns(spec, self._state.step, self._sim.seconds_per_checkpoint, purpose=7)
        self._clock.sleep_ns(wall_ns)
        folder = self._folder / f"step-{self._state.step:06d}"
        folder.mkdir(exist_ok=True)
        text = json.dumps({"trial_id": spec.trial_id, "state": to_json(self._state)})
        (folder / "state.json.new").write_text(text)
        (folder / "state.json.new").replace(folder / "state.json")
        (folder / MARKER).touch()
        self._saved = self._state
        phases = {"checkpoint": wall_ns * spec.cards}
        return CheckpointWritten(self._state.step, str(folder), len(text), wall_ns, phases)


def _phases(card_ns: int) -> Mapping[str, int]:
    """Card-nanoseconds of a step by phase. `other` is the remainder, so that the phases add up to `card_ns`."""
    shares = {"rollout": 45, "reward": 3, "logprob": 12, "train": 35, "sync": 3}
    parts = {phase: card_ns * percent // 100 for phase, percent in shares.items()}
    return {**parts, "other": card_ns - sum(parts.values())}


def _checked(spec: TrialSpec) -> TrialSpec:
    if spec.steps < 1 or spec.prompts_per_step < 1 or spec.cards < 1:
        raise ConfigurationError(
            f"steps={spec.steps}, prompts_per_step={spec.prompts_per_step}, cards={spec.cards}: each must be at least 1"
        )
    if spec.group_size < 2:
        raise ConfigurationError(
            f"group_size={spec.group_size}: an advantage compares the completions of one prompt; use at least 2"
        )
    return spec


def _read_checkpoint(folder: Path, spec: TrialSpec) -> State:
    if not (folder / MARKER).exists():
        raise ConfigurationError(f"{folder} is not a complete checkpoint: it has no file {MARKER}")
    data = json.loads((folder / "state.json").read_text())
    if data["trial_id"] != spec.trial_id:
        raise ConfigurationError(f"{folder} belongs to trial {data['trial_id']}, not to {spec.trial_id}")
    state = from_json(State, data["state"])
    if state.step > spec.steps or not math.isfinite(state.lr):
        raise ConfigurationError(
            f"{folder} was written at step {state.step} with lr {state.lr}; this trial has {spec.steps} steps and "
            "needs a finite lr"
        )
    return state
