"""Journals, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from cost.records import IntegrityError, LedgerError, NewEvent


def test_events_come_back_in_order_with_their_bodies(ledger, clock):
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


def test_many_events_are_written_at_once_and_those_that_are_there_change_nothing(ledger):
    many = [NewEvent("word", {"n": n}, str(n)) for n in range(1201)]
    assert [e.key for e in ledger.events.append_all("s1", many[:3])] == ["0", "1", "2"]
    assert ledger.events.append_all("s1", many) == list(ledger.events.read("s1", after=3))
    assert ledger.events.append_all("s1", many) == []
    assert [(e.sequence, e.body["n"]) for e in ledger.events.read("s1")] == [(n + 1, n) for n in range(1201)]


def test_of_events_of_which_one_has_another_body_none_is_written(ledger):
    ledger.events.append("s1", "word", {"n": 1}, "1")
    for other in (NewEvent("word", {"n": 2}, "1"), NewEvent("decision", {"n": 1}, "1")):
        with pytest.raises(IntegrityError, match="1 of s1"):
            ledger.events.append_all("s1", [NewEvent("word", {}, "0"), other])
    with pytest.raises(IntegrityError, match="same key"):
        ledger.events.append_all("s1", [NewEvent("word", {}, "2"), NewEvent("word", {}, "2")])
    assert [e.key for e in ledger.events.read("s1")] == ["1"]


def test_events_are_read_without_those_of_some_kinds(ledger):
    kinds = ["word", "start", "word", "stop"] * 300
    ledger.events.append_all("s1", [NewEvent(kind, {}, str(n)) for n, kind in enumerate(kinds)])
    assert ledger.events.kinds("s1") == ["start", "stop", "word"]
    decisions = list(ledger.events.read("s1", without={"word"}))
    assert [(e.kind, e.key) for e in decisions] == [(k, str(n)) for n, k in enumerate(kinds) if k != "word"]
    assert list(ledger.events.read("s1", after=1198, without={"word"})) == decisions[-1:]
    assert list(ledger.events.read("s1", without={"word", "start", "stop"})) == []


def test_an_event_keeps_text_that_no_encoding_has(ledger):
    body = {"text": "half of a pair: \ud83d, and nothing: \x00"}
    ledger.events.append("s1", "odd", body, "k")
    assert next(ledger.events.read("s1")).body == body


def test_an_event_that_json_cannot_say_is_refused(ledger):
    with pytest.raises(LedgerError, match="JSON"):
        ledger.events.append("s1", "bad", {"x": float("nan")}, "k")
