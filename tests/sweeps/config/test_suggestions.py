"""Suggestions in messages: the key that was meant, and a command that works when it is typed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sweeps.config.build import compose
from sweeps.config.overrides import key_of
from sweeps.config.suggestions import nearest_keys, quoted_text
from sweeps.config.types import ConfigError
from sweeps.driver.summary import next_command
from sweeps.search.best import best, instead_of
from tests.sweeps.config.test_messages import NAMES, STAGE, TYPES, message
from tests.sweeps.in_process import a_sweep
from tests.sweeps.search_spaces import ONE_POINT

MORE = [
    ["algorithm.lr=[1e-4,3e-4]"],
    ["algorithm.lr=1e-4,3e-4"],
    ["search.lr=[1e-4,3e-4]"],
    ["algorithm.lr=interval(1e-6,1e-4)"],
    ["search.seeds=range(0,3)"],
    ["stage.steps=20,30"],
    ['gate.force=it\'s "good" (enough), for me'],
    ['gate.force="two "quoted" words"'],
    ["search.space.algorithm.lr=1e-5"],
    ["search.space.algorithm.lrr=[1e-5,1e-4]"],
    ["algorithm.name=[grpo,dapo]"],
    ["algorithm.name=dapo"],
]
TYPED = [
    *(["+stage=smoke", *typed] for typed in (*(typed for typed, _ in NAMES + TYPES), *MORE)),
    *(t for t, _ in STAGE),
]

_OVERRIDE = r"""(?:'[^']*'|"[^"]*"|[^\s'"?;])+"""
_SUGGESTED = re.compile(
    rf"\b(?:write|did you mean|twice:|plus sign:|or) ((?:{_OVERRIDE} )*?{_OVERRIDE})(?:[?;,]|$| or | for all)"
)


def _without_comma(word: str) -> str:
    return word.removesuffix(",")


def suggestions(text: str) -> list[list[str]]:
    """The overrides that a message tells a person to type; a placeholder in capitals or `...` is nothing to type."""
    found = []
    for part in _SUGGESTED.findall(text):
        words = [w for w in map(_without_comma, shlex.split(part)) if "=" in w]
        if words and not any("..." in w or re.search(r"=[A-Z_]+$", w) for w in words):
            found.append(words)
    return found


@pytest.mark.parametrize("typed", TYPED, ids=" ".join)
def test_every_suggested_command_works_when_it_is_typed(typed: list[str]) -> None:
    text = message(typed)
    for words in suggestions(text):
        replaced = {key_of(w) for w in words}
        rest = [t for t in typed if key_of(t) not in replaced and "=" in t and key_of(t) == "stage"]
        stage = [] if any("stage=" in w for w in words) else rest or ["+stage=smoke"]
        compose([*stage, *words])


def test_the_messages_that_are_tried_have_suggestions() -> None:
    assert sum(bool(suggestions(message(typed))) for typed in (["+stage=smoke", *m] for m in MORE)) >= len(MORE) - 2


@pytest.mark.parametrize("typed", ["algorithm.lr=[1e-4,3e-4]", "algorithm.lr=1e-4,3e-4", "search.lr=[1e-4,3e-4]"])
def test_several_learning_rates_point_to_the_search_space(typed: str) -> None:
    assert "search.space.algorithm.lr=[1e-4,3e-4]" in message(["+stage=smoke", typed])


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("search.seeds=range(0,3)", "'search.seeds=[0,1,2]'"),
        ("search.group_size=4,8", "'search.group_size=[4,8]'"),
        ("model.lora_rank=8,16", "'search.space.model.lora_rank=[8,16]'"),
    ],
)
def test_a_sweep_of_hydra_is_answered_with_the_list_that_does_the_same(typed: str, written: str) -> None:
    assert written in message(["+stage=smoke", typed])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr", ["algorithm.lr"]),
        ("trainer.lr", ["algorithm.lr"]),
        ("algorithm.learning_rate", ["algorithm.lr"]),
        ("num_generations", ["search.group_size"]),
        ("trainer.steps", ["stage.steps"]),
        ("rolout.temperature", ["rollout.temperature"]),
        ("machine.crads", ["machine.cards"]),
        ("search.seed", ["search.seeds"]),
        ("pricing", []),
    ],
)
def test_the_key_that_was_meant_is_named(typed: str, meant: list[str]) -> None:
    from sweeps.config.overrides import groups, known_keys

    assert nearest_keys(typed, [*known_keys()[0], *groups()]) == meant


@pytest.mark.parametrize("text", ["a, b", 'say "yes"', "it's", "C:\\", '\\"', "~[x]{y}=(z)", "50 % (of it)"])
def test_any_text_survives_its_quotes(text: str) -> None:
    (override,) = shlex.split(quoted_text("gate.force", text))
    assert compose(["+stage=smoke", override]).gate.force == text


def test_all_wrong_keys_and_values_are_in_one_message() -> None:
    text = message(
        [
            "+stage=smoke",
            "machine=rtx409",
            "algorithm.lrr=1",
            "search.promts_per_step=[2]",
            "stage.steps=2.5",
            "dry_run=yes",
            "search.group_size=1",
            "search.space.rollout.temperature=[-1,1]",
            "gate.force=low, but ok",
        ]
    )
    for part in ("'rtx409'", "algorithm.lrr", "promts_per_step", "steps=2.5", "dry_run='yes'", "group_size=1"):
        assert part in text, text
    assert "search.space.rollout.temperature" in text, text
    assert "gate.force" in text, text
    assert len(text.splitlines()) == 8, text


def test_an_override_that_is_left_out_causes_no_further_complaint() -> None:
    text = message(["+stage=smoke", "model=hf", "model.path=/no/such/folder", "machine=rtx409", "trainer.device=cuda"])
    assert len(text.splitlines()) == 2, text


def test_wrong_keys_are_named_where_the_stage_is_missing_too() -> None:
    with pytest.raises(ConfigError, match=r"(?s)algorithm\.lrr.*no stage was chosen"):
        compose(["algorithm.lrr=1"])


def test_the_next_command_and_the_best_point_of_a_search_work_when_they_are_typed(tmp_path: Path) -> None:
    space = ("search.space.algorithm=[grpo,dapo]", "search.space.task.format_pattern=['^a, \"b\"','.*']")
    typed = ["+stage=smoke", "trainer=simulated", "rollout=simulated", *space, 'gate.force="it\'s, fine"']
    found = best((sweep := a_sweep(tmp_path, *space, *ONE_POINT, "stage.steps=2").run()).cfg, sweep.journal.record)
    assert found is not None
    words = shlex.split(next_command("single", instead_of(typed, found.values)))
    assert words[:3] == ["python", "sweep.py", "+stage=single"]
    compose([*words[2:], *found.batch])
