"""A `Trainer` without a model: parametric curves and times on a fake clock, seeded, with faults on demand.

For trying whatever stands around a trainer (executors, gates, forecasts, the ledger) in milliseconds. It tells the
clock how long everything takes and never waits itself; only a hang blocks for real where no clock ends it.
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
HANG_SLICE_NS = 10_000_000_000


class Clock(Protocol):
    """What the trainer tells how long its work takes. May raise: the error ends the attempt, as a kill would."""

    def sleep_ns(self, duration_ns: int) -> None: ...


class VirtualClock:
    """Counts what it is told, and waits for nothing."""

    def __init__(self) -> None:
        self.now_ns = 0

    def sleep_ns(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


class SimulatedCrashError(RuntimeError):
    """The crash that `crash_at_step` asks for."""


class SimulatedTrainer:
    """Runs the spec's parametric curves.

    A hang yields nothing any more and tells the clock of ten more seconds, over and over: a driver with a clock of its
    own sees the time pass without a word, and ends the attempt by raising from `sleep_ns`. Without one, the calling
    thread is stuck until its process is ended.
    """

    def __init__(self, clock: Clock | None = None, nan_on_divergence: bool = False) -> None:
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
    def __init__(self, spec: TrialSpec, checkpoint: Path | None, clock: Clock, nan: bool) -> None:
        self._spec = _checked(spec)
        self._sim = spec.trainer.simulated
        self._clock = clock
        self._nan = nan
        self._checkpoint = checkpoint
        self._state = _read_checkpoint(checkpoint, spec) if checkpoint else State(lr=spec.algorithm.lr)
        self._folder = Path(spec.checkpoint_dir)
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> Generator[Event, Command | None, None]:
        try:
            yield from self._say(self._started())
            if self._evaluation_is_due():
                yield from self._say(self._evaluate())
            while self._state.step < self._spec.steps:
                yield from self._say(self._step())
                if self._checkpoint_is_due():
                    yield from self._save()
                if self._evaluation_is_due():
                    yield from self._say(self._evaluate())
        except _StoppedError as stop:
            yield self._write_checkpoint()
            self._prune()
            yield Finished(self._state.step, self._state.step, stop.command)
        else:
            yield Finished(self._state.step, self._state.step)

    def _say(self, event: Event) -> Generator[Event, Command | None, None]:
        """Say it, and do what the answer asks for."""
        command = yield event
        if isinstance(event, CheckpointWritten):
            # Only now: had the driver died without hearing of it, it would resume from the one before.
            self._prune()
        if isinstance(command, Checkpoint):
            yield from self._save()
        if isinstance(command, SetLr):
            self._state = dataclasses.replace(self._state, lr=command.lr)
        if isinstance(command, Stop):
            raise _StoppedError(command)

    def _save(self) -> Generator[Event, Command | None, None]:
        yield from self._say(self._write_checkpoint())

    def _prune(self) -> None:
        """Keep the newest checkpoints only."""
        whole = sorted(p.parent for p in self._folder.glob(f"step-*/{MARKER}"))
        for old in whole[: max(0, len(whole) - self._spec.trainer.keep_checkpoints)]:
            (old / MARKER).unlink()  # first: what is half removed must not look whole
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
        learnt = 0.0 if state.diverged_steps else curves.learnt_in_a_step(spec, lrs[-1])
        self._state = dataclasses.replace(state, step=number, progress=state.progress + learnt)
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
        """If step `number` is to, in the middle of it."""
        if self._fires("preempt", self._sim.preempt_at_step, number):
            self._sleep_half(number)
            raise PreemptedError(f"simulated: the machine was taken away during step {number}")
        tokens, most = self._spec.trainer.micro_batch_tokens, self._sim.out_of_memory_above_tokens
        if 0 < most < tokens:
            self._sleep_half(number)
            raise OutOfMemoryError(f"simulated: a micro-batch of {tokens} tokens, where {most} fit")
        if self._fires("crash", self._sim.crash_at_step, number):
            self._sleep_half(number)
            raise SimulatedCrashError(f"simulated: the process died during step {number}")
        if self._fires("hang", self._sim.hang_at_step, number):
            while True:
                self._clock.sleep_ns(HANG_SLICE_NS)
                time.sleep(0.002)  # no clock has ended it: leave the core to others

    def _sleep_half(self, number: int) -> None:
        self._clock.sleep_ns(curves.step_ns(self._spec, number, self._spec.completions_per_step) // 2)

    def _fires(self, fault: str, at_step: int, number: int) -> bool:
        """Whether `fault` happens at step `number`; that it did is noted beside the checkpoints, for later attempts."""
        if number != at_step:
            return False
        note = self._folder / f"fault-{fault}"
        if note.exists() and not self._sim.faults_every_attempt:
            return False
        note.touch()
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
        """A folder per step; the marker comes last. Not synced: it guards no real work."""
        spec = self._spec
        wall_ns = curves.noisy_ns(spec, self._state.step, self._sim.seconds_per_checkpoint, purpose=7)
        self._clock.sleep_ns(wall_ns)
        folder = self._folder / f"step-{self._state.step:06d}"
        folder.mkdir(exist_ok=True)
        text = json.dumps({"trial_id": spec.trial_id, "state": to_json(self._state)})
        (folder / "state.json.new").write_text(text)
        (folder / "state.json.new").replace(folder / "state.json")
        (folder / MARKER).touch()
        phases = {"checkpoint": wall_ns * spec.cards}
        return CheckpointWritten(self._state.step, str(folder), len(text), wall_ns, phases)


def _phases(card_ns: int) -> Mapping[str, int]:
    """A step's card-time by phase; `other` is what remains, so that they add up."""
    shares = {"rollout": 45, "reward": 3, "logprob": 12, "train": 35, "sync": 3}
    parts = {phase: card_ns * percent // 100 for phase, percent in shares.items()}
    return {**parts, "other": card_ns - sum(parts.values())}


def _checked(spec: TrialSpec) -> TrialSpec:
    if spec.steps < 1 or spec.prompts_per_step < 1 or spec.cards < 1:
        raise ConfigurationError(
            f"steps={spec.steps}, prompts_per_step={spec.prompts_per_step}, cards={spec.cards}: each is 1 or more"
        )
    if spec.group_size < 2:
        raise ConfigurationError(f"group_size={spec.group_size}: a group of one has no advantage; 2 or more")
    return spec


def _read_checkpoint(folder: Path, spec: TrialSpec) -> State:
    if not (folder / MARKER).exists():
        raise ConfigurationError(f"{folder} is not a whole checkpoint: it has no {MARKER}")
    data = json.loads((folder / "state.json").read_text())
    if data["trial_id"] != spec.trial_id:
        raise ConfigurationError(f"{folder} belongs to trial {data['trial_id']}, not to {spec.trial_id}")
    state = from_json(State, data["state"])
    if state.step > spec.steps or not math.isfinite(state.lr):
        raise ConfigurationError(f"{folder} is at step {state.step} of {spec.steps} with lr {state.lr}: nothing to do")
    return state
