"""The conformance suite of trainers: `rl.spec.Trainer`, run against every trainer.

To test a new trainer, add it to `TRAINERS`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl.codec import message_from_json, to_json
from rl.spec import (
    PHASES,
    AlgorithmSpec,
    Checkpoint,
    CheckpointWritten,
    Command,
    ConfigurationError,
    EvalReport,
    EvaluationSpec,
    Event,
    Finished,
    ModelSpec,
    RolloutSpec,
    SetLr,
    Started,
    StepReport,
    Stop,
    StopKind,
    TaskSpec,
    Trainer,
    TrainerSpec,
    TrialSpec,
)
from rl.trainers import create_trainer

STEPS = 4
ENOUGH = Stop(StopKind.INTERRUPTED, "enough")
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


TRAINERS: dict[str, Callable[[], Trainer]] = {
    "simulated": lambda: create_trainer("simulated"),
    "native": lambda: create_trainer("native"),
}


@dataclasses.dataclass(frozen=True)
class Bench:
    """The trainer under test, and specs that it can run in seconds."""

    name: str
    create: Callable[[], Trainer]
    cache_dir: Path
    uninterrupted: list[Event]
    """All messages of a run without commands."""

    def spec(self, folder: Path, **changes: object) -> TrialSpec:
        return dataclasses.replace(_spec(self.name, self.cache_dir, folder), **changes)  # type: ignore[arg-type]

    def run(
        self, spec: TrialSpec, checkpoint: Path | None = None, answer: Callable[[Event], Command | None] | None = None
    ) -> Iterator[Event]:
        return messages_of(self.create(), spec, checkpoint, answer or (lambda event: None))


def _spec(name: str, cache_dir: Path, folder: Path) -> TrialSpec:
    return TrialSpec(
        trial_id="t0",
        attempt=1,
        seed=3,
        steps=STEPS,
        prompts_per_step=4,
        group_size=4,
        cards=1,
        model=ModelSpec("tiny", chat_template=False),
        task=TaskSpec("reasoning_gym", "chain_sum", params=SUMS),
        algorithm=AlgorithmSpec("grpo", lr=1e-4),
        rollout=RolloutSpec("simulated" if name == "simulated" else "transformers", max_completion_tokens=8),
        evaluation=EvaluationSpec(samples_per_question=2),
        trainer=TrainerSpec(
            name="simulated" if name == "simulated" else "native",
            device="cpu",
            precision="fp32",
            threads=1,
            checkpoint_every_steps=2,
            keep_checkpoints=2,
        ),
        checkpoint_dir=str(folder),
        cache_dir=str(cache_dir),
    )


def messages_of(
    trainer: Trainer, spec: TrialSpec, checkpoint: Path | None, answer: Callable[[Event], Command | None]
) -> Iterator[Event]:
    """The messages of an attempt. The trainer receives the command that `answer` returns for each message."""
    attempt = trainer.run(spec, checkpoint)
    command: Command | None = None
    while True:
        try:
            event = attempt.send(command)
        except StopIteration:
            return
        yield event
        command = answer(event)


@pytest.fixture(scope="module", params=list(TRAINERS))
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Bench:
    name, folder = request.param, tmp_path_factory.mktemp("uninterrupted")
    events = list(messages_of(TRAINERS[name](), _spec(name, model_cache, folder), None, lambda event: None))
    return Bench(name, TRAINERS[name], model_cache, events)


def steps_of(events: list[Event]) -> list[StepReport]:
    return [e for e in events if isinstance(e, StepReport)]


def result_of(report: StepReport) -> dict[str, object]:
    """The report without durations."""
    plain = to_json(report)
    return {k: v for k, v in plain.items() if k not in ("wall_ns", "phase_card_ns", "replay")}


def test_first_message_is_started_and_last_message_is_finished(bench: Bench) -> None:
    events = bench.uninterrupted
    assert [i for i, e in enumerate(events) if isinstance(e, Started)] == [0]
    assert [i for i, e in enumerate(events) if isinstance(e, Finished)] == [len(events) - 1]
    started, finished = events[0], events[-1]
    assert isinstance(started, Started)
    assert (started.step, started.restored_from, started.cards, started.eval_questions) == (0, None, 1, 64)
    assert isinstance(finished, Finished)
    assert finished.completed
    assert finished.step == STEPS


def test_steps_count_from_one_without_gaps(bench: Bench) -> None:
    assert [r.step for r in steps_of(bench.uninterrupted)] == list(range(1, STEPS + 1))


def test_phases_add_up_to_wall_time_times_cards(bench: Bench) -> None:
    for event in bench.uninterrupted:
        phases = getattr(event, "phase_card_ns", {})
        assert set(phases) <= set(PHASES)
        assert all(isinstance(ns, int) and ns >= 0 for ns in phases.values())
        if isinstance(event, StepReport | EvalReport | CheckpointWritten):
            assert sum(phases.values()) == event.wall_ns * 1


def test_every_prompt_is_counted_once_and_completions_are_prompts_times_group_size(bench: Bench) -> None:
    for report in steps_of(bench.uninterrupted):
        p = report.prompts
        assert p.trained + p.filtered + p.failed == 4
        assert report.curves.acc.count == (p.trained + p.filtered) * 4
        assert report.curves.response_length.total == report.tokens.completion
        assert 0 < report.tokens.loss <= report.tokens.completion
        assert report.tokens.prompt > 0


def test_every_message_is_unchanged_by_json(bench: Bench) -> None:
    for event in bench.uninterrupted:
        assert message_from_json(json.loads(json.dumps(to_json(event)))) == event


def test_evaluations_before_and_after_training_use_the_same_questions(bench: Bench) -> None:
    reports = [e for e in bench.uninterrupted if isinstance(e, EvalReport)]
    assert [r.step for r in reports] == [0, STEPS]
    before, after = ([q.question_id for q in r.results] for r in reports)
    assert before == after
    assert len(set(before)) == 64
    assert all(q.samples == 2 and 0 <= q.correct <= 2 for r in reports for q in r.results)
    first_step = next(i for i, e in enumerate(bench.uninterrupted) if isinstance(e, StepReport))
    assert bench.uninterrupted.index(reports[0]) < first_step


def test_policy_version_advances_with_every_step(bench: Bench) -> None:
    versions = [r.policy_version for r in steps_of(bench.uninterrupted)]
    assert all(later > earlier for earlier, later in itertools.pairwise(versions))
    assert all(r.staleness >= 0 for r in steps_of(bench.uninterrupted))


def test_clip_fraction_is_undefined_in_the_first_update_and_defined_in_the_last(bench: Bench) -> None:
    for report in steps_of(bench.uninterrupted):
        first, last = report.curves.updates
        assert first.clip_frac is None
        assert first.ratio.value == pytest.approx(1.0, abs=1e-5)
        assert last.clip_frac is not None
        assert last.clip_frac.value is not None
        assert 0.0 <= last.clip_frac.value <= 1.0
        assert first.ratio.count + last.ratio.count == report.tokens.loss


def test_curves_are_finite_and_not_negative(bench: Bench) -> None:
    for report in steps_of(bench.uninterrupted):
        c = report.curves
        for mean in (c.reward, c.acc, c.response_length, c.truncated, c.zero_std, c.logp_diff, c.mismatch_kl):
            assert mean.value is not None
            assert math.isfinite(mean.value)
            assert mean.value >= 0.0
        assert c.response_length_min <= (c.response_length.value or 0) <= c.response_length_max
        for update in c.updates:
            assert math.isfinite(update.loss)
            assert math.isfinite(update.grad_norm)
            assert (update.entropy.value or 0) > 0
            assert (update.approx_kl.value or 0) >= 0


def test_checkpoints_are_written_on_schedule_and_after_the_last_step(bench: Bench) -> None:
    written = [e for e in bench.uninterrupted if isinstance(e, CheckpointWritten)]
    assert {w.step for w in written} == {2, STEPS}
    for one in written:
        assert Path(one.path).is_dir()
        assert one.size_bytes > 0


def test_same_seed_gives_the_same_steps(bench: Bench, tmp_path: Path) -> None:
    again = steps_of(list(bench.run(bench.spec(tmp_path))))
    assert [result_of(r) for r in again] == [result_of(r) for r in steps_of(bench.uninterrupted)]


def test_another_seed_gives_different_steps(bench: Bench, tmp_path: Path) -> None:
    other = steps_of(list(bench.run(bench.spec(tmp_path, seed=4))))
    assert result_of(other[0]) != result_of(steps_of(bench.uninterrupted)[0])


@pytest.mark.parametrize("moment", [Started, EvalReport, StepReport, CheckpointWritten])
def test_stop_after_any_message_is_followed_by_a_checkpoint_and_finished(
    bench: Bench, tmp_path: Path, moment: type
) -> None:
    events = list(bench.run(bench.spec(tmp_path), answer=lambda e: ENOUGH if isinstance(e, moment) else None))
    stopped_at = next(i for i, e in enumerate(events) if isinstance(e, moment))
    assert [type(e) for e in events[stopped_at + 1 :]] in ([CheckpointWritten, Finished], [Finished])
    *_, checkpoint = (e for e in events if isinstance(e, CheckpointWritten))
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert not finished.completed
    assert finished.stopped == ENOUGH
    assert finished.step == checkpoint.step
    assert Path(checkpoint.path).is_dir()


def test_attempt_that_resumes_after_a_stop_gives_the_uninterrupted_result(bench: Bench, tmp_path: Path) -> None:
    def stop_at_three(event: Event) -> Command | None:
        return ENOUGH if isinstance(event, StepReport) and event.step == 3 else None

    spec = bench.spec(tmp_path)
    first = list(bench.run(spec, answer=stop_at_three))
    checkpoint = first[-2]
    assert isinstance(checkpoint, CheckpointWritten)
    second = list(bench.run(dataclasses.replace(spec, attempt=2), Path(checkpoint.path)))
    started = second[0]
    assert isinstance(started, Started)
    assert started.step == 3
    assert started.restored_from == checkpoint.path
    whole = steps_of(first) + steps_of(second)
    assert [result_of(r) for r in whole] == [result_of(r) for r in steps_of(bench.uninterrupted)]
    last = [e for e in second if isinstance(e, EvalReport)]
    expected = [e for e in bench.uninterrupted if isinstance(e, EvalReport) and e.step == STEPS]
    assert [e.results for e in last] == [e.results for e in expected]


def test_steps_repeated_after_a_crash_are_equal(bench: Bench, tmp_path: Path) -> None:
    spec = bench.spec(tmp_path)
    attempt = bench.create().run(spec, None)
    events: list[Event] = []
    while not (events and isinstance(events[-1], StepReport) and events[-1].step == 3):
        events.append(next(attempt))
    attempt.close()  # a crash after step 3; the last checkpoint is that of step 2
    checkpoint = next(e for e in events if isinstance(e, CheckpointWritten))
    second = steps_of(list(bench.run(dataclasses.replace(spec, attempt=2), Path(checkpoint.path))))
    assert [r.step for r in second] == [3, 4]
    assert [result_of(r) for r in second] == [result_of(r) for r in steps_of(bench.uninterrupted)[2:]]


def test_set_lr_applies_from_the_next_update_on_and_after_a_resume(bench: Bench, tmp_path: Path) -> None:
    def set_at_one(event: Event) -> Command | None:
        return SetLr(5e-5) if isinstance(event, StepReport) and event.step == 1 else None

    spec = bench.spec(tmp_path)
    events = list(bench.run(spec, answer=set_at_one))
    assert [r.lr for r in steps_of(events)] == [1e-4] + [5e-5] * (STEPS - 1)
    assert [[u.lr for u in r.curves.updates] for r in steps_of(events)][1] == [5e-5, 5e-5]
    checkpoint = next(e for e in events if isinstance(e, CheckpointWritten) and e.step == 2)
    resumed = steps_of(list(bench.run(dataclasses.replace(spec, attempt=2), Path(checkpoint.path))))
    assert [r.lr for r in resumed] == [5e-5] * (STEPS - 2)


def test_checkpoint_command_writes_a_checkpoint_and_training_continues(bench: Bench, tmp_path: Path) -> None:
    def checkpoint_at_one(event: Event) -> Command | None:
        return Checkpoint() if isinstance(event, StepReport) and event.step == 1 else None

    events = list(bench.run(bench.spec(tmp_path), answer=checkpoint_at_one))
    index = next(i for i, e in enumerate(events) if isinstance(e, StepReport) and e.step == 1)
    written = events[index + 1]
    assert isinstance(written, CheckpointWritten)
    assert written.step == 1
    assert [result_of(r) for r in steps_of(events)] == [result_of(r) for r in steps_of(bench.uninterrupted)]


def test_older_checkpoints_are_removed_after_newer_ones_are_written(bench: Bench, tmp_path: Path) -> None:
    spec = bench.spec(tmp_path)
    spec = dataclasses.replace(
        spec, trainer=dataclasses.replace(spec.trainer, checkpoint_every_steps=1, keep_checkpoints=1)
    )
    written = [e for e in bench.run(spec) if isinstance(e, CheckpointWritten)]
    assert [w.step for w in written] == list(range(1, STEPS + 1))
    assert [Path(w.path).exists() for w in written] == [False] * (STEPS - 1) + [True]


def test_previous_checkpoint_is_kept_until_the_driver_has_received_the_newer_one(bench: Bench, tmp_path: Path) -> None:
    spec = bench.spec(tmp_path)
    spec = dataclasses.replace(
        spec, trainer=dataclasses.replace(spec.trainer, checkpoint_every_steps=1, keep_checkpoints=1)
    )
    exists: list[list[bool]] = []
    written: list[Path] = []
    for event in bench.run(spec):
        if isinstance(event, CheckpointWritten):
            written.append(Path(event.path))
            exists.append([path.exists() for path in written])
    assert exists[1:] == [[False] * n + [True, True] for n in range(STEPS - 1)]


def test_resume_from_the_last_step_trains_nothing_and_finishes(bench: Bench, tmp_path: Path) -> None:
    spec = bench.spec(tmp_path)
    last: list[CheckpointWritten] = []
    for event in bench.run(spec):
        if isinstance(event, CheckpointWritten):
            last = [event]
        if last and last[0].step == STEPS:
            break  # a crash between the last checkpoint and `Finished`
    events = list(bench.run(dataclasses.replace(spec, attempt=2), Path(last[0].path)))
    assert steps_of(events) == []
    assert isinstance(events[-1], Finished)
    assert events[-1].completed


def test_group_of_one_is_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="group_size"):
        list(bench.run(bench.spec(tmp_path, group_size=1)))


def test_incomplete_checkpoint_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "step-000002").mkdir()
    with pytest.raises(ConfigurationError, match="step-000002"):
        list(bench.run(bench.spec(tmp_path), tmp_path / "step-000002"))
