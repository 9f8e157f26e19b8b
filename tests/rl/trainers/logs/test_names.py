"""The table of metric names, and the page that is generated from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl.trainers.logs.glossary import page
from rl.trainers.logs.names import ALIASES, TRAINERS, Names, recognised
from rl.trainers.logs.run import COMPANIONS, CURVES, EIGHT_CURVES, PHASES, Facts

ROOT = Path(__file__).parents[4]
TARGETS = {*CURVES, *(f"{phase}_seconds" for phase in PHASES), "rewards/*", ""}


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / "docs/curves/names.md").read_text() == page(), (
        "run: python -m rl.trainers.logs.glossary > docs/curves/names.md"
    )


def test_the_page_has_every_curve_and_every_name() -> None:
    text = page()
    for curve in (*EIGHT_CURVES, *COMPANIONS):
        assert f"| [`{curve}`](" in text
    for alias in ALIASES:
        if alias.curve and not (alias.evaluation and alias.trainer == "generic"):
            assert f"`{alias.name}`" in text


def test_links_of_the_page_lead_to_pages() -> None:
    text = page()
    for target in {part.split(")")[0] for part in text.split("](")[1:]}:
        assert (ROOT / "docs/curves" / target).is_file()


def test_every_alias_leads_to_a_curve_of_ours() -> None:
    assert {alias.curve for alias in ALIASES} <= TARGETS
    assert {alias.trainer for alias in ALIASES} == set(TRAINERS)


def test_no_name_is_in_the_table_twice() -> None:
    names = [(alias.trainer, alias.name) for alias in ALIASES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "alias", [a for a in ALIASES if a.curve in CURVES and not a.evaluation], ids=lambda a: f"{a.trainer}:{a.name}"
)
def test_every_alias_is_read(alias) -> None:
    name = alias.name.replace("*", "x")
    mapped = Names(alias.trainer).map({name: 6.0}, Facts(prompts_per_step=2), frozenset({alias.only_if_binary}))
    assert mapped.curves == {alias.curve: 3.0 if alias.per_prompt else 6.0 / alias.divide_by}


def test_of_several_names_of_one_curve_the_first_in_the_table_is_used() -> None:
    values = {"actor/entropy_loss": 2.0, "actor/entropy": 1.0, "perf/time_per_step": 9.0, "timing_s/step": 8.0}
    assert Names("verl").map(values, Facts()).curves == {"entropy": 1.0, "step_seconds": 8.0}


@pytest.mark.parametrize(
    ("names", "trainer"),
    [
        (["loss", "reward", "completions/mean_length"], "trl"),
        (["critic/rewards/mean", "actor/grad_norm"], "verl"),
        (["train/pg_clipfrac", "rollout/raw_reward"], "slime"),
        (["policy_loss", "ppo_clip_ratio", "reward", "kl"], "openrlhf"),
        (["entropy/all/mean", "optim/lr", "time/step"], "prime-rl"),
        (
            ["train/reward", "train/token_mult_prob_error", "train/gen_kl_error", "timing/train/policy_training"],
            "nemo-rl",
        ),
        (["reward", "kl", "loss"], "generic"),
        (["reward", "zero_std_frac", "truncated_frac", "lr"], "generic"),
        (["temperature"], "generic"),
    ],
)
def test_a_trainer_is_recognised_by_names_that_only_it_has(names: list[str], trainer: str) -> None:
    assert recognised(names) == trainer


def test_reading_logs_loads_only_this_package_and_the_standard_library() -> None:
    code = "import rl.trainers.logs, sys; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    before = subprocess.run(
        [sys.executable, "-c", code.replace("rl.trainers.logs, ", "")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(done.stdout.split()) - set(before.stdout.split())
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"rl"}
