"""The price of a machine and what it costs for a time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cost.money import Money
from cost.prices.book import PriceBook
from sweeps.config.build import compose
from sweeps.config.overrides import CONF_DIR
from sweeps.config.types import ConfigError
from sweeps.machines import pricing
from sweeps.machines.pricing import Pricing, find_price


def test_the_price_is_that_of_the_whole_machine() -> None:
    one, two = (find_price(compose(["+stage=smoke", "machine=h100", f"machine.cards={n}"])) for n in (1, 2))
    assert one.per_hour is not None
    assert two.per_hour is not None
    assert two.per_hour.pico == 2 * one.per_hour.pico
    assert not one.by_energy


def test_own_hardware_is_priced_by_the_energy_that_it_draws() -> None:
    small, large = (find_price(compose(["+stage=smoke", f"machine.watts={w}"])) for w in (100, 300))
    assert small.by_energy
    assert small.per_hour is not None
    assert large.per_hour is not None
    assert large.per_hour.pico == 3 * small.per_hour.pico


def test_costs_are_shown_for_people() -> None:
    pricing = Pricing(PriceBook(()), None, Money.parse("2.69 USD"))
    assert (pricing.of(1800.0), pricing.per_hour_text) == ("1.34 USD", "2.69 USD")
    unpriced = Pricing(PriceBook(()), None, None)
    assert (unpriced.of(1800.0), unpriced.per_hour_text) == ("UNPRICED", "UNPRICED")


def test_a_machine_without_a_price_is_refused_unless_unpriced_is_allowed() -> None:
    unknown = ["+stage=smoke", "machine.sku=abacus", "machine.watts=0"]
    with pytest.raises(ConfigError, match=r"machine=cpu: .*abacus.*budget.allow_unpriced=true runs it unpriced"):
        find_price(compose(unknown))
    assert find_price(compose([*unknown, "budget.allow_unpriced=true"])).per_hour is None


def test_a_machine_without_a_billing_rule_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CONF_DIR / "pricing", tmp_path / "pricing")
    rules = tmp_path / "pricing" / "billing.yaml"
    text = rules.read_text(encoding="utf-8").replace("{provider: runpod,", "{provider: another,")
    rules.write_text(text, encoding="utf-8")
    monkeypatch.setattr(pricing, "CONF_DIR", tmp_path)
    rented = ["+stage=smoke", "machine.sku=runpod-h100", "machine.provider=runpod", "machine.purchase=on_demand"]
    with pytest.raises(ConfigError, match=r"no billing rule for provider 'runpod'.*budget.allow_unpriced=true"):
        find_price(compose([*rented, "machine.watts=0"]))
    assert find_price(compose([*rented, "machine.watts=0", "budget.allow_unpriced=true"])).per_hour is None
