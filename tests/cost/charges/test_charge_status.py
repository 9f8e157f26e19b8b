"""The status of an amount: estimated, provisional or invoiced."""

from __future__ import annotations

import pytest

from cost.charges.charge_status import (
    AppliedBill,
    applied_bills,
    bills_of_charge,
    bills_of_correction,
    correction_prefix,
    invoice_number,
    least_final,
    record_invoice,
    status_of,
)
from cost.records import Lease, LeaseState

LEASE = Lease("L1", "i", "m", "sku", "cloud", 8, "USD", None)


def applied(start: int, stop: int, *, kind: str = "", invoice: str = "", corrections: tuple[str, ...] = ()):
    return AppliedBill(start, stop, kind, invoice, "sha", frozenset(corrections))


@pytest.mark.parametrize(
    ("to_ns", "at_ns", "status"),
    [(None, 5, "estimated"), (100, 5, "provisional"), (100, 10, "invoiced"), (None, 10, "invoiced")],
)
def test_an_amount_is_final_as_far_as_the_lease_has_ended_and_a_bill_covers_it(to_ns, at_ns, status):
    state = LeaseState(LEASE, 0, to_ns, None, False, 0, ())
    assert status_of(state, bills_of_charge([applied(10, 20)], at_ns, "train")) == status


def test_the_end_of_an_invoiced_span_is_not_invoiced():
    state = LeaseState(LEASE, 0, 100, None, False, 0, ())
    assert status_of(state, bills_of_charge([applied(10, 20)], 20, "train")) == "provisional"


def test_a_bill_of_machine_time_does_not_change_the_status_of_storage():
    bills = [applied(10, 20, kind="machine", invoice="M-1"), applied(10, 20, kind="storage", invoice="S-1")]
    assert invoice_number(bills_of_charge(bills, 15, "rollout")) == "M-1"
    assert invoice_number(bills_of_charge(bills, 15, "requests")) == "S-1"
    assert bills_of_charge(bills, 15, "tax") == []


def test_a_correction_is_on_the_bill_that_it_comes_from_or_that_it_was_compared_with():
    bills = [applied(10, 20, invoice="INV-1", corrections=("cn-1",))]
    for correction_id, number in (("cn-1", "INV-1"), ("cn-2", ""), (f"{correction_prefix('sha')}L1:0", "INV-1")):
        assert invoice_number(bills_of_correction(bills, correction_id, 15, "credit")) == number
    assert bills_of_correction(bills, f"{correction_prefix('other')}L1:0", 15, "credit") == []


def test_a_sum_has_the_least_final_status_of_its_parts():
    assert least_final(["invoiced", "provisional"]) == "provisional"
    assert least_final(["invoiced", "estimated", "provisional"]) == "estimated"
    assert least_final(["invoiced"]) == "invoiced"


def spans(ledger, as_of_ns: int | None = None) -> dict[str, list[tuple[int, int, str]]]:
    found = applied_bills(ledger, as_of_ns)
    return {lease_id: [(b.from_ns, b.to_ns, b.invoice) for b in bills] for lease_id, bills in found.items()}


def test_recording_an_invoice_again_changes_nothing_and_further_spans_of_the_same_bill_are_added(ledger):
    for _ in range(2):
        record_invoice(ledger, "sha", {"L1": [(10, 20)]}, "INV-1")
    assert spans(ledger) == {"L1": [(10, 20, "INV-1")]}
    record_invoice(ledger, "sha", {"L1": [(20, 30)]}, "INV-1")
    assert spans(ledger) == {"L1": [(20, 30, "INV-1"), (10, 20, "INV-1")]}


def test_spans_and_numbers_are_known_from_the_moment_they_are_recorded(ledger, clock):
    before = clock.utc
    clock.advance_seconds(1)
    record_invoice(ledger, "sha1", {"L1": [(10, 20)]}, "INV-1")
    clock.advance_seconds(1)
    record_invoice(ledger, "sha2", {"L1": [(10, 30)], "L2": [(0, 5)]})
    record_invoice(ledger, "sha3", {"L1": [(15, 25)]}, "INV-3")
    assert spans(ledger, before) == {}
    assert spans(ledger)["L2"] == [(0, 5, "")]
    bills = applied_bills(ledger)["L1"]
    numbers = {at_ns: invoice_number(bills_of_charge(bills, at_ns, "train")) for at_ns in (12, 17, 22, 27)}
    assert numbers == {12: "INV-1", 17: "INV-3", 22: "INV-3", 27: ""}, "the latest invoice with a number counts"
