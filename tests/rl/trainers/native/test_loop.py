"""The GRPO loop with real components and the simulated rollout engine: groups, curves, restarts and checkpoints.

The order of messages, commands and resume are tested in tests/rl/trainers/test_conformance.py and test_trainer.py.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl.deadline import DeadlineError
from rl.phases import PhaseClock
from rl.policy import Policy
from rl.ranks import SingleRank
from rl.rollout import create_engine
from rl.rollout.simulated_engine import SimulatedEngine
from rl.spec import (
    AlgorithmSpec,
    Checkpoint,
    CheckpointWritten,
    Command,
    EvalReport,
    EvaluationSpec,
    Event,
    ModelSpec,
    RoleRestarted,
    RolloutSpec,
    StepReport,
    TaskSpec,
    TrainerSpec,
    TrialSpec,
)
from rl.tasks import PromptSampler, Question, Task
from rl.tasks.rewards import Scorer
from rl.trainers.native import loop
from rl.trainers.native.learner import Learner
from rl.trainers.native.loop import Components, Loop
from tests.rl.random_llama import random_llama_policy

VOCABULARY = 12
LIMIT = 6
"""rollout.max_completion_tokens"""
ALL_WRONG = tuple(Question(f"q{i}", ({"role": "user", "content": str(i)},), answer="no such answer") for i in range(9))
NEVER_TOKEN_7 = r"^(?!.*t7).*$"
"""Format pattern that splits completions at random: it matches those without token 7."""


def make_policy() -> Policy:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}))
    policy = random_llama_policy(VOCABULARY, initializer_range=0.2)
    return dataclasses.replace(policy, tokenizer=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t1"))


def make_trial(folder: Path, **changes: Any) -> TrialSpec:
    spec = TrialSpec(
        trial_id="t0",
        attempt=1,
        seed=0,
        steps=1,
        prompts_per_step=3,
        group_size=4,
        cards=1,
        model=ModelSpec("tiny"),
        task=TaskSpec("file", "t", scorer="exact", format_pattern=NEVER_TOKEN_7),
        algorithm=AlgorithmSpec("grpo", lr=1e-3),
        rollout=RolloutSpec("simulated", max_completion_tokens=LIMIT),
        evaluation=EvaluationSpec(samples_per_question=2),
        trainer=TrainerSpec(device="cpu", precision="fp32", checkpoint_every_steps=0),
        checkpoint_dir=str(folder),
        cache_dir=str(folder),
    )
    for name in ("task", "algorithm", "evaluation", "trainer"):
        if isinstance(nested := changes.get(name), dict):
            changes[name] = dataclasses.replace(getattr(spec, name), **nested)
    return dataclasses.replace(spec, **changes)


def messages_of(
    trial: TrialSpec,
    user_scorer: str | None = None,
    answer: Callable[[Event], Command | None] = lambda event: None,
    engine: type[SimulatedEngine] | None = None,
) -> Iterator[Event]:
    policy = make_policy()
    task = Task("t", train=ALL_WRONG[:7], evaluation=ALL_WRONG[7:], user_scorer=user_scorer)
    with Scorer(trial.task, user_scorer) as scorer:
        components = Components(
            policy=policy,
            learner=Learner(policy, None, trial.algorithm, trial.trainer, 1.0, trial.steps * 2, SingleRank()),
            engine=engine(trial.rollout, policy, 0) if engine else create_engine(trial.rollout, policy, 0),
            task=task,
            prompts={q.question_id: (2, 3 + i) for i, q in enumerate(ALL_WRONG)},
            sampler=PromptSampler(task.train, trial.prompts_per_step, trial.seed),
            scorer=scorer,
            clock=PhaseClock(cards=1),
        )
        attempt = Loop(trial, components, None, None).run()
        command: Command | None = None
        while True:
            try:
                event = attempt.send(command)
            except StopIteration:
                return
            yield event
            command = answer(event)


def step_of(trial: TrialSpec, **how: Any) -> StepReport:
    (report,) = [e for e in messages_of(trial, **how) if isinstance(e, StepReport)]
    return report


def test_step_samples_and_scores_one_group_per_prompt(tmp_path: Path) -> None:
    report = step_of(make_trial(tmp_path))
    curves = report.curves
    assert (report.prompts.trained, report.prompts.filtered, report.prompts.failed) == (3, 0, 0)
    assert report.tokens.prompt == 3 * 4 * 2
    assert report.tokens.completion == curves.response_length.total == report.tokens.loss
    assert curves.acc.value == 0.0
    assert curves.rewards["format"].count == 12
    assert 0 < curves.rewards["format"].total < 12
    assert curves.reward.total == pytest.approx(0.1 * curves.rewards["format"].total)
    assert 1 <= curves.response_length_min <= curves.response_length_max <= LIMIT


def test_overlong_penalty_is_part_of_the_reward(tmp_path: Path) -> None:
    penalised = {"overlong_buffer_tokens": LIMIT - 1, "overlong_penalty": 1.0}
    plain = step_of(make_trial(tmp_path / "a")).curves
    curves = step_of(make_trial(tmp_path / "b", algorithm=penalised)).curves
    assert curves.rewards == plain.rewards
    # The penalty is (length - 1) / 5 for every completion.
    excess = (curves.response_length.total - 12) / (LIMIT - 1)
    assert curves.reward.total == pytest.approx(plain.reward.total - excess)


def test_groups_without_variance_are_replaced_by_new_prompts(tmp_path: Path) -> None:
    dropping = {"drop_zero_variance_groups": True, "max_resample_rounds": 3}
    # About a third of all groups of two have equal rewards.
    reports = [step_of(make_trial(tmp_path / str(s), seed=s, group_size=2, algorithm=dropping)) for s in range(8)]
    assert sum(r.prompts.filtered for r in reports) > 0
    for report in reports:
        drawn = report.prompts.trained + report.prompts.filtered
        assert report.prompts.trained <= 3 <= drawn <= 3 * 4
        assert report.curves.reward.count == report.curves.acc.count == 2 * drawn
        assert report.curves.zero_std.total == report.prompts.filtered
        assert report.curves.zero_std.count == drawn


def test_groups_with_phantom_credit_are_counted(tmp_path: Path) -> None:
    """No completion is right, so every group whose rewards differ has them by its format alone."""
    curves = step_of(make_trial(tmp_path)).curves
    assert curves.phantom_credit.count == 3
    assert curves.phantom_credit.total == 3 - curves.zero_std.total > 0


def test_a_filter_by_accuracy_leaves_out_groups_with_phantom_credit(tmp_path: Path) -> None:
    by_accuracy = {"drop_zero_variance_groups": True, "max_resample_rounds": 2, "zero_variance_of": "accuracy"}
    report = step_of(make_trial(tmp_path, algorithm=by_accuracy))
    # No group differs in correctness, so all are filtered but those of the last round, whose advantages are 0.
    assert (report.prompts.trained, report.prompts.filtered) == (3, 2 * 3)
    assert all(update.grad_norm == 0.0 for update in report.curves.updates)
    assert report.curves.phantom_credit.total > 0
    plain = step_of(make_trial(tmp_path / "plain"))
    assert any(update.grad_norm > 0.0 for update in plain.curves.updates)


def test_groups_of_the_last_round_are_kept_if_no_group_has_variance(tmp_path: Path) -> None:
    dropping = {"drop_zero_variance_groups": True, "max_resample_rounds": 2}
    report = step_of(make_trial(tmp_path, task={"format_pattern": ""}, algorithm=dropping))
    assert (report.prompts.trained, report.prompts.filtered) == (3, 2 * 3)
    assert report.curves.zero_std.value == 1.0
    assert len(report.curves.updates) == 2
    assert all(update.grad_norm == 0.0 for update in report.curves.updates)


def test_prompts_without_loss_tokens_are_counted_as_failed(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, rollout=RolloutSpec("simulated", max_completion_tokens=1), group_size=2)
    masked = dataclasses.replace(trial, algorithm=dataclasses.replace(trial.algorithm, mask_truncated=True))
    reports = [step_of(dataclasses.replace(masked, seed=seed)) for seed in range(4)]
    assert sum(r.prompts.failed for r in reports) > 0
    for report in reports:
        assert report.prompts.trained + report.prompts.failed == 3
        assert report.tokens.loss < report.tokens.completion


def test_restart_of_a_reward_worker_is_reported_before_the_step(
    tmp_path: Path, user_module: Callable[[str], str]
) -> None:
    flag = tmp_path / "died"
    name = user_module(
        f"import os, pathlib\nflag = pathlib.Path({str(flag)!r})\n"
        "def score(completion, answer):\n"
        "    if not flag.exists():\n        flag.touch()\n        os._exit(3)\n    return 0.0\n"
    )
    trial = make_trial(tmp_path / "checkpoints", task={"format_pattern": ""}, evaluation={"samples_per_question": 1})
    # The flag is set during the evaluation before training, so that the worker dies in the step.
    flag.touch()

    def unset_flag_after_evaluation(event: Event) -> None:
        if isinstance(event, EvalReport) and event.step == 0:
            flag.unlink()

    events = list(messages_of(trial, f"{name}:score", answer=unset_flag_after_evaluation))
    kinds = [type(e) for e in events]
    (restart,) = [e for e in events if isinstance(e, RoleRestarted)]
    assert (restart.role, restart.index) == ("reward_worker", 0)
    assert "exit code 3" in restart.reason
    assert kinds.index(RoleRestarted) == kinds.index(StepReport) - 1
    (report,) = [e for e in events if isinstance(e, StepReport)]
    assert report.curves.reward_errors.total == 1


def test_evaluation_reports_every_question_with_its_samples(tmp_path: Path) -> None:
    before, after = (e for e in messages_of(make_trial(tmp_path)) if isinstance(e, EvalReport))
    for report in (before, after):
        assert [(q.question_id, q.correct, q.samples) for q in report.results] == [("q7", 0, 2), ("q8", 0, 2)]
        assert report.response_length.count == report.truncated.count == 4
    assert (before.step, after.step) == (0, 1)


def test_same_checkpoint_is_not_written_twice(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, steps=2, trainer={"checkpoint_every_steps": 1, "keep_checkpoints": 9})
    without = [e for e in messages_of(trial) if isinstance(e, CheckpointWritten)]
    again = make_trial(tmp_path / "again", steps=2, trainer={"checkpoint_every_steps": 1, "keep_checkpoints": 9})
    always = messages_of(again, answer=lambda e: Checkpoint() if isinstance(e, CheckpointWritten) else None)
    assert [e.step for e in always if isinstance(e, CheckpointWritten)] == [e.step for e in without]


def test_hanging_weight_sync_ends_the_attempt_with_role_and_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    class HangingEngine(SimulatedEngine):
        def sync(self, policy: Policy, version: int) -> None:
            released.wait()

    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.05)
    try:
        with pytest.raises(DeadlineError, match="weight sync to rollout engine simulated rank 0 did not end"):
            list(messages_of(make_trial(tmp_path), engine=HangingEngine))
    finally:
        released.set()
