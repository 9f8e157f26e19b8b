"""Events of the ledger, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from cost.records import IntegrityError, LedgerError, NewEvent


def test_events_are_read_in_order_with_their_bodies(ledger, clock):
    body = {"lr": 1e-5, "name": "größe", "none": None, "list": [1, "two"]}
    assert ledger.events.append("s1", "first", body, "k1")
    assert not ledger.events.append("s1", "first", dict(reversed(body.items())), "k1")
    clock.advance(5)
    assert ledger.events.append("s1", "second", {}, "k2")
    assert ledger.events.append("s2", "first", {}, "k1")
    first, second = ledger.events.read("s1")
    assert (first.sequence, first.body, first.key) == (1, body, "k1")
    assert (second.sequence, second.at_ns) == (2, clock.utc)
    assert list(ledger.events.read("s1", after=1)) == [second]
    assert list(ledger.events.read("s1", after=2)) == list(ledger.events.read("nothing")) == []
    assert ledger.events.streams() == ["s1", "s2"]


def test_many_events_are_appended_at_once_and_existing_events_are_skipped(ledger):
    many = [NewEvent("step", {"n": n}, str(n)) for n in range(1201)]
    assert [e.key for e in ledger.events.append_all("s1", many[:3])] == ["0", "1", "2"]
    assert ledger.events.append_all("s1", many) == list(ledger.events.read("s1", after=3))
    assert ledger.events.append_all("s1", many) == []
    assert [(e.sequence, e.body["n"]) for e in ledger.events.read("s1")] == [(n + 1, n) for n in range(1201)]


def test_no_event_is_written_if_one_exists_with_another_body(ledger):
    ledger.events.append("s1", "step", {"n": 1}, "1")
    for other in (NewEvent("step", {"n": 2}, "1"), NewEvent("decision", {"n": 1}, "1")):
        with pytest.raises(IntegrityError, match="1 of s1"):
            ledger.events.append_all("s1", [NewEvent("step", {}, "0"), other])
    with pytest.raises(IntegrityError, match="same key"):
        ledger.events.append_all("s1", [NewEvent("step", {}, "2"), NewEvent("step", {}, "2")])
    assert [e.key for e in ledger.events.read("s1")] == ["1"]


def test_events_can_be_read_without_some_kinds(ledger):
    kinds = ["step", "start", "step", "stop"] * 300
    ledger.events.append_all("s1", [NewEvent(kind, {}, str(n)) for n, kind in enumerate(kinds)])
    assert ledger.events.kinds("s1") == ["start", "step", "stop"]
    decisions = list(ledger.events.read("s1", without={"step"}))
    assert [(e.kind, e.key) for e in decisions] == [(k, str(n)) for n, k in enumerate(kinds) if k != "step"]
    assert list(ledger.events.read("s1", after=1198, without={"step"})) == decisions[-1:]
    assert list(ledger.events.read("s1", without={"step", "start", "stop"})) == []


def test_an_event_keeps_unpaired_surrogates_and_nul(ledger):
    body = {"text": "unpaired surrogate: \ud83d, NUL: \x00"}
    ledger.events.append("s1", "odd", body, "k")
    assert next(ledger.events.read("s1")).body == body


def test_a_value_that_json_cannot_express_is_refused(ledger):
    with pytest.raises(LedgerError, match="JSON"):
        ledger.events.append("s1", "bad", {"x": float("nan")}, "k")
