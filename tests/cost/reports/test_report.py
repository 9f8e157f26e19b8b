"""From facts to money: conservation, categories, and what the CSV and JSON say."""

from __future__ import annotations

import csv
import io
import json
import os
from decimal import Decimal

import pytest

from cost.charges.attribution import attribute
from cost.clock import NS_PER_SECOND
from cost.money import Money, pico_of
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow
from cost.records import CATEGORIES, Correction, UsageKey
from cost.reports.by_trial import sweep_report, trial_costs, write_csv
from cost.reports.csv_json import COLUMNS, as_json, csv_text, write_text
from cost.reports.grouped import ReportScope, grouped_report
from cost.reports.terminal import report_table

HOUR = 3600
CENT = 10**10


def row(price="8", *, sku="box", per="machine_hour", cards=8, start="2025-01-01", end="", **more) -> PriceRow:
    return PriceRow(
        provider=more.pop("provider", "cloud"),
        sku=sku,
        region="",
        per=per,
        cards=cards,
        purchase=more.pop("purchase", "on_demand"),
        currency=more.pop("currency", "USD"),
        price=Decimal(price),
        tax_included=more.pop("tax_included", False),
        tax_rate=Decimal(more.pop("tax_rate", "0")),
        valid_from=start,
        valid_to=end,
        source=more.pop("source", "https://example.org/prices"),
        day_read="2025-12-01",
        **more,
    )


def rule(provider="cloud", granularity_s=1, minimum_s=0, **more) -> BillingRule:
    fields = {
        "rounding": "up",
        "charged_ahead": False,
        "billed_states": ("running",),
        "spot_price_rule": "moment",
        "interruption_waiver_s": 0,
        "storage_rule": "none",
        "source": "page",
        "day_read": "2025-12-01",
    }
    return BillingRule(provider, granularity_s, minimum_s, **{**fields, **more})


RULES = (rule(),)


@pytest.fixture
def book() -> PriceBook:
    """A machine of eight cards at one unit an hour and card."""
    return PriceBook((row(),))


@pytest.fixture
def open_lease(ledger, make_lease):
    def open_with_sweeps(lease_id="L1", sweeps=("s1",), **changes):
        ledger.leases.open(
            make_lease(lease_id, **{"sku": "box", "provider": "cloud", "price_hash": row().hash, **changes})
        )
        for sweep in sweeps:
            ledger.leases.attach(lease_id, sweep)
        return ledger

    return open_with_sweeps


def whole_hours(report) -> dict[str, Decimal]:
    """Cost by row, in units of the currency."""
    return {r.name: Money(r.pico, r.currency).amount for r in report.rows}


def test_startup_trials_idle_and_teardown_sum_to_the_lease(any_database, open_lease, clock, book):
    ledger = open_lease()
    clock.advance_seconds(HOUR)
    keys = [UsageKey("L1", "t1", 1), UsageKey("L1", "t2", 1)]
    for key in keys:
        ledger.usages.start(key, "s1", Decimal(4), {})
    clock.advance_seconds(HOUR)
    ledger.usages.end(keys[0], "COMPLETED")
    clock.advance_seconds(HOUR)
    ledger.usages.end(keys[1], "COMPLETED")
    clock.advance_seconds(HOUR)
    ledger.leases.detach("L1", "s1", "done")
    clock.advance_seconds(50 * HOUR)
    report = sweep_report(ledger, book, "s1", clock.utc, rules=RULES)
    assert whole_hours(report) == {"t1": 4, "t2": 8, "startup": 8, "idle": 4, "teardown": 8}
    assert report.total_pico == report.billed_pico == pico_of(32)
    assert [r.card_hours for r in report.trials] == [4, 8]
    assert trial_costs(ledger, book, "s1", clock.utc, rules=RULES) == {
        "t1": Money(pico_of(4), "USD"),
        "t2": Money(pico_of(8), "USD"),
    }


