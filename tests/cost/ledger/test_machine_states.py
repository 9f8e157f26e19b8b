"""Stopped machines: what the provider bills, and which sweeps are charged."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cost.charges import metered
from cost.charges.attribution import attribute
from cost.charges.lease_charge import charge_lease_time, cut_segments
from cost.charges.metered import MeteredResource
from cost.cli.main import app
from cost.clock import NS_PER_HOUR, NS_PER_SECOND, FakeClock
from cost.close.check import run_checks
from cost.close.close_month import close_month
from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import StateChange, known_states, load_changes, set_state, state_spans
from cost.money import pico_of
from cost.periods import instant_ns
from cost.prices.billing import BillingRule, charge, load_rules, rule_for
from cost.prices.book import PriceBook, PriceRow, pico_per_hour, read_row
from cost.records import IntegrityError, Lease, LeaseState, LedgerError, UsageKey
from cost.reports import focus
from cost.reports.grouped import ReportScope, grouped_report
from cost.reports.lease_status import lease_statuses

HOUR = 3600
START = FakeClock().utc


def rule(*billed: str, provider: str = "cloud", minimum_s: int = 60, storage: str = "while_stopped") -> BillingRule:
    states = ("running", *billed)
    return BillingRule(provider, 1, minimum_s, "up", False, states, "moment", 0, storage, "page", "2025-12-01")


def price(sku: str, amount: str, **changes: object) -> PriceRow:
    raw = {"provider": "cloud", "sku": sku, "per": "machine_hour", "cards": 8, "currency": "USD", "price": amount}
    raw |= {"valid_from": "2025-01-01", "source": "https://example.org/prices", "day_read": "2025-12-01"}
    return read_row(raw | changes, "test")


BOX = price("box", "8")
BOOK = PriceBook((BOX, price("disk", "0.31", per="gib_month", cards=0)))
RULES = (rule(),)


def enter(ledger: Ledger, state: str, at_ns: int | None = None, rules=RULES) -> bool:
    return set_state(ledger, StateChange("L1", state, ledger.now_ns() if at_ns is None else at_ns), rules)


@pytest.fixture
def leased_box(ledger, clock, make_lease) -> Ledger:
    """Two hours of a trial, three hours stopped, half a minute running, half an hour stopped, an hour of a trial."""
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", price_hash=BOX.hash))
    for name, seconds in (("t1", 2 * HOUR), ("", 3 * HOUR), ("idle", 30), ("", HOUR // 2), ("t2", HOUR)):
        enter(ledger, "running" if name else "stopped")
        if name.startswith("t"):
            ledger.leases.attach("L1", f"sweep of {name}")
            ledger.usages.start(UsageKey("L1", name, 1), f"sweep of {name}", Decimal(8), {})
        clock.advance_seconds(seconds)
        if name.startswith("t"):
            ledger.usages.end(UsageKey("L1", name, 1), "COMPLETED")
            # The lease was opened by hand: it stays open when its last sweep is detached.
            ledger.leases.detach("L1", f"sweep of {name}", "done") if name == "t2" else None
    return ledger


@pytest.fixture
def make_lease(make_lease):
    return lambda lease_id, **more: make_lease(lease_id, **{"opened_by": "hand", **more})


def by_category(ledger, clock, rules=RULES, **scope) -> dict[str, tuple[int, Decimal]]:
    report = grouped_report(ledger, BOOK, ReportScope(**{"by": "category", **scope}), clock.utc, rules=rules)
    return {row.name: (row.pico, row.card_hours) for row in report.rows}


def test_unbilled_stopped_time_costs_nothing_and_every_start_costs_the_minimum(any_database, leased_box, clock):
    found = by_category(leased_box, clock)
    assert found["other"] == (pico_of(24), 24)
    assert found["stopped"] == (0, 28)
    # The provider's minimum of one minute is billed for the idle run of 30 seconds.
    assert found["idle"][0] + found["billing_increment"][0] == pico_of(8) // 60
    assert run_checks(leased_box, BOOK, clock.utc, rules=RULES) == []
    rows = list(focus.rows(attribute(leased_box, BOOK, clock.utc, rules=RULES)))
    assert sum(pico_of(Decimal(row["EffectiveCost"])) for row in rows) == sum(pico for pico, _ in found.values())


def test_a_billed_state_costs_as_much_as_running_in_a_category_of_its_own(any_database, leased_box, clock):
    found = by_category(leased_box, clock, rules=(rule("stopped"),))
    assert found["stopped"] == (pico_of(28), 28)
    assert sum(pico for pico, _ in found.values()) == pico_of(52) + pico_of(8) * 30 // HOUR
    assert "billing_increment" not in found, "a billed stop is followed by no new start"
    assert run_checks(leased_box, BOOK, clock.utc, rules=(rule("stopped"),)) == []


def test_only_attached_sweeps_are_charged_for_stopped_time(leased_box, clock):
    rules = (rule("stopped"),)
    assert by_category(leased_box, clock, rules, sweep_id="sweep of t1")["stopped"] == (pico_of(28), 28)
    assert "stopped" not in by_category(leased_box, clock, rules, sweep_id="sweep of t2")


@pytest.mark.parametrize(("storage", "hours"), [("while_stopped", 6.5), ("while_running", 3)])
def test_the_providers_rule_decides_the_cost_of_a_disk_of_a_stopped_machine(leased_box, clock, storage, hours):
    rules = (rule(storage=storage),)
    disk = MeteredResource(
        "d", "L1", "disk", "on_demand", "", "list", Decimal(744), START, START + round(6.5 * NS_PER_HOUR)
    )
    metered.add_resource(leased_box, disk, BOOK.rows[1], ())
    cost, _ = by_category(leased_box, clock, rules)["storage"]
    assert 0 <= pico_of(Decimal("0.31") * Decimal(str(hours))) - cost <= 2, "744 GiB for an hour are one for a month"
    assert run_checks(leased_box, BOOK, clock.utc, rules=rules) == []


def test_an_as_of_report_uses_the_machine_states_recorded_by_then(leased_box, clock):
    then = clock.utc
    clock.advance_seconds(10)
    enter(leased_box, "stopped")
    clock.advance_seconds(HOUR)
    assert by_category(leased_box, clock)["stopped"] == (0, 36)
    then_known = by_category(leased_box, clock, as_of_ns=then)
    assert then_known["stopped"] == (0, 28)
    assert then_known["idle"][1] == Decimal("8.088889"), "as if the machine was still running"


def test_the_same_state_again_changes_nothing(any_database, ledger, clock, make_lease):
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud"))
    assert not enter(ledger, "running"), "a machine runs from the start"
    clock.advance_seconds(60)
    assert enter(ledger, "stopped")
    clock.advance_seconds(60)
    assert not enter(ledger, "stopped")
    assert [change.state for change in load_changes(ledger.events)["L1"]] == ["stopped"]


def test_an_impossible_state_change_is_refused(ledger, clock, make_lease):
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud"))
    ledger.leases.attach("L1", "s1")
    ledger.usages.start(UsageKey("L1", "t1", 1), "s1", Decimal(8), {})
    clock.advance_seconds(HOUR)
    with pytest.raises(LedgerError, match="'asleep' is not a state of a machine; choose one of running, stopped"):
        enter(ledger, "asleep")
    with pytest.raises(LedgerError, match="outside of lease L1, which lasted from 2026-01-01T00:00:00Z"):
        enter(ledger, "stopped", START - 1)
    with pytest.raises(LedgerError, match="outside of lease L1"):
        enter(ledger, "stopped", clock.utc + 1)
    with pytest.raises(IntegrityError, match="trial t1 attempt 1 of sweep s1 uses its cards"):
        enter(ledger, "stopped")
    ledger.usages.end(UsageKey("L1", "t1", 1), "COMPLETED")
    with pytest.raises(IntegrityError, match=r"used its cards until 2026-01-01T01:00:00Z"):
        enter(ledger, "stopped", clock.utc - 1)
    with pytest.raises(LedgerError, match="lease L2 does not exist"):
        set_state(ledger, StateChange("L2", "stopped", clock.utc), RULES)
    assert load_changes(ledger.events) == {}
    enter(ledger, "stopped")
    clock.advance_seconds(60)
    with pytest.raises(IntegrityError, match="the next change must come after that"):
        enter(ledger, "running", clock.utc - 61 * NS_PER_SECOND)


def test_no_sweep_is_attached_to_a_stopped_machine(any_database, ledger, clock, make_lease):
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud"))
    enter(ledger, "stopped")
    with pytest.raises(IntegrityError, match=r"lease L1 is stopped since .*python -m cost leases start L1"):
        ledger.leases.attach("L1", "s1")
    clock.advance_seconds(60)
    enter(ledger, "running")
    ledger.leases.attach("L1", "s1")
    assert ledger.leases.get("L1").sweeps == ("s1",)


def test_a_stop_in_a_closed_month_is_refused(ledger, clock, make_lease):
    ledger.leases.open(make_lease("L1", sku="box", provider="cloud", price_hash=BOX.hash))
    clock.advance_seconds(40 * 86_400)
    close_month(ledger, BOOK, "2026-01", clock.utc, rules=RULES)
    with pytest.raises(IntegrityError, match="that would change 2026-01, which is closed"):
        enter(ledger, "stopped", instant_ns("2026-01-20"))
    assert enter(ledger, "stopped", instant_ns("2026-02-02"))
    assert run_checks(ledger, BOOK, clock.utc, rules=RULES) == []


def test_a_stopped_machine_gives_an_alert_only_if_it_costs_money(leased_box, clock):
    enter(leased_box, "stopped")
    clock.advance_seconds(5 * HOUR)
    (status,) = lease_statuses(leased_box, BOOK, clock.utc, rules=RULES)
    assert (status.machine_state, str(status.per_day), status.alert) == ("stopped", "0 USD", None)
    (status,) = lease_statuses(leased_box, BOOK, clock.utc, rules=(rule("stopped"),))
    assert status.per_day
    assert status.per_day.pico == 24 * pico_of(8)
    assert "leases close L1" in (status.alert or "")
    assert run_checks(leased_box, BOOK, clock.utc, rules=RULES) == []


@pytest.mark.parametrize("one", load_rules(), ids=lambda r: f"{r.provider}{'-spot' if 'spot' in r.purchases else ''}")
def test_every_rule_in_conf_bills_exactly_its_billed_states(one):
    row = price("box", "3600", provider=one.provider, purchase=one.purchases[0] if one.purchases else "on_demand")
    lease = Lease("L1", "i", "m", "box", one.provider, 8, "USD", row.hash)
    end = START + 12 * NS_PER_HOUR
    for state in known_states(load_rules()):
        changes = [
            StateChange("L1", state, START + 4 * NS_PER_HOUR),
            StateChange("L1", "running", START + 8 * NS_PER_HOUR),
        ]
        lease_state = LeaseState(lease, START, end, "done", True, START, ())
        cost = sum(s.pico for s in charge_lease_time(lease_state, [row], load_rules(), end, changes))
        assert cost == pico_of(3600) * (12 if state in one.billed_states else 8), state


# Pure -------------------------------------------------------------------------------------------------------------

times = st.lists(st.integers(1, 10 * NS_PER_HOUR), max_size=6, unique=True).map(sorted)


@settings(max_examples=200)
@given(times, st.integers(1, 11 * NS_PER_HOUR), times, st.booleans(), st.integers(1, 10**15))
def test_each_run_is_charged_separately_and_cutting_keeps_the_sum(at, leased_ns, cuts, closed, amount):
    row = price("box", format(Decimal(amount).scaleb(-12), "f"))
    lease = Lease("L1", "i", "m", "box", "cloud", 8, "USD", row.hash)
    end = START + leased_ns
    state = LeaseState(lease, START, end if closed else None, "done" if closed else None, closed, START, ())
    changes = [StateChange("L1", ("stopped", "running")[n % 2], START + t) for n, t in enumerate(at)]
    segments = charge_lease_time(state, [row], RULES, end, changes)
    time = [s for s in segments if s.category == "machine"]
    assert (time[0].from_ns, time[-1].to_ns) == (START, end)
    assert all(a.to_ns == b.from_ns for a, b in pairwise(time))
    runs = [p for p in state_spans(changes, START, end) if p.state == "running"]
    expected = [
        charge(
            p.from_ns, p.to_ns, rule=RULES[0], prices=[row], cards=8, ended="user" if closed or p.to_ns < end else None
        )
        for p in runs
    ]
    assert sum(s.pico for s in segments) == sum(s.pico for run in expected for s in run)
    edges = sorted(START + c for c in cuts)
    pieces = cut_segments(segments, edges, lambda _: pico_per_hour(row, 8) / NS_PER_HOUR)
    assert sum(s.pico for s in pieces) == sum(s.pico for s in segments)
    assert sum(s.paid_ns for s in pieces) == sum(s.paid_ns for s in segments)
    assert not [s for s in pieces for c in edges if s.from_ns < c < s.to_ns]


# On the command line ----------------------------------------------------------------------------------------------


def test_stop_and_start_on_the_command_line(tmp_path: Path):
    runner, root = CliRunner(), ["--root", str(tmp_path / "runs")]
    opening = ["leases", "open", "--machine", "m", "--sku", "lambda-h100x8", "--cards", "8", "--instance", "i-1"]
    opened = runner.invoke(app, [*opening, "--from", "2026-11-20T00:00", *root], catch_exceptions=False)
    lease = opened.output.strip()
    for command in (["stop", lease, "--at", "2026-11-20T02:00"], ["start", lease, "--at", "2026-11-21T00:00"]):
        for _ in range(2):
            result = runner.invoke(app, ["leases", *command, *root], catch_exceptions=False)
            assert (result.exit_code, result.output) == (0, ""), "the same again changes nothing"
    runner.invoke(app, ["leases", "stop", lease, "--at", "2026-11-21T01:00", *root], catch_exceptions=False)
    (body,) = json.loads(runner.invoke(app, ["leases", "list", "--json", *root]).output)["leases"]
    rate = rule_for(load_rules(), "lambda")
    assert (body["state"], rate.billed_states) == ("stopped", ("running",))
    assert Decimal(body["cost"]) == 3 * Decimal("31.92")
    listed = runner.invoke(app, ["leases", "list", *root]).output
    assert "open, stopped" in listed
    assert max(map(len, listed.splitlines())) <= 100
    wrong = runner.invoke(app, ["leases", "stop", lease, "--state", "asleep", *root])
    assert wrong.exit_code == 2
    assert "'asleep' is not a state of a machine" in wrong.output
