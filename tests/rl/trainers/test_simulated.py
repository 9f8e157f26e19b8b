"""The simulated trainer: plausible curves, durations on a simulated clock, and faults at the configured steps.

Also tests `rl.trainers.simulated_curves`, through the trainer.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from rl.codec import to_json
from rl.spec import (
    AlgorithmSpec,
    CheckpointWritten,
    ConfigurationError,
    EvalReport,
    EvaluationSpec,
    Event,
    ModelSpec,
    OutOfMemoryError,
    PreemptedError,
    RolloutSpec,
    SimulatedSpec,
    StepReport,
    TaskSpec,
    TrainerSpec,
    TrialSpec,
)
from rl.tasks.evaluation import average_at_k
from rl.trainers.simulated import SimulatedCrashError, SimulatedTrainer, VirtualClock


def spec(folder: Path, simulated: SimulatedSpec | None = None, **changes: Any) -> TrialSpec:
    base = TrialSpec(
        trial_id="t0",
        attempt=1,
        seed=0,
        steps=20,
        prompts_per_step=8,
        group_size=8,
        cards=1,
        model=ModelSpec("tiny"),
        task=TaskSpec("reasoning_gym", "chain_sum"),
        algorithm=AlgorithmSpec("grpo", lr=2e-5),
        rollout=RolloutSpec("simulated"),
        evaluation=EvaluationSpec(),
        trainer=TrainerSpec("simulated", checkpoint_every_steps=5, simulated=simulated or SimulatedSpec()),
        checkpoint_dir=str(folder),
        cache_dir=str(folder),
    )
    return dataclasses.replace(base, **changes)


def run(trial: TrialSpec, checkpoint: Path | None = None, **how: Any) -> list[Event]:
    return list(SimulatedTrainer(**how).run(trial, checkpoint))


def run_until(error: type[Exception], trial: TrialSpec, checkpoint: Path | None = None, **how: Any) -> list[Event]:
    """The messages before the attempt raises `error`."""
    events: list[Event] = []

    def collect() -> None:
        for event in SimulatedTrainer(**how).run(trial, checkpoint):
            events.append(event)

    with pytest.raises(error):
        collect()
    return events


def steps(events: list[Event]) -> list[StepReport]:
    return [e for e in events if isinstance(e, StepReport)]


def checkpoint_of(events: list[Event]) -> Path:
    return Path([e for e in events if isinstance(e, CheckpointWritten)][-1].path)


def mean_acc(reports: list[StepReport]) -> float:
    return sum(r.curves.acc.total for r in reports) / sum(r.curves.acc.count for r in reports)


# -- curves -----------------------------------------------------------------------------------------------------------


def test_accuracy_rises_from_acc_start_to_acc_final(tmp_path: Path) -> None:
    sim = SimulatedSpec(acc_start=0.1, acc_final=0.9, steps_to_half=20)
    reports = steps(run(spec(tmp_path, sim, steps=200)))
    assert mean_acc(reports[:5]) < 0.25
    assert 0.35 < mean_acc(reports[15:25]) < 0.65
    assert mean_acc(reports[-20:]) > 0.8


def test_evaluation_rises_by_more_than_its_interval(tmp_path: Path) -> None:
    before, after = (average_at_k(e.results) for e in run(spec(tmp_path, steps=200)) if isinstance(e, EvalReport))
    assert after.low > before.high


def test_more_completions_per_step_learn_faster(tmp_path: Path) -> None:
    small = mean_acc(steps(run(spec(tmp_path / "a"))))
    large = mean_acc(steps(run(spec(tmp_path / "b", prompts_per_step=64))))
    assert large > small + 0.05


def test_clip_fraction_grows_with_the_learning_rate(tmp_path: Path) -> None:
    clip = []
    for lr in (5e-6, 2e-5, 1e-4):
        last = steps(run(spec(tmp_path / str(lr), algorithm=AlgorithmSpec("grpo", lr=lr))))[-1].curves.clip_frac
        assert last is not None
        clip.append(last.value or 0.0)
    assert clip[0] < 0.02 < clip[1] < 0.1
    assert clip[2] > 0.2


def test_entropy_falls_as_accuracy_rises(tmp_path: Path) -> None:
    reports = steps(run(spec(tmp_path, steps=200)))
    first, last = (r.curves.over_updates("entropy") for r in (reports[0], reports[-1]))
    assert first is not None
    assert last is not None
    assert (last.value or 0) < 0.7 * (first.value or 0)


def test_clip_fraction_is_undefined_with_one_update_per_rollout(tmp_path: Path) -> None:
    trial = spec(tmp_path, algorithm=AlgorithmSpec("grpo", updates_per_rollout=1))
    assert all(r.curves.clip_frac is None for r in steps(run(trial)))


def test_kl_curve_is_defined_only_with_a_reference(tmp_path: Path) -> None:
    without, with_kl = spec(tmp_path / "a"), spec(tmp_path / "b", algorithm=AlgorithmSpec("grpo", kl_coef=0.01))
    assert steps(run(without))[-1].curves.over_updates("kl") is None
    kl = steps(run(with_kl))[-1].curves.over_updates("kl")
    assert kl is not None
    assert (kl.value or 0) > 0


def test_dynamic_sampling_draws_more_prompts_and_trains_on_groups_with_variance(tmp_path: Path) -> None:
    algorithm = AlgorithmSpec("dapo", drop_zero_variance_groups=True)
    sim = SimulatedSpec(acc_start=0.05)
    reports = steps(run(spec(tmp_path, sim, algorithm=algorithm)))
    assert sum(r.prompts.filtered for r in reports) > 0
    for r in reports:
        drawn = r.prompts.trained + r.prompts.filtered
        assert r.prompts.trained <= 8 <= drawn
        assert r.curves.acc.count == drawn * 8
        assert r.curves.zero_std.total <= r.prompts.filtered
        assert r.curves.reward.count == drawn * 8


def test_format_reward_is_not_part_of_accuracy(tmp_path: Path) -> None:
    task = TaskSpec("reasoning_gym", "chain_sum", format_pattern="x", reward_weights={"correct": 1.0, "format": 0.1})
    for r in steps(run(spec(tmp_path, task=task))):
        expected = r.curves.rewards["correct"].total + 0.1 * r.curves.rewards["format"].total
        assert r.curves.reward.total == pytest.approx(expected)
        assert r.curves.acc == r.curves.rewards["correct"]


def test_every_update_of_a_step_follows_the_schedule(tmp_path: Path) -> None:
    algorithm = AlgorithmSpec("grpo", lr=1e-4, lr_schedule="linear", lr_warmup_updates=2, lr_final_frac=0.1)
    reports = steps(run(spec(tmp_path, algorithm=algorithm)))
    assert [u.lr for u in reports[0].curves.updates] == [5e-5, 1e-4]
    assert reports[-1].lr == pytest.approx(1e-5)


# -- durations --------------------------------------------------------------------------------------------------------


def test_clock_receives_exactly_the_durations_of_the_messages(tmp_path: Path) -> None:
    clock = VirtualClock()
    events = run(spec(tmp_path, cards=2), clock=clock)
    card_ns = sum(sum(getattr(e, "phase_card_ns", {}).values()) for e in events)
    assert card_ns == 2 * clock.now_ns
    assert clock.now_ns > 60e9


def test_durations_equal_those_of_the_spec_without_noise(tmp_path: Path) -> None:
    sim = SimulatedSpec(
        startup_seconds=3.0,
        seconds_per_completion=0.5,
        seconds_per_step=2.0,
        seconds_per_evaluation=7.0,
        seconds_per_checkpoint=4.0,
        noise_frac=0.0,
    )
    events = run(spec(tmp_path, sim, cards=4, steps=1))
    seconds = {type(e).__name__: sum(getattr(e, "phase_card_ns", {}).values()) / 4e9 for e in events}
    assert seconds == {
        "Started": 3.0,
        "EvalReport": 7.0,
        "StepReport": 2.0 + 0.5 * 64 / 4,
        "CheckpointWritten": 4.0,
        "Finished": 0.0,
    }


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"), [("crash_at_step", SimulatedCrashError), ("preempt_at_step", PreemptedError)]
)
def test_fault_happens_once_at_its_step_and_the_next_attempt_passes_it(
    tmp_path: Path, fault: str, error: type[Exception]
) -> None:
    trial = spec(tmp_path, dataclasses.replace(SimulatedSpec(), **{fault: 13}))
    clock = VirtualClock()
    first = run_until(error, trial, clock=clock)
    assert steps(first)[-1].step == 12
    assert clock.now_ns > sum(sum(getattr(e, "phase_card_ns", {}).values()) for e in first)
    second = run(dataclasses.replace(trial, attempt=2), checkpoint_of(first))
    assert [r.step for r in steps(second)][:4] == [11, 12, 13, 14]
    uninterrupted = steps(run(spec(tmp_path / "other")))
    assert [to_json(r.curves) for r in steps(second)] == [to_json(r.curves) for r in uninterrupted[10:]]


def test_fault_with_faults_every_attempt_happens_again(tmp_path: Path) -> None:
    trial = spec(tmp_path, SimulatedSpec(crash_at_step=7, faults_every_attempt=True))
    first = run_until(SimulatedCrashError, trial)
    second = run_until(SimulatedCrashError, dataclasses.replace(trial, attempt=2), checkpoint_of(first))
    assert [r.step for r in steps(second)] == [6]


def test_fault_happens_in_the_first_attempt_that_reaches_its_step(tmp_path: Path) -> None:
    trial = spec(tmp_path, SimulatedSpec(preempt_at_step=3, crash_at_step=7))
    run_until(PreemptedError, trial)
    second = run_until(SimulatedCrashError, dataclasses.replace(trial, attempt=2))
    assert steps(second)[-1].step == 6


class Watchdog(VirtualClock):
    """A clock that ends an attempt after ten minutes without a message, as the clock of a driver does."""

    def __init__(self) -> None:
        super().__init__()
        self.last_message_ns = 0

    def sleep_ns(self, duration_ns: int) -> None:
        super().sleep_ns(duration_ns)
        if self.now_ns - self.last_message_ns > 600e9:
            raise TimeoutError("no message for ten minutes")


def test_hang_yields_no_message_until_the_clock_ends_it(tmp_path: Path) -> None:
    clock = Watchdog()
    events: list[Event] = []

    def collect() -> None:
        for event in SimulatedTrainer(clock).run(spec(tmp_path, SimulatedSpec(hang_at_step=4)), None):
            events.append(event)
            clock.last_message_ns = clock.now_ns

    with pytest.raises(TimeoutError, match="ten minutes"):
        collect()
    assert steps(events)[-1].step == 3
    assert 600e9 < clock.now_ns - clock.last_message_ns < 620e9


def test_micro_batch_above_the_memory_limit_runs_out_of_memory_in_every_attempt(tmp_path: Path) -> None:
    trial = spec(tmp_path, SimulatedSpec(out_of_memory_above_tokens=1024))
    for attempt in (1, 2):
        events = run_until(OutOfMemoryError, dataclasses.replace(trial, attempt=attempt))
        assert steps(events) == []
    smaller = dataclasses.replace(trial.trainer, micro_batch_tokens=1024)
    assert len(steps(run(dataclasses.replace(trial, trainer=smaller)))) == 20


def test_divergence_shows_in_every_curve_with_finite_values(tmp_path: Path) -> None:
    reports = steps(run(spec(tmp_path, SimulatedSpec(acc_start=0.6, diverge_at_step=10))))
    before, after = reports[8], reports[-1]
    assert mean_acc(reports[-5:]) < 0.05 < mean_acc(reports[:9])
    for update in after.curves.updates:
        assert update.grad_norm > 100 * before.curves.updates[0].grad_norm
        assert math.isfinite(update.grad_norm)
        assert math.isfinite(update.loss)
        assert (update.entropy.value or 0) < 0.1
    assert after.curves.clip_frac is not None
    assert (after.curves.clip_frac.value or 0) > 0.1


def test_divergence_can_give_nan(tmp_path: Path) -> None:
    reports = steps(run(spec(tmp_path, SimulatedSpec(diverge_at_step=10)), nan_on_divergence=True))
    assert math.isfinite(reports[8].curves.updates[0].loss)
    assert math.isnan(reports[9].curves.updates[0].loss)
    assert math.isnan(reports[9].curves.updates[1].grad_norm)


def test_trial_that_resumes_after_divergence_is_still_diverged(tmp_path: Path) -> None:
    trial = spec(tmp_path, SimulatedSpec(acc_start=0.6, diverge_at_step=10))
    first = run(trial)
    at_15 = tmp_path / "step-000015"
    assert not at_15.exists()  # keep_checkpoints is 1
    second = run(dataclasses.replace(trial, steps=25), checkpoint_of(first))
    assert mean_acc(steps(second)) < 0.05


# -- invalid input ----------------------------------------------------------------------------------------------------


def test_checkpoint_of_another_trial_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(run(spec(tmp_path)))
    with pytest.raises(ConfigurationError, match="belongs to trial t0, not to t1"):
        run(spec(tmp_path, trial_id="t1"), checkpoint)


def test_checkpoint_after_the_last_step_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(run(spec(tmp_path)))
    with pytest.raises(ConfigurationError, match=r"was written at step 20 .* this trial has 10 steps"):
        run(spec(tmp_path, steps=10), checkpoint)


@pytest.mark.parametrize("change", [{"steps": 0}, {"prompts_per_step": 0}, {"cards": 0}, {"group_size": 1}])
def test_trial_without_steps_prompts_cards_or_groups_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        run(spec(tmp_path, **change))
