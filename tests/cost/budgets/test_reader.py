"""Budget snapshots, read from ledgers on both databases."""

from __future__ import annotations

from cost.budgets.budget import set_limit
from cost.budgets.reader import EXACT_FOR_NS, BudgetReader
from cost.budgets.snapshot import Limit
from cost.ledger.ledger import Ledger
from cost.money import Money
from cost.periods import instant_ns
from cost.prices.book import PriceBook
from tests.cost.budgets.conftest import USD, start
from tests.cost.reports.test_report import RULES, row, rule

PER_HOUR = 8 * USD


def reader_of(ledger: Ledger, *scopes: str, **more) -> BudgetReader:
    return BudgetReader(ledger, PriceBook((row(),)), scopes, **{"always": scopes, "rules": RULES, **more})


def test_an_estimate_between_two_exact_readings_equals_the_exact_amount_where_one_sweep_uses_the_machine(
    machine, clock
):
    scopes = ("sweep:s1", "stage:smoke", "month")
    reader = reader_of(machine, *scopes)
    key = start(machine, "t1", "5 USD")
    assert reader.read(machine.now_ns()).exact
    for _ in range(4):
        clock.advance_seconds(90)
        machine.heartbeat("L1", [key])
        estimate = reader.read(machine.now_ns())
        exact = reader_of(machine, *scopes).read(machine.now_ns(), exact=True)
        assert (estimate.exact, exact.exact) == (False, True)
        assert [estimate.spent(s, "USD") for s in scopes] == [exact.spent(s, "USD") for s in scopes]
    assert estimate.spent("month", "USD").pico == PER_HOUR // 10


