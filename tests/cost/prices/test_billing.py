"""Billing rules: the golden rows of the billing table, the public cases, and properties of every charge."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.clock import NS_PER_SECOND
from cost.money import PICO_PER_UNIT
from cost.periods import instant_ns
from cost.prices.billing import (
    BillingRule,
    charge,
    load_rules,
    quantity_pico,
    rule_for,
    storage_pico,
    total,
)
from cost.prices.book import MissingPriceError, PriceBook, PriceError, PriceRow, read_row

FOLDER = Path(__file__).parents[3] / "conf" / "pricing"
RULES = load_rules(FOLDER)
START = instant_ns("2026-11-01T10:00:00Z")
HOUR = 3600


def price_row(price: str = "3.60", **changes: object) -> PriceRow:
    raw = {"provider": "p", "sku": "sku", "per": "card_hour", "cards": 0, "currency": "USD", "price": price}
    raw |= {"valid_from": "2026-01-01", "source": "test", "day_read": "2026-11-29"}
    return read_row(raw | changes, "test")


def seconds_billed(
    rule: BillingRule, seconds: float, ended: str | None = "user", purchase: str = "on_demand"
) -> Fraction:
    """The billed seconds of a charge at 3.60 an hour (0.001 a second)."""
    row = price_row(purchase=purchase)
    segments = charge(START, START + round(seconds * NS_PER_SECOND), rule=rule, prices=(row,), cards=1, ended=ended)  # type: ignore[arg-type]
    return Fraction(total(segments), PICO_PER_UNIT // 1000)


GOLDEN = [
    # provider, purchase, leased seconds, ended by, billed seconds
    ("aws", "on_demand", 0, "user", 60),
    ("aws", "on_demand", 30, "user", 60),
    ("aws", "on_demand", 60, "user", 60),
    ("aws", "on_demand", 61, "user", 61),
    ("aws", "on_demand", 61.5, "user", 62),
    ("aws", "on_demand", 3599, "provider", 3599),
    ("aws", "spot", 30, "user", 60),
    ("aws", "spot", 3599, "user", 3599),
    ("aws", "spot", 3599, "provider", 0),
    ("aws", "spot", 3601, "provider", 3601),
    ("aws", "spot", 1800, None, 1800),
    ("runpod", "on_demand", 1, "user", 1),
    ("runpod", "on_demand", 0.25, "user", 1),
    ("runpod", "on_demand", 90, "user", 90),
    ("lambda", "on_demand", 1, "user", 60),
    ("lambda", "on_demand", 60, "user", 60),
    ("lambda", "on_demand", 61, "user", 120),
    ("vast", "on_demand", 59.1, "user", 60),
    ("vast", "spot", 59, "provider", 59),
    ("scaleway", "on_demand", 1, "user", 60),
    ("scaleway", "on_demand", 0, "user", 0),
    ("scaleway", "on_demand", 121, "user", 180),
    ("atlascloud", "on_demand", 1, "user", 60),
    ("atlascloud", "on_demand", 119, "user", 120),
    ("fptcloud-finetuning", "on_demand", 8 * 60, "user", 900),
    ("fptcloud-finetuning", "on_demand", 901, "user", 1800),
    ("cn-hourly", "on_demand", 1, "user", HOUR),
    ("cn-hourly", "on_demand", HOUR, "user", HOUR),
    ("cn-hourly", "on_demand", HOUR, None, 2 * HOUR),
    ("cn-hourly", "on_demand", HOUR + 1, "user", 2 * HOUR),
    ("cn-per-second", "on_demand", 61, "user", 61),
    ("cn-per-second", "on_demand", 3, "user", 10),
    ("own", "on_demand", 30, "user", 30),
]


@pytest.mark.parametrize(("provider", "purchase", "leased", "ended", "billed"), GOLDEN)
def test_each_row_of_the_billing_table_matches_the_providers_page(provider, purchase, leased, ended, billed):
    rule = rule_for(RULES, provider, purchase)
    assert seconds_billed(rule, leased, ended, purchase) == billed


def test_the_billing_rule_decides_whether_the_disk_of_a_stopped_machine_is_charged():
    rules = {(r.provider, r.purchases): r.storage_rule for r in RULES}
    assert all(rule == "while_stopped" for (p, _), rule in rules.items() if p in ("aws", "runpod", "lambda", "vast"))
    assert {rule for (p, _), rule in rules.items() if p.startswith("cn-")} == {"daily"}


def test_only_the_states_that_the_provider_bills_are_billed():
    states = {r.provider: set(r.billed_states) for r in RULES}
    assert states["aws"] == {"running"}
    assert states["vast"] == {"loading", "running"}
    assert states["scaleway"] == {"running", "standby", "stopped_in_place"}


def test_a_spot_price_that_changes_mid_run_is_charged_in_segments_of_instance_hours():
    """emr-cost-calculator#3: 4 machines, 8 h at 0.20 and 2 h at 0.37 are 9.36, not 14.80."""
    first = price_row("0.20", per="machine_hour", purchase="spot")
    second = price_row("0.37", per="machine_hour", purchase="spot", valid_from="2026-11-01T18:00:00Z")
    rule = rule_for(RULES, "aws", "spot")
    one = charge(START, START + 10 * HOUR * NS_PER_SECOND, rule=rule, prices=(first, second), cards=1, ended="user")
    assert [s.pico for s in one] == [1_600_000_000_000, 740_000_000_000]
    assert 4 * total(one) == 9_360_000_000_000


