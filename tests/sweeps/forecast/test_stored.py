"""Stored forecasts and their score against finished sweeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost.ledger.ledger import Ledger
from cost.prices.book import PriceBook
from sweeps.cli.forecast import _basis, _forecasts
from sweeps.config.build import compose
from sweeps.config.overrides import CONF_DIR
from sweeps.driver.driver import run
from sweeps.forecast.stage_forecast import LeaseTerms
from sweeps.forecast.stored import scored, store_forecasts, stored_forecasts
from sweeps.journal.journal import load, sweep_ids

SIMULATED = ("trainer=simulated",)


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    """A smoke stage, a stored forecast of the single stage, and the single stage itself; all simulated."""
    root = tmp_path_factory.mktemp("ladder")
    common = [f"paths.root={root}", *SIMULATED]
    assert run(compose(["+stage=smoke", *common])) == 0
    made, digest = _forecasts(_basis("last", root, None), "single", [], [], LeaseTerms())
    with Ledger.open(root / "ledger.db") as ledger:
        assert store_forecasts(ledger, digest, made) == 1
    assert run(compose(["+stage=single", *common])) == 0
    return root


def test_a_simulated_stage_of_200_steps_is_forecast_from_20_within_five_percent(ladder) -> None:
    with Ledger.open(ladder / "ledger.db", create=False, read_only=True) as ledger:
        records = [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)]
        count, rows = scored(ledger, records, PriceBook.load(CONF_DIR / "pricing"))
    assert count == 1
    totals = {row.quantity: row for row in rows if row.category == "total"}
    assert set(totals) == {"lease", "time", "money"}
    assert all(row.worst_absolute_error < 0.05 for row in totals.values())
    assert totals["lease"].within_p90 == 1.0


def test_an_unfinished_or_earlier_sweep_is_no_outcome(ladder) -> None:
    with Ledger.open(ladder / "ledger.db", create=False, read_only=True) as ledger:
        records = [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)]
        unfinished = [replace(record, ended=None) for record in records]
        before = [replace(record, planned_ns=0) for record in records]
        book = PriceBook.load(CONF_DIR / "pricing")
        assert scored(ledger, unfinished, book) == (0, ())
        assert scored(ledger, before, book) == (0, ())


def test_a_stored_forecast_reads_back_with_its_machine_and_money(ladder) -> None:
    with Ledger.open(ladder / "ledger.db", create=False, read_only=True) as ledger:
        (stored,) = stored_forecasts(ledger)
    assert stored.machine == "cpu"
    assert stored.money_pico is not None
    assert sum(category.p50 for category in stored.money) == stored.money_pico.p50
