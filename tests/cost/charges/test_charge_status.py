"""The status of an amount: estimated, provisional or invoiced."""

from __future__ import annotations

import pytest

from cost.charges.charge_status import invoice_numbers, invoiced_spans, least_final, record_invoice, status_at
from cost.records import Lease, LeaseState

LEASE = Lease("L1", "i", "m", "sku", "cloud", 8, "USD", None)


@pytest.mark.parametrize(
    ("to_ns", "at_ns", "status"),
    [(None, 5, "estimated"), (100, 5, "provisional"), (100, 10, "invoiced"), (None, 10, "invoiced")],
)
def test_an_amount_is_final_as_far_as_the_lease_has_ended_and_a_bill_covers_it(to_ns, at_ns, status):
    state = LeaseState(LEASE, 0, to_ns, None, False, 0, ())
    assert status_at(state, at_ns, [(10, 20)]) == status


def test_the_end_of_an_invoiced_span_is_not_invoiced():
    assert status_at(LeaseState(LEASE, 0, 100, None, False, 0, ()), 20, [(10, 20)]) == "provisional"


def test_a_sum_has_the_least_final_status_of_its_parts():
    assert least_final(["invoiced", "provisional"]) == "provisional"
    assert least_final(["invoiced", "estimated", "provisional"]) == "estimated"
    assert least_final(["invoiced"]) == "invoiced"


def test_recording_an_invoice_again_changes_nothing_and_further_spans_of_the_same_bill_are_added(ledger):
    for _ in range(2):
        record_invoice(ledger, "sha", {"L1": [(10, 20)]}, "INV-1")
    assert invoiced_spans(ledger) == {"L1": [(10, 20)]}
    record_invoice(ledger, "sha", {"L1": [(20, 30)]}, "INV-1")
    assert invoiced_spans(ledger) == {"L1": [(10, 20), (20, 30)]}


def test_spans_and_numbers_are_known_from_the_moment_they_are_recorded(ledger, clock):
    before = clock.utc
    clock.advance_seconds(1)
    record_invoice(ledger, "sha1", {"L1": [(10, 20)]}, "INV-1")
    clock.advance_seconds(1)
    record_invoice(ledger, "sha2", {"L1": [(10, 30)], "L2": [(0, 5)]})
    record_invoice(ledger, "sha3", {"L1": [(15, 25)]}, "INV-3")
    assert invoiced_spans(ledger, before) == {}
    assert invoice_numbers(ledger, before) == {}
    assert invoiced_spans(ledger)["L2"] == [(0, 5)]
    assert invoice_numbers(ledger) == {"L1": [(15, 25, "INV-3"), (10, 20, "INV-1")]}, "the latest invoice comes first"