def test_a_trial_is_split_by_phase_and_the_rest_is_other(open_lease, clock, book):
    ledger = open_lease()
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    ledger.usages.add_phases(key, 1, {"rollout": 8 * 900 * NS_PER_SECOND, "train": 8 * 450 * NS_PER_SECOND})
    ledger.usages.add_phases(key, 2, {"rollout": 8 * 900 * NS_PER_SECOND})
    clock.advance_seconds(HOUR)
    (trial,) = sweep_report(ledger, book, "s1", clock.utc, rules=RULES).rows
    assert trial.categories == {"rollout": pico_of(4), "train": pico_of(1), "other": pico_of(3)}
    assert "open" in trial.flags


def test_work_after_the_last_checkpoint_of_an_attempt_that_died_is_lost(any_database, open_lease, clock):
    book = PriceBook((row("6"),))
    ledger = open_lease(price_hash=row("6").hash)
    first, second = UsageKey("L1", "t1", 1), UsageKey("L1", "t1", 2)
    minute = 8 * 60 * NS_PER_SECOND
    ledger.usages.start(first, "s1", Decimal(8), {})
    ledger.usages.add_phases(first, 1, {"startup": 5 * minute})
    ledger.usages.add_phases(first, 2, {"train": 10 * minute})
    ledger.usages.add_phases(first, 3, {"checkpoint": 5 * minute})
    ledger.usages.add_phases(first, 4, {"train": 20 * minute})
    clock.advance_seconds(HOUR)
    ledger.usages.end(first, "FAILED")
    ledger.usages.start(second, "s1", Decimal(8), {})
    ledger.usages.add_phases(second, 1, {"startup": 15 * minute})
    ledger.usages.add_phases(second, 2, {"train": 45 * minute})
    clock.advance_seconds(HOUR)
    ledger.usages.end(second, "COMPLETED")
    (trial,) = sweep_report(ledger, book, "s1", clock.utc, rules=RULES).rows
    in_minutes = {kind: Decimal(pico) / pico_of(Decimal("0.1")) for kind, pico in trial.categories.items()}
    assert in_minutes == {"startup": 5, "train": 55, "checkpoint": 5, "lost_work": 40, "recovery": 15}
    assert trial.attempts == 2


def test_steps_done_by_an_attempt_that_was_pruned_are_not_lost(open_lease, clock, book):
    ledger = open_lease()
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    ledger.usages.add_phases(key, 1, {"train": 8 * HOUR * NS_PER_SECOND})
    clock.advance_seconds(HOUR)
    ledger.usages.end(key, "PRUNED")
    assert list(sweep_report(ledger, book, "s1", clock.utc, rules=RULES).rows[0].categories) == ["train"]


