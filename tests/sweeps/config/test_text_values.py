"""Values typed as text: what parses, what the text of a value is, and how a wrong one is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.money import Money
from rl.codec import from_json
from sweeps.config.build import canonical, compose
from sweeps.config.text_values import Duration, PreemptionSource, ReleaseMethod
from sweeps.config.types import ConfigError, SweepConfig

TYPED = {
    "machine.max_idle": ("1.5h", "90m", Duration(5400.0)),
    "machine.deadman": ("90s", "90s", Duration(90.0)),
    "machine.down": ('"echo a, b"', "echo a, b", ReleaseMethod("command", "echo a, b")),
    "machine.preemption": ("file:/tmp/a:b", "file:/tmp/a:b", PreemptionSource("file", "/tmp/a:b")),
    "budget.trial_limit": ("0.50 USD", "0.5 USD", Money.parse("0.5 USD")),
    "budget.sweep_limit": ("12.10 USD", "12.1 USD", Money.parse("12.1 USD")),
    "budget.stage_limit": ("100 EUR", "100 EUR", Money.parse("100 EUR")),
    "budget.month_limit": ("1000.000000000001 USD", "1000.000000000001 USD", Money.parse("1000.000000000001 USD")),
    "budget.trial_bound": ("3 USD", "3 USD", Money.parse("3 USD")),
}
"""By key: a text as typed, the text in `config.yaml`, and the parsed value."""


def test_each_text_is_parsed_once_and_written_as_a_text_that_parses_to_the_same_value() -> None:
    cfg = compose(["+stage=smoke", *(f"{key}={typed}" for key, (typed, _, _) in TYPED.items())])
    plain = canonical(cfg)
    for key, (_, written, parsed) in TYPED.items():
        section, name = key.split(".")
        assert getattr(getattr(cfg, section), name) == parsed
        assert plain[section][name] == written
        assert type(parsed).parse(written) == parsed
    assert from_json(SweepConfig, plain) == cfg


def test_the_written_texts_can_be_typed() -> None:
    retyped = compose(["+stage=smoke", *(f'{key}="{written}"' for key, (_, written, _) in TYPED.items())])
    assert retyped == compose(["+stage=smoke", *(f"{key}={typed}" for key, (typed, _, _) in TYPED.items())])


@pytest.mark.parametrize("empty", ['""', "null"])
@pytest.mark.parametrize("key", ["down", "max_idle", "deadman"])
def test_an_empty_text_and_null_mean_none(key: str, empty: str) -> None:
    assert getattr(compose(["+stage=smoke", f"machine.{key}={empty}"]).machine, key) is None


@given(st.floats(0.001, 1e7), st.sampled_from("smh"))
def test_the_text_of_a_duration_parses_to_the_same_duration(number: float, unit: str) -> None:
    duration = Duration.parse(f"{number:f}{unit}")
    assert Duration.parse(str(duration)) == duration


@pytest.mark.parametrize("text", ["", "0s", "-1s", "10", "10 days", "s", 90, None])
def test_a_text_that_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a number above 0 and its unit"):
        Duration.parse(text)


@pytest.mark.parametrize("kind", ["stop", "terminate", "shutdown"])
def test_the_actions_of_machine_down_are_no_commands(kind: str) -> None:
    method = ReleaseMethod.parse(kind)
    assert (method.kind, method.command, str(method)) == (kind, "", kind)
    assert method.uses_ec2 == (kind != "shutdown")
    assert method.keeps_disk == (kind == "stop")


WRONG = [
    ("machine.max_idle=soon", "machine.max_idle=soon: write a number above 0 and its unit"),
    ("machine.max_idle=90", "machine.max_idle=90: write a number above 0 and its unit"),
    ("machine.deadman=0m", "machine.deadman=0m: write a number above 0 and its unit"),
    ("machine.preemption=azure", "machine.preemption=azure: write none, ec2, gcp, file:PATH or command:COMMAND"),
    ("machine.preemption='file:'", "name a file after the colon"),
    ("machine.preemption='command: '", "name a command after the colon"),
    ("machine.preemption=ec2:x", "write none, ec2, gcp"),
    ("machine.down=3", "machine.down=3: write stop, terminate, shutdown or a command"),
    ("machine.deadman=15m", "machine.deadman=15m needs machine.down"),
    ("machine.down=stop", "machine.down=stop works with machine.provider=aws only, and this is own"),
    ("budget.trial_limit=3", "'budget.trial_limit=3.00 USD'"),
    ("budget.month_limit=3.5", "budget.month_limit=3.5 has no currency"),
    ("budget.stage_limit=0 USD", "budget.stage_limit=0 USD should be above 0"),
    ("budget.trial_bound=1 2 USD", "budget.trial_bound=1 2 USD: '1 2 USD' is not an amount and a currency"),
    ("budget.sweep_limit=''", "budget.sweep_limit=: '' is not an amount and a currency"),
]


@pytest.mark.parametrize(("typed", "message"), WRONG, ids=[typed for typed, _ in WRONG])
def test_a_wrong_text_is_refused_with_its_key_and_the_right_form(typed: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["+stage=smoke", typed])
    assert message in str(refused.value)
