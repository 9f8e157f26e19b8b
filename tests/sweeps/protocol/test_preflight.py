"""Which checks a configuration gets, and what is skipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rl.checks.reward_probe import NAME
from rl.spec import TaskSpec, TrainerSpec
from rl.tasks.task import Question, Task
from sweeps.protocol.preflight import MOST_PARAMETERS, model_checks, probe_reward, prompts_of, reward_and_questions
from tests.rl.model_folders import PLAIN_TEMPLATE, a_trial, tokenizer_files

QUESTIONS = tuple(Question(str(i), ({"role": "user", "content": f"{i} 2"},), str(i)) for i in range(12))
TASK = Task("t", QUESTIONS[:8], QUESTIONS[8:])


def test_reward_and_questions_are_checked_without_a_tokenizer() -> None:
    assert prompts_of(a_trial(), None, TASK) == (None, "")
    results = reward_and_questions(a_trial(), TASK, None)
    assert [r.name for r in results] == ["duplicate questions", "evaluation apart from training", NAME]
    assert {r.status for r in results} == {"passed"}


def test_prompts_are_checked_with_a_tokenizer_and_its_refusal_is_a_result(tmp_path: Path) -> None:
    from rl.checks.trial_inputs import read_tokenizer

    for name, template in (("with", PLAIN_TEMPLATE), ("without", None)):
        tokenizer_files(tmp_path / name, template=template)
    prompts, problem = prompts_of(a_trial(), read_tokenizer(tmp_path / "with"), TASK)
    assert prompts is not None
    assert "12 prompts have 2 to 2 tokens" in reward_and_questions(a_trial(), TASK, prompts, problem)[2].seen
    prompts, problem = prompts_of(a_trial(), read_tokenizer(tmp_path / "without"), TASK)
    failed = reward_and_questions(a_trial(), TASK, prompts, problem)[2]
    assert (failed.status, "no chat template" in failed.seen) == ("failed", True)


def test_preflight_renders_prompts_with_the_variables_of_the_chat_template(tmp_path: Path) -> None:
    from rl.checks.trial_inputs import read_tokenizer

    tokenizer_files(tmp_path, template=PLAIN_TEMPLATE + "{% if again %}1 2{% endif %}")
    trial = a_trial()
    trial = replace(trial, model=replace(trial.model, chat_template_kwargs={"again": True}))
    prompts, problem = prompts_of(trial, read_tokenizer(tmp_path), TASK)
    assert prompts is not None, problem
    assert {len(ids) for ids in prompts.values()} == {4}


def test_a_scorer_that_cannot_start_is_a_failed_check() -> None:
    spec = a_trial(task=TaskSpec("module", "m:q", reward_weights={}))
    result = probe_reward(spec, TASK)
    assert result.status == "failed"
    assert "task.reward_weights" in result.seen


@pytest.mark.parametrize(
    ("trainer", "parameters", "reason"),
    [("simulated", None, "trainer=simulated"), ("native", MOST_PARAMETERS + 1, "1.0 billion parameters")],
)
def test_checks_that_need_a_model_are_skipped_with_a_reason(trainer: str, parameters: int | None, reason: str) -> None:
    spec = a_trial(trainer=TrainerSpec(trainer))  # type: ignore[arg-type]
    (skipped,) = model_checks(spec, parameters, lambda text: None)
    assert skipped.status == "skipped"
    assert reason in skipped.seen
