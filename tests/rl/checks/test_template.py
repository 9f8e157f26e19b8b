"""Prompts as the model reads them, and templates that do not fit their tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl.checks.result import CheckResult
from rl.checks.template import check_template
from rl.checks.trial_inputs import read_tokenizer
from rl.spec import ModelSpec
from rl.tasks.task import Question
from tests.rl.model_folders import PLAIN_TEMPLATE, tokenizer_files

QUESTION = Question("q", ({"role": "user", "content": "1 2"},), "3")
TURNS = "{% for m in messages %}{{ m['content'] }} <eos> {% endfor %}{% if add_generation_prompt %}7 {% endif %}"


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    def check(
        template: str | None,
        eos_ids: tuple[int, ...] = (1,),
        variables: dict[str, Any] | None = None,
        **given: Any,
    ) -> CheckResult:
        tokenizer_files(tmp_path, template=template)
        tokenizer = read_tokenizer(tmp_path)
        for name, value in given.items():
            setattr(tokenizer, name, value)
        model = ModelSpec("hf", chat_template=template is not None, chat_template_kwargs=variables or {})
        return check_template(QUESTION, tokenizer, model, eos_ids=frozenset(eos_ids), pad_id=0)

    return check


def test_the_rendered_prompt_its_length_and_the_ids_are_shown(checked: Any) -> None:
    result = checked(TURNS)
    assert result.status == "passed"
    assert "End-of-sequence ids: 1 (<eos>); padding id: 0" in result.seen
    assert "Generation prompt: '7 '" in result.seen
    assert "has 4 tokens" in result.seen
    assert result.lines == ("| 1 2 <eos> 7",)


def test_a_plain_prompt_is_shown_without_a_template(checked: Any) -> None:
    result = checked(None)
    assert (result.status, result.lines) == ("passed", ("| 1 2",))
    assert "model.chat_template=false" in result.seen


def test_a_template_without_a_generation_prompt_is_named(checked: Any) -> None:
    assert "no generation prompt" in checked(PLAIN_TEMPLATE).seen


def test_a_turn_that_ends_with_a_token_that_ends_no_completion_fails(checked: Any) -> None:
    result = checked(TURNS, eos_ids=(2,))
    assert result.status == "failed"
    assert "with <eos> (id 1), which does not end a completion" in result.seen
    assert "Add 1 to eos_token_id" in result.remedy


def test_a_prompt_with_two_start_tokens_fails(checked: Any) -> None:
    result = checked("<unk> <unk> " + TURNS, bos_token="<unk>")
    assert result.status == "failed"
    assert "two tokens for the start" in result.seen


def test_a_thinking_mode_is_named(checked: Any) -> None:
    assert "thinking mode (enable_thinking)" in checked(TURNS + "{% if enable_thinking %}{% endif %}").seen
    assert "inside the thinking" in checked(TURNS + "{# <think> #}").seen


def test_the_prompt_is_rendered_and_reported_with_the_variables_of_the_model(checked: Any) -> None:
    template = TURNS + "{% if enable_thinking %}8 {% endif %}"
    result = checked(template, variables={"enable_thinking": True})
    assert result.lines == ("| 1 2 <eos> 7 8",)
    assert "(model.chat_template_kwargs): enable_thinking=True" in result.seen
    assert "at its default" not in result.seen