def test_a_spot_price_applies_until_its_instance_hour_ends():
    first = price_row("1.00", per="machine_hour", purchase="spot")
    second = price_row("2.00", per="machine_hour", purchase="spot", valid_from="2026-11-01T10:30:00Z")
    rule = rule_for(RULES, "aws", "spot")
    segments = charge(START, START + 90 * 60 * NS_PER_SECOND, rule=rule, prices=(first, second), cards=1, ended="user")
    assert [(s.to_ns - s.from_ns) // NS_PER_SECOND for s in segments] == [3600, 1800]
    assert total(segments) == 2 * PICO_PER_UNIT
    moment = charge(
        START,
        START + 90 * 60 * NS_PER_SECOND,
        rule=replace(rule, spot_price_rule="moment"),
        prices=(first, second),
        cards=1,
    )
    assert total(moment) == PICO_PER_UNIT // 2 + 2 * PICO_PER_UNIT


@pytest.mark.parametrize(
    ("leased", "ended", "billed"), [(3599, "provider", 0), (3601, "provider", 3601), (30, "user", 60)]
)
def test_partial_spot_hours_are_free_only_when_the_provider_interrupts_in_the_first_hour(leased, ended, billed):
    """ec2-user-guide#97."""
    assert seconds_billed(rule_for(RULES, "aws", "spot"), leased, ended, "spot") == billed


def test_waived_time_is_still_covered_by_a_segment_so_that_every_card_second_has_a_category():
    rule = rule_for(RULES, "aws", "spot")
    segments = charge(
        START, START + 600 * NS_PER_SECOND, rule=rule, prices=(price_row(purchase="spot"),), cards=8, ended="provider"
    )
    assert [(s.from_ns, s.to_ns, s.pico, s.category) for s in segments] == [
        (START, START + 600 * NS_PER_SECOND, 0, "machine")
    ]


def test_time_added_by_a_billing_rule_is_billing_increment_and_not_machine_time():
    rule = rule_for(RULES, "lambda")
    machine, increment = charge(
        START, START + 61 * NS_PER_SECOND, rule=rule, prices=(price_row(),), cards=8, ended="user"
    )
    assert (machine.category, increment.category) == ("machine", "billing_increment")
    assert machine.pico == 61 * 8 * PICO_PER_UNIT // 1000
    assert increment.pico == 59 * 8 * PICO_PER_UNIT // 1000


def test_own_hardware_costs_watts_times_the_price_of_energy():
    row = price_row("0.1805", per="kwh", purchase="own")
    segments = charge(
        START, START + HOUR * NS_PER_SECOND, rule=rule_for(RULES, "own"), prices=(row,), cards=1, watts=350
    )
    assert total(segments) == 63_175_000_000


def test_an_hour_paid_in_advance_keeps_the_price_at_its_start():
    rows = (price_row("1.00"), price_row("2.00", valid_from="2026-11-01T10:30:00Z"))
    segments = charge(
        START, START + 70 * 60 * NS_PER_SECOND, rule=rule_for(RULES, "cn-hourly"), prices=rows, cards=1, ended="user"
    )
    assert total(segments) == 3 * PICO_PER_UNIT


def test_a_lease_that_ends_before_it_starts_is_an_error():
    with pytest.raises(PriceError, match="before it starts"):
        charge(START, START - 1, rule=RULES[0], prices=(price_row(),), cards=1)


def test_a_moment_without_a_price_is_an_error_that_names_sku_and_command():
    rows = (price_row(valid_to="2026-11-01T10:30:00Z"),)
    with pytest.raises(MissingPriceError, match=r"SKU 'sku'.*2026-11-01T10:30:00Z.*python -m cost prices add sku"):
        charge(START, START + HOUR * NS_PER_SECOND, rule=RULES[0], prices=rows, cards=1)


def test_an_increment_after_the_last_price_is_charged_at_the_last_price():
    rows = (price_row(valid_to="2026-11-01T10:00:30Z"),)
    segments = charge(
        START, START + 30 * NS_PER_SECOND, rule=rule_for(RULES, "aws"), prices=rows, cards=1, ended="user"
    )
    assert total(segments) == 60 * PICO_PER_UNIT // 1000


def test_prices_in_two_currencies_are_refused():
    with pytest.raises(PriceError, match="one currency"):
        charge(START, START + 1, rule=RULES[0], prices=(price_row(), price_row(currency="CNY")), cards=1)


def test_an_unknown_provider_is_an_error_that_lists_the_known_ones():
    with pytest.raises(PriceError, match=r"'nobody'.*billing\.yaml.*aws.*runpod"):
        rule_for(RULES, "nobody")


def test_every_price_of_time_has_a_billing_rule():
    for row in PriceBook.load(FOLDER).rows:
        assert rule_for(RULES, row.provider, row.purchase)


def test_storage_is_prorated_over_the_length_of_each_calendar_month():
    row = price_row("0.30", per="gib_month")
    rule = rule_for(RULES, "runpod")
    november = instant_ns("2026-11-01"), instant_ns("2026-12-01")
    assert storage_pico(*november, row=row, gib=100, rule=rule) == 30 * PICO_PER_UNIT
    day = storage_pico(november[0], instant_ns("2026-11-02"), row=row, gib=100, rule=rule)
    assert day == PICO_PER_UNIT
    both = storage_pico(instant_ns("2026-11-30"), instant_ns("2026-12-02"), row=row, gib=100, rule=rule)
    assert both == PICO_PER_UNIT + Fraction(30 * PICO_PER_UNIT, 31).__floor__()


def test_daily_storage_counts_every_day_of_the_providers_zone_that_is_touched():
    row = price_row("0.30", per="gib_month")
    rule = rule_for(RULES, "cn-hourly")
    a, b = instant_ns("2026-11-01T23:00:00Z"), instant_ns("2026-11-02T01:00:00Z")
    assert rule.timezone == "Asia/Shanghai"
    assert storage_pico(a, b, row=row, gib=100, rule=replace(rule, timezone="UTC")) == 2 * PICO_PER_UNIT
    assert storage_pico(a, b, row=row, gib=100, rule=rule) == PICO_PER_UNIT, "07:00 to 09:00 in Beijing"
    day = instant_ns("2026-11-01T16:00:00Z"), instant_ns("2026-11-02T16:00:00Z")
    assert storage_pico(*day, row=row, gib=100, rule=rule) == PICO_PER_UNIT, "one day of Beijing, from midnight on"


def test_a_quantity_costs_its_price_times_the_quantity():
    assert quantity_pico(price_row("0.09", per="gib"), Decimal("12.5")) == 1_125_000_000_000
    with pytest.raises(PriceError, match="negative"):
        quantity_pico(price_row("0.09", per="gib"), -1)


# Properties -----------------------------------------------------------------------------------------------------

rules = st.builds(
    BillingRule,
    provider=st.just("p"),
    granularity_s=st.sampled_from([1, 60, 900, 3600]),
    minimum_s=st.sampled_from([0, 60, 3600]),
    rounding=st.just("up"),
    charged_ahead=st.booleans(),
    billed_states=st.just(("running",)),
    spot_price_rule=st.sampled_from(["moment", "instance_hour"]),
    interruption_waiver_s=st.sampled_from([0, 3600]),
    storage_rule=st.just("none"),
    source=st.just("s"),
    day_read=st.just("2026-11-29"),
)
durations = st.integers(0, 30 * HOUR * NS_PER_SECOND)
endings = st.sampled_from(["user", "provider", None])


@st.composite
def price_series(draw, purchase: str = "spot") -> tuple[PriceRow, ...]:
    amounts = draw(st.lists(st.decimals("0.01", "99", places=4), min_size=1, max_size=4))
    starts = draw(st.lists(st.integers(1, 40 * 60), min_size=len(amounts), max_size=len(amounts), unique=True))
    rows = [price_row(str(amounts[0]), purchase=purchase)]
    for minute, amount in sorted(zip(starts[1:], amounts[1:], strict=True)):
        moment = f"2026-11-{1 + (600 + minute) // 1440:02d}T{(600 + minute) // 60 % 24:02d}:{minute % 60:02d}:00Z"
        rows.append(price_row(str(amount), purchase=purchase, valid_from=moment))
    return tuple(rows)


@given(rules, price_series(), durations, st.integers(0, 20 * HOUR * NS_PER_SECOND), endings, st.integers(1, 8))
def test_a_charge_never_decreases_with_time(rule, prices, first, more, ended, cards):
    a = charge(START, START + first, rule=rule, prices=prices, cards=cards, ended=ended)
    b = charge(START, START + first + more, rule=rule, prices=prices, cards=cards, ended=ended)
    assert total(a) <= total(b)


@given(rules, price_series(), durations, endings, st.integers(1, 8))
def test_segments_cover_the_lease_without_gap_and_sum_to_the_floored_exact_total(rule, prices, leased, ended, cards):
    segments = charge(START, START + leased, rule=rule, prices=prices, cards=cards, ended=ended)
    at = START
    exact = Fraction(0)
    by_hash = {p.hash: p for p in prices}
    for s in segments:
        assert s.from_ns == at
        assert s.pico >= 0
        at = s.to_ns
        exact += (
            Fraction(by_hash[s.price_hash].price)
            * PICO_PER_UNIT
            * cards
            * (s.to_ns - s.from_ns)
            / (HOUR * NS_PER_SECOND)
        )
    assert at >= START + leased
    assert all(s.to_ns <= START + leased for s in segments if s.category == "machine")
    assert total(segments) in (0, exact.__floor__())


@given(price_series(), durations, durations, st.integers(1, 8))
def test_past_segments_do_not_change_while_a_lease_continues(prices, leased, more, cards):
    rule = rule_for(RULES, "own")
    rule = replace(rule, spot_price_rule="moment")
    before = charge(START, START + leased // NS_PER_SECOND * NS_PER_SECOND, rule=rule, prices=prices, cards=cards)
    after = charge(START, START + leased // NS_PER_SECOND * NS_PER_SECOND + more, rule=rule, prices=prices, cards=cards)
    assert before[:-1] == after[: max(0, len(before) - 1)]


@given(price_series(), st.integers(1, 20 * HOUR), st.integers(1, 20 * HOUR), st.integers(1, 8))
def test_a_charge_is_additive_over_any_split_to_within_the_one_rounding(prices, first, second, cards):
    rule = replace(rule_for(RULES, "own"), spot_price_rule="moment")
    cut, end = START + first * NS_PER_SECOND, START + (first + second) * NS_PER_SECOND
    whole = total(charge(START, end, rule=rule, prices=prices, cards=cards))
    parts = total(charge(START, cut, rule=rule, prices=prices, cards=cards))
    parts += total(charge(cut, end, rule=rule, prices=prices, cards=cards))
    assert 0 <= whole - parts <= 1


@given(st.integers(1, 10**6), st.decimals("0.0001", "99", places=4), st.decimals("0.0001", "99", places=4))
def test_at_a_price_change_both_sides_are_charged_to_the_nanosecond(minutes, low, high):
    change = START + (minutes % 1200 + 1) * 60 * NS_PER_SECOND
    text = f"2026-11-{1 + (600 + minutes % 1200 + 1) // 1440:02d}T"
    text += f"{(600 + minutes % 1200 + 1) // 60 % 24:02d}:{(minutes % 1200 + 1) % 60:02d}:00Z"
    rows = (price_row(str(low)), price_row(str(high), valid_from=text))
    segments = charge(
        change - 1, change + 1, rule=replace(rule_for(RULES, "own"), rounding="down"), prices=rows, cards=1
    )
    assert [(s.from_ns, s.to_ns) for s in segments] == [(change - 1, change), (change, change + 1)]