def test_a_lease_shared_by_two_sweeps_is_the_sum_of_both_and_of_what_is_unassigned(open_lease, clock, book):
    ledger = open_lease(sweeps=(), opened_by="hand")
    clock.advance_seconds(HOUR)
    ledger.leases.attach("L1", "s1")
    ledger.leases.attach("L1", "s2")
    clock.advance_seconds(HOUR)
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(6), {})
    clock.advance_seconds(HOUR)
    ledger.usages.end(key, "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    clock.advance_seconds(HOUR)
    ledger.leases.detach("L1", "s2", "done")
    clock.advance_seconds(HOUR)
    ledger.leases.close("L1", "by hand")
    first, second = (sweep_report(ledger, book, s, clock.utc, rules=RULES) for s in ("s1", "s2"))
    assert whole_hours(first) == {"t1": 6, "startup": 4, "idle": 1}
    assert whole_hours(second) == {"startup": 4 + 1 + 8}
    lines = attribute(ledger, book, clock.utc, rules=RULES).lines
    unassigned = sum(line.pico for line in lines if line.category == "unassigned")
    assert unassigned == pico_of(16)
    assert first.total_pico + second.total_pico + unassigned == pico_of(40)
    table = report_table(grouped_report(ledger, book, ReportScope(), clock.utc, rules=RULES)).splitlines()
    assert [line.split()[:2] for line in table if line.startswith("startup")] == [["startup", "s1"], ["startup", "s2"]]
    assert max(map(len, table)) <= 100


def test_a_lease_without_any_usage_is_startup(open_lease, clock, book):
    ledger = open_lease()
    clock.advance_seconds(2 * HOUR)
    assert whole_hours(sweep_report(ledger, book, "s1", clock.utc, rules=RULES)) == {"startup": 16}


def test_fractions_of_one_card_share_it(open_lease, clock):
    book = PriceBook((row("1", cards=1),))
    ledger = open_lease(cards=1, price_hash=row("1", cards=1).hash)
    for number in range(3):
        ledger.usages.start(UsageKey("L1", f"t{number}", 1), "s1", Decimal("0.333333"), {})
    clock.advance_seconds(HOUR)
    report = sweep_report(ledger, book, "s1", clock.utc, rules=RULES)
    assert {r.name: r.pico for r in report.rows} == {**{f"t{n}": 333_333_000_000 for n in range(3)}, "idle": 10**6}


def test_what_rounding_up_adds_is_a_category(open_lease, clock, book):
    ledger = open_lease()
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    clock.advance_seconds(45 * 60)
    ledger.usages.end(key, "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    report = sweep_report(ledger, book, "s1", clock.utc, rules=(rule(granularity_s=HOUR),))
    assert whole_hours(report) == {"t1": 6, "billing_increment": 2}


def test_a_price_that_changes_mid_run_is_charged_at_the_price_in_force(open_lease, clock):
    spot = (row("0.20", end="2026-01-01T08:00:00Z"), row("0.37", start="2026-01-01T08:00:00Z"))
    ledger = open_lease(price_hash=spot[0].hash)
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    clock.advance_seconds(10 * HOUR)
    ledger.usages.end(key, "COMPLETED")
    report = sweep_report(ledger, PriceBook(spot), "s1", clock.utc, rules=RULES)
    assert report.total_pico == pico_of(Decimal("0.20") * 8 + Decimal("0.37") * 2)


def test_own_hardware_is_imputed_and_billed_nothing(open_lease, clock):
    own = row("0.25", sku="electricity", per="kwh", cards=0, purchase="own", provider="own")
    ledger = open_lease(cards=1, price_hash=own.hash, purchase="own", watts=Decimal(400))
    clock.advance_seconds(10 * HOUR)
    report = sweep_report(ledger, PriceBook((own,)), "s1", clock.utc, rules=(rule("own"),))
    assert (report.total_pico, report.billed_pico) == (pico_of(1), 0)
    assert "imputed" in report.rows[0].flags


def test_a_missing_price_is_named_and_unpriced_is_never_zero(open_lease, clock):
    ledger = open_lease(price_hash=None)
    clock.advance_seconds(HOUR)
    report = sweep_report(ledger, PriceBook(()), "s1", clock.utc, rules=RULES)
    assert report.unpriced
    assert report.rows[0].cost is None
    assert trial_costs(ledger, PriceBook(()), "s1", clock.utc, rules=RULES) == {}
    (cells,) = csv.DictReader(io.StringIO(csv_text(report)))
    assert (cells["cost"], cells["flags"]) == ("UNPRICED", "UNPRICED")
    open_lease("L2", sweeps=("s2",))
    clock.advance_seconds(HOUR)
    lost = sweep_report(ledger, PriceBook(()), "s2", clock.utc, rules=RULES)
    assert (lost.unpriced, lost.rows[0].cost) == (True, None)
    assert "Lease L2 is UNPRICED: no price for SKU 'box'" in lost.notes[0]
    assert "python -m cost prices add box" in lost.notes[0]
    assert not sweep_report(ledger, PriceBook((row(),)), "s1", clock.utc, rules=RULES).unpriced, "a price added later"


def test_tax_on_top_is_a_row_of_its_own(open_lease, clock):
    taxed = row("8", tax_rate="0.19")
    ledger = open_lease(price_hash=taxed.hash)
    clock.advance_seconds(HOUR)
    report = sweep_report(ledger, PriceBook((taxed,)), "s1", clock.utc, rules=RULES)
    assert whole_hours(report) == {"startup": 8, "tax": Decimal("1.52")}


def test_a_correction_changes_the_total_by_itself_and_is_marked(any_database, open_lease, clock, book):
    ledger = open_lease()
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    clock.advance_seconds(HOUR)
    ledger.usages.end(key, "COMPLETED")
    ledger.corrections.add(
        Correction("c1", "L1", "credit", -pico_of(2), "USD", clock.utc, "credit note", sweep_id="s1", trial_id="t1")
    )
    ledger.corrections.add(Correction("c2", "L1", "fee", pico_of(1), "USD", clock.utc, "set-up fee", sweep_id="s1"))
    report = sweep_report(ledger, book, "s1", clock.utc, rules=RULES)
    assert whole_hours(report) == {"t1": 6, "fee": 1}
    assert "corrected" in report.trials[0].flags


def test_an_interval_across_two_drivers_and_an_estimated_end_are_flagged(open_lease, clock, place, book):
    from cost.ledger.ledger import Ledger

    ledger = open_lease()
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    clock.advance_seconds(HOUR)
    with Ledger.open(place, clock) as other:
        other.usages.end(key, "LOST", end_estimated=True)
    assert sweep_report(ledger, book, "s1", clock.utc, rules=RULES).trials[0].flags == ("end_estimated", "wall")


def awkward(open_lease, clock, count=7):
    """Trials whose costs are no whole number of any shown place."""
    ledger = open_lease(cards=7)
    for number in range(count):
        key = UsageKey("L1", f"t{number}", 1)
        labels = {"stage": "smoke", "state": "COMPLETED", "acc": "0.5", "lr": "1e-05", "steps": "20"}
        ledger.usages.start(key, "s1", Decimal(1), labels)
        ledger.usages.add_phases(key, 1, {"train": 17 * NS_PER_SECOND // 3, "rollout": 7_654_321_987})
    clock.advance(123_456_789_123)
    for number in range(count):
        ledger.usages.end(UsageKey("L1", f"t{number}", 1), "COMPLETED")
    clock.advance(7_777_777_777)
    ledger.leases.detach("L1", "s1", "done")
    return ledger


@pytest.mark.parametrize("places", [0, 2, 4, 6, 12])
def test_rounded_rows_and_the_rounding_row_sum_to_the_rounded_total(open_lease, clock, places):
    price = row("1.006", cards=7)
    ledger = awkward(open_lease, clock)
    report = sweep_report(ledger, PriceBook((price,)), "s1", clock.utc, rules=RULES)
    cells = list(csv.DictReader(io.StringIO(csv_text(report, places=places))))
    total = Money(report.total_pico, "USD").amount
    assert sum(Decimal(c["cost"]) for c in cells) == round(total, places)
    for cell in cells:
        parts = [Decimal(cell[name] or 0) for name in (*CATEGORIES, "rounding")]
        assert sum(parts) == Decimal(cell["cost"]), "a row adds up across its categories"


def test_json_adds_up_exactly(open_lease, clock):
    ledger = awkward(open_lease, clock)
    report = sweep_report(ledger, PriceBook((row("1.006", cards=7),)), "s1", clock.utc, rules=RULES)
    body = json.loads(as_json(report))
    rows = body["trials"] + body["overheads"]
    assert len(body["trials"]) == 7
    assert sum(Decimal(r["cost"]) for r in rows) == Decimal(body["total"])
    assert all(sum(map(Decimal, r["categories"].values())) == Decimal(r["cost"]) for r in rows)


def test_the_csv_has_the_documented_columns_and_replaces_an_older_one_whole(open_lease, clock, tmp_path):
    ledger = awkward(open_lease, clock, count=1)
    report = sweep_report(ledger, PriceBook((row("1.006", cards=7),)), "s1", clock.utc, rules=RULES)
    target = tmp_path / "new folder" / "cost.csv"
    write_csv(report, target)
    assert write_csv(report, target).read_text(encoding="utf-8") == csv_text(report)
    assert [p.name for p in target.parent.iterdir()] == ["cost.csv"]
    with target.open(encoding="utf-8") as file:
        reader = csv.DictReader(file)
        first = next(reader)
    assert tuple(reader.fieldnames or ()) == COLUMNS
    assert (first["trial_id"], first["stage"], first["lr"], first["acc"]) == ("t0", "smoke", "1e-05", "0.5")
    assert Decimal(first["cost_per_acc_point"]) * 50 == pytest.approx(Decimal(first["cost"]), abs=Decimal("1e-4"))


def test_a_report_written_to_what_is_no_file_does_not_replace_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text("a report", pipe)
    assert os.read(reader, 100) == b"a report"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_small_amounts_are_shown_and_large_ones_have_four_places(open_lease, clock):
    tiny = row("0.000001", cards=7)
    ledger = awkward(open_lease, clock)
    report = sweep_report(ledger, PriceBook((tiny,)), "s1", clock.utc, rules=RULES)
    amounts = [line.split()[-2] for line in report_table(report).splitlines()[2:]]
    assert amounts[-1] == "0.0000000367"
    assert sum(map(Decimal, amounts[:-1])) == Decimal(amounts[-1])
    report = sweep_report(ledger, PriceBook((row("1000", cards=7),)), "s1", clock.utc, rules=RULES)
    assert report_table(report).split()[-2] == "36.6667"


def test_a_lease_that_ended_is_charged_in_full_whenever_it_is_looked_at(open_lease, clock, book):
    ledger = open_lease()
    clock.advance_seconds(HOUR)
    ledger.leases.detach("L1", "s1", "done")
    assert sweep_report(ledger, book, "s1", clock.utc - 1800 * NS_PER_SECOND, rules=RULES).total_pico == pico_of(8)


def test_four_machines_whose_spot_price_changed_mid_run_are_charged_by_segment(open_lease, clock):
    spot = (row("0.20", end="2026-01-01T08:00:00Z"), row("0.37", start="2026-01-01T08:00:00Z"))
    for number in range(4):
        ledger = open_lease(f"L{number}", price_hash=spot[0].hash)
    clock.advance_seconds(10 * HOUR)
    report = sweep_report(ledger, PriceBook(spot), "s1", clock.utc, rules=RULES)
    assert Money(report.total_pico, "USD") == Money.parse("9.36 USD")


def test_a_machine_that_never_came_up_costs_nothing(ledger, make_lease, clock, book):
    """A lease is opened when the machine is confirmed to run, not when it is asked for."""
    clock.advance_seconds(100 * HOUR)
    assert attribute(ledger, book, clock.utc, rules=RULES).lines == ()
    ledger.leases.open(make_lease(sku="box", provider="cloud", price_hash=row().hash))
    clock.advance_seconds(HOUR)
    lines = attribute(ledger, book, clock.utc, rules=RULES).lines
    assert sum(line.pico for line in lines) == pico_of(8)


def test_a_machine_that_its_provider_took_back_early_is_free_if_the_rule_waives_it(open_lease, clock, book):
    ledger = open_lease()
    clock.advance_seconds(HOUR - 1)
    ledger.leases.close("L1", "taken_back")
    waiver = (rule(interruption_waiver_s=HOUR),)
    assert sweep_report(ledger, book, "s1", clock.utc, rules=waiver).total_pico == 0
    assert sweep_report(ledger, book, "s1", clock.utc, rules=RULES).total_pico > 0


def test_a_machine_that_its_user_gave_back_early_is_charged(open_lease, clock, book):
    ledger = open_lease()
    clock.advance_seconds(HOUR - 1)
    ledger.leases.detach("L1", "s1", "interrupted")
    waiver = (rule(interruption_waiver_s=HOUR),)
    assert sweep_report(ledger, book, "s1", clock.utc, rules=waiver).total_pico > 0


def test_card_hours_include_all_leased_cards(open_lease, clock, book):
    ledger = open_lease()
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(6), {})
    ledger.usages.add_phases(key, 1, {"train": 2 * HOUR * NS_PER_SECOND})
    clock.advance_seconds(HOUR)
    ledger.usages.end(key, "COMPLETED")
    report = sweep_report(ledger, book, "s1", clock.utc, rules=RULES)
    assert [r.card_hours for r in report.rows] == [6, 2]
    assert sum(r.card_hours for r in report.rows) == 8


def test_closing_twice_writes_one_row_and_bills_once(open_lease, clock, book):
    ledger = open_lease()
    key = UsageKey("L1", "t1", 1)
    ledger.usages.start(key, "s1", Decimal(8), {})
    clock.advance_seconds(HOUR)
    ledger.usages.end(key, "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    before = sweep_report(ledger, book, "s1", clock.utc, rules=RULES)
    clock.advance_seconds(HOUR)
    ledger.usages.end(key, "COMPLETED")
    ledger.leases.detach("L1", "s1", "done")
    ledger.leases.close("L1", "done")
    after = sweep_report(ledger, book, "s1", clock.utc, rules=RULES)
    assert (after.total_pico, after.rows) == (before.total_pico, before.rows)


def test_another_program_sees_the_same_numbers_as_long_as_nothing_is_written(open_lease, clock, book, place):
    from cost.ledger.ledger import Ledger

    ledger = awkward(open_lease, clock)
    price = PriceBook((row("1.006", cards=7),))
    with Ledger.open(place, read_only=True) as reader:
        assert sweep_report(reader, price, "s1", clock.utc, rules=RULES) == sweep_report(
            ledger, price, "s1", clock.utc, rules=RULES
        )


def test_every_column_flag_category_and_check_is_documented():
    from pathlib import Path

    from cost.close.check import CHECKS

    docs = Path(__file__).parents[3] / "docs"
    report, ledger = ((docs / name).read_text(encoding="utf-8") for name in ("cost-report.md", "ledger.md"))
    flags = ("UNPRICED", "imputed", "simulated", "open", "end_estimated", "wall", "oversubscribed", "over_reported")
    assert [name for name in (*COLUMNS, *flags, "corrected") if f"`{name}`" not in report] == []
    assert [name for name in CHECKS if f"`{name}`" not in ledger] == []


def test_the_forecast_of_a_trials_first_attempt_is_in_its_columns_to_the_last_digit(
    any_database, open_lease, clock, book
):
    ledger = open_lease()
    said = ({"forecast_p50": "0.012345678901 USD", "forecast_p90": "0.02 USD"}, {"forecast_p50": "9 USD"}, {})
    for number, labels in enumerate(said, 1):
        key = UsageKey("L1", "t1", number)
        ledger.usages.start(key, "s1", Decimal(8), {"stage": "smoke", **labels})
        clock.advance_seconds(60)
        ledger.usages.end(key, "PREEMPTED" if number < 3 else "COMPLETED")
    ledger.usages.start(UsageKey("L1", "t2", 1), "s1", Decimal(8), {"stage": "smoke"})
    clock.advance_seconds(60)
    report = sweep_report(ledger, book, "s1", clock.utc, rules=RULES)
    first, second, *_ = csv.DictReader(io.StringIO(csv_text(report)))
    assert (first["forecast_p50"], first["forecast_p90"]) == ("0.012345678901", "0.02")
    assert (second["forecast_p50"], second["forecast_p90"]) == ("", ""), "unknown is not zero"
    assert json.loads(as_json(report))["trials"][0]["labels"]["forecast_p50"] == "0.012345678901 USD"


def test_a_forecast_is_converted_with_the_costs_it_stands_beside(open_lease, clock, book, tmp_path):
    from cost.reports.grouped import ReportScope, grouped_report

    rate = "{base: USD, quote: EUR, rate: '0.5', day: 2025-12-31, source: bank, day_read: 2026-01-01}"
    (tmp_path / "fx.yaml").write_text(f"rates:\n  - {rate}\n", encoding="utf-8")
    ledger = open_lease()
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(8), {"forecast_p50": "3 USD"})
    clock.advance_seconds(HOUR)
    scope = ReportScope(by="trial", currency="EUR")
    report = grouped_report(ledger, PriceBook(book.rows, str(tmp_path)), scope, clock.utc, rules=RULES)
    (cells,) = csv.DictReader(io.StringIO(csv_text(report)))
    assert (cells["cost"], cells["currency"], cells["forecast_p50"]) == ("4", "EUR", "1.5")


@pytest.mark.parametrize("text", ["0.5", "", "about 3 USD", "-1 USD", "1e-3 USD"])
def test_a_forecast_that_is_no_amount_with_a_currency_is_refused_when_it_is_written(open_lease, text):
    from cost.records import LedgerError

    ledger, key = open_lease(), UsageKey("L1", "t1", 1)
    with pytest.raises(LedgerError, match="label forecast_p50"):
        ledger.usages.start(key, "s1", Decimal(8), {"forecast_p50": text})
    ledger.usages.start(key, "s1", Decimal(8), {})
    with pytest.raises(LedgerError, match="label forecast_p90"):
        ledger.usages.set_labels(key, {"forecast_p90": text})
