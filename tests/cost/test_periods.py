"""Days, weeks and months in any zone, clock changes included."""

from datetime import date
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.periods import instant_ns, midnight_ns, period_edges, period_name, zone_of
from cost.records import LedgerError

HOUR = 3600 * 10**9
BERLIN = zone_of("Europe/Berlin")


def test_a_day_on_which_clocks_change_has_23_or_25_hours():
    assert midnight_ns(date(2026, 10, 26), BERLIN) - midnight_ns(date(2026, 10, 25), BERLIN) == 25 * HOUR
    assert midnight_ns(date(2026, 3, 30), BERLIN) - midnight_ns(date(2026, 3, 29), BERLIN) == 23 * HOUR


def test_both_hours_of_a_clock_change_belong_to_their_day():
    start = midnight_ns(date(2026, 10, 25), BERLIN)
    names = [period_name(start + n * HOUR, "day", BERLIN) for n in range(26)]
    assert names == ["2026-10-25"] * 25 + ["2026-10-26"]


def test_weeks_begin_on_monday_and_have_their_iso_number():
    assert period_name(instant_ns("2026-11-29T12:00", BERLIN), "week", BERLIN) == "2026-W48"
    assert period_name(instant_ns("2027-01-03", BERLIN), "week", BERLIN) == "2026-W53"


@given(
    st.integers(0, 4_000_000_000),
    st.integers(0, 90 * 24 * 3600),
    st.sampled_from(["day", "week", "month"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia"]),
)
def test_edges_cover_a_range_and_no_period_crosses_one(start, length, period, zone_name):
    zone = zone_of(zone_name)
    from_ns, to_ns = start * 10**9, (start + length) * 10**9
    edges = period_edges(from_ns, to_ns, period, zone)
    assert edges == sorted(edges)
    assert edges[0] <= from_ns
    assert edges[-1] > to_ns
    for left, right in pairwise(edges):
        if left < right:
            assert period_name(left, period, zone) == period_name(right - 1, period, zone)
            assert period_name(left, period, zone) != period_name(right, period, zone)


def test_an_offset_in_a_text_wins_over_the_zone():
    assert instant_ns("2026-11-29T08:00+08:00", BERLIN) == instant_ns("2026-11-29T00:00Z", BERLIN)
    assert instant_ns("2026-11-29T01:00", BERLIN) == instant_ns("2026-11-29T00:00Z", BERLIN)


def test_what_is_no_date_and_no_zone_is_refused():
    with pytest.raises(LedgerError, match="is not a date"):
        instant_ns("29.11.2026", BERLIN)
    with pytest.raises(LedgerError, match="no time zone"):
        zone_of("../etc/passwd")