def test_an_estimate_counts_the_whole_growth_of_a_shared_machine_under_every_sweep_until_it_is_read_exactly(
    machine, clock
):
    machine.leases.attach("L1", "s2")
    start(machine, "t1", "1 USD")
    start(machine, "t2", "1 USD", sweep="s2")
    reader = reader_of(machine, "sweep:s1", "sweep:s2", "month")
    reader.read(machine.now_ns())
    clock.advance_seconds(360)
    estimate = reader.read(machine.now_ns())
    exact = reader.read(machine.now_ns(), exact=True)
    sweeps = ("sweep:s1", "sweep:s2")
    assert [estimate.spent(sweep, "USD").pico for sweep in sweeps] == [PER_HOUR // 10] * 2
    assert [exact.spent(sweep, "USD").pico for sweep in sweeps] == [PER_HOUR // 20] * 2
    assert exact.spent("month", "USD").pico == PER_HOUR // 10


def test_every_ten_minutes_a_reading_is_exact(machine, clock):
    reader = reader_of(machine, "month")
    reader.read(machine.now_ns())
    clock.advance(EXACT_FOR_NS - 1)
    assert not reader.read(machine.now_ns()).exact
    clock.advance(1)
    assert reader.read(machine.now_ns()).exact


def test_the_amounts_of_a_month_begin_anew_with_the_next(machine, clock):
    clock.advance(instant_ns("2026-01-31T23:00:00Z") - machine.now_ns())
    reader = reader_of(machine, "month", "sweep:s1")
    before = reader.read(machine.now_ns())
    clock.advance_seconds(2 * 3600)
    after = reader.read(machine.now_ns())
    assert before.month_end_ns == instant_ns("2026-02-01T00:00:00Z")
    assert after.spent("month", "USD").pico == PER_HOUR
    assert after.spent("sweep:s1", "USD") == before.spent("sweep:s1", "USD") + Money(2 * PER_HOUR, "USD")


def test_the_cost_of_an_attempt_is_no_longer_reserved(machine, clock):
    reader = reader_of(machine, "sweep:s1")
    start(machine, "t1", "1 USD")
    clock.advance_seconds(1800)
    assert reader.read(machine.now_ns()).reserved("sweep:s1", "USD").pico == USD // 2
    clock.advance_seconds(3600)
    assert reader.read(machine.now_ns()).reserved("sweep:s1", "USD").pico == 0


def test_the_reservation_of_an_attempt_that_has_ended_is_free(machine):
    key = start(machine, "t1", "1 USD")
    machine.usages.end(key, "COMPLETED")
    assert reader_of(machine, "month").read(machine.now_ns()).reserved("month", "USD").pico == 0


def test_a_stage_and_a_month_count_every_sweep_and_a_sweep_counts_itself(machine, clock, make_lease):
    machine.leases.open(make_lease("L2", sku="box", provider="cloud", price_hash=row().hash))
    machine.leases.attach("L2", "s2")
    start(machine, "t1", "1 USD")
    start(machine, "t9", "2 USD", lease="L2", sweep="s2")
    scopes = ("sweep:s1", "sweep:s2", "stage:smoke", "stage:multi", "month")
    reader = reader_of(machine, *scopes)
    snapshot = reader.read(machine.now_ns())
    reserved = {scope: snapshot.reserved(scope, "USD").pico / USD for scope in scopes}
    assert reserved == {"sweep:s1": 1, "sweep:s2": 2, "stage:smoke": 3, "stage:multi": 0, "month": 3}
    clock.advance_seconds(360)
    snapshot = reader.read(machine.now_ns(), exact=True)
    spent = {scope: snapshot.spent(scope, "USD").pico / USD for scope in scopes}
    assert spent == {"sweep:s1": 0.8, "sweep:s2": 0.8, "stage:smoke": 1.6, "stage:multi": 0, "month": 1.6}


def test_a_machine_of_another_driver_counts_at_the_next_reading(place, machine, clock, make_lease):
    reader = reader_of(machine, "month")
    reader.read(machine.now_ns())
    clock.advance_seconds(1)
    with Ledger.open(place, clock) as other:
        other.leases.open(make_lease("L2", sku="box", provider="cloud", price_hash=row().hash))
        other.leases.attach("L2", "s2")
        start(other, "t9", "2 USD", lease="L2", sweep="s2")
        with machine.reservations.exclusive():
            snapshot = reader.read(machine.now_ns())
    assert not snapshot.exact
    assert snapshot.reserved("month", "USD").pico == 2 * USD


def test_simulated_machines_are_counted_separately(machine, clock, make_lease):
    more = {"sku": "box", "provider": "cloud", "price_hash": row().hash, "tags": {"simulated": "true"}}
    machine.leases.open(make_lease("L9", **more))
    machine.leases.attach("L9", "s9")
    start(machine, "t9", "2 USD", lease="L9", sweep="s9")
    clock.advance_seconds(360)
    real, simulated = (reader_of(machine, "month", simulated=s).read(machine.now_ns()) for s in (False, True))
    assert (real.spent("month", "USD").pico, real.reserved("month", "USD").pico) == (PER_HOUR // 10, 0)
    assert simulated.spent("month", "USD").pico == PER_HOUR // 10
    assert simulated.reserved("month", "USD").pico == 19 * USD // 10


def test_stored_limits_apply_to_the_scopes_that_were_asked_for_beside_configured_ones(machine):
    configured = Limit("sweep:s1", Money.parse("9 USD"), "budget.sweep_limit")
    reader = reader_of(machine, "sweep:s1", "month", always=(), configured=[configured])
    set_limit(machine, "stage:smoke", Money.parse("1 USD"))
    assert reader.read(machine.now_ns()).limits == (configured,)
    set_limit(machine, "month", Money.parse("5 USD"))
    snapshot = reader.read(machine.now_ns())
    assert snapshot.limits == (configured, Limit("month", Money.parse("5 USD")))
    assert snapshot.limits[1].source == "cost budget --set month"
    assert set(snapshot.spent_by_scope) == {"sweep:s1", "month"}


def test_without_limits_nothing_is_read_and_nothing_is_spent(machine, clock):
    clock.advance_seconds(3600)
    snapshot = reader_of(machine, "sweep:s1", "month", always=()).read(machine.now_ns())
    assert (snapshot.limits, snapshot.leases, snapshot.reservations) == ((), {}, ())


def test_an_open_lease_costs_its_price_from_now_on_and_a_closed_one_nothing(machine, clock):
    reader = reader_of(machine, "month")
    clock.advance_seconds(60)
    (lease,) = reader.read(machine.now_ns()).leases.values()
    assert lease.pico_per_ns * 3600 * 10**9 == PER_HOUR
    machine.leases.close("L1", "done")
    (lease,) = reader.read(machine.now_ns()).leases.values()
    assert (lease.pico_per_ns, lease.is_open) == (0, False)


def test_a_lease_without_a_price_is_named_and_in_no_amount(machine, clock, make_lease):
    machine.leases.open(make_lease("L2", sku="unheard-of", price_hash=None))
    clock.advance_seconds(3600)
    snapshot = reader_of(machine, "month").read(machine.now_ns())
    assert list(snapshot.unpriced) == ["L2"]
    assert "SKU 'unheard-of' has no price" in snapshot.unpriced["L2"]
    assert snapshot.spent("month", "USD").pico == PER_HOUR


def test_what_a_provider_charges_ahead_is_spent_and_prepaid(machine, clock):
    rules = (rule(granularity_s=3600, charged_ahead=True),)
    clock.advance_seconds(900)
    snapshot = reader_of(machine, "month", rules=rules).read(machine.now_ns())
    assert snapshot.spent("month", "USD").pico == PER_HOUR
    assert snapshot.leases["L1"].prepaid == PER_HOUR * 3 // 4
