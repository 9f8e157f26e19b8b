"""The preflight stage: which checks a configuration gets, and what is measured for them.

`reward_and_questions` needs the questions and the scorer, and takes a second: a smoke runs it first. `model_checks`
needs the model's weights, and runs on this host's CPU. Nothing here opens a lease.

Tested in tests/sweeps/protocol/test_preflight.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rl.checks import questions as question_checks
from rl.checks import reward_probe
from rl.checks.result import CheckResult
from rl.spec import ConfigurationError, TrialSpec
from rl.tasks import Task
from rl.tasks.rewards import Scorer

MOST_PARAMETERS = 1_000_000_000
"""A larger model is not loaded: on a CPU its checks would take longer than minutes."""
MODEL_CHECK = "model"
SAMPLE_SECONDS = 45.0
"""How long the base model samples, for its accuracy and for the groups. Larger sets are sampled in part."""
WARM_UP_SECONDS = 20.0
"""Deadline of the first call of a scorer, which may import libraries."""


def reward_and_questions(
    spec: TrialSpec, task: Task, prompts: Mapping[str, tuple[int, ...]] | None, prompt_problem: str = ""
) -> list[CheckResult]:
    """Duplicates, leakage, prompt lengths, and the reward probe.

    Args:
        prompts: token ids of the prompts of all questions; None: there is no tokenizer to encode them.
        prompt_problem: why the prompts cannot be encoded.
    """
    results = [question_checks.check_duplicates(task), question_checks.check_leakage(task)]
    if prompts is not None or prompt_problem:
        lengths = [len(ids) for ids in (prompts or {}).values()]
        limit = spec.rollout.max_prompt_tokens
        results.append(question_checks.check_prompt_lengths(lengths, limit, prompt_problem))
    return [*results, probe_reward(spec, task)]


def probe_reward(spec: TrialSpec, task: Task) -> CheckResult:
    """Score adversarial completions with the task's scorer, in its own process with its deadline."""
    try:
        with Scorer(spec.task, task.user_scorer, warm_up_seconds=WARM_UP_SECONDS) as scorer:
            return reward_probe.check_reward(task.train, scorer.score)
    except ConfigurationError as error:
        return CheckResult(reward_probe.NAME, "failed", str(error), "Correct the scorer or task.reward_weights.")


def model_checks(spec: TrialSpec, parameters: int | None, show: Callable[[str], None]) -> Iterable[CheckResult]:
    """The checks that need weights: base accuracy, loss mask, template, ratio, weight sync, checkpoint.

    Args:
        parameters: of the model; None: not known.
        show: prints what is done now.
    """
    if spec.trainer.name == "simulated":
        return [CheckResult(MODEL_CHECK, "skipped", "trainer=simulated has no model to check.")]
    if parameters is not None and parameters > MOST_PARAMETERS:
        return [
            CheckResult(
                MODEL_CHECK,
                "skipped",
                f"The model has {parameters / 1e9:.1f} billion parameters; checks on a CPU stop at "
                f"{MOST_PARAMETERS / 1e9:g} billion.",
                "Run the stage with a smaller model of the same family for the checks of template and loss mask.",
            )
        ]
    from rl.trainers.native.preflight import check_model

    return check_model(spec, sample_seconds=SAMPLE_SECONDS, show=show)


def prompts_of(spec: TrialSpec, tokenizer: Any, task: Task) -> tuple[dict[str, tuple[int, ...]] | None, str]:
    """(the prompts of all questions, overlong ones included, why they cannot be encoded)."""
    from rl.tasks.prompts import encode_prompt

    if tokenizer is None:
        return None, ""
    try:
        questions = (*task.train, *task.evaluation)
        model = spec.model
        encoded = (encode_prompt(q, tokenizer, model.chat_template, model.chat_template_kwargs) for q in questions)
        return {q.question_id: tuple(ids) for q, ids in zip(questions, encoded, strict=True)}, ""
    except ConfigurationError as error:
        return None, str(error)
