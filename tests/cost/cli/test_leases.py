"""`python -m cost leases`: leases opened, listed and closed by hand."""

from __future__ import annotations

import json

import pytest

from tests.cost.cli.conftest import run


def test_a_lease_is_opened_extended_and_closed_by_hand(root, pricing):
    place = ("--root", root)
    opening = ["leases", "open", *place, "--pricing", pricing, "--machine", "rented", "--sku", "box", "--cards", "8"]
    opening += ["--instance", "i-123", "--from", "2026-11-28T08:00", "--owner", "ann", "--tag", "team=rl"]
    lease_id = run(*opening).strip()
    assert "still open" in run(*opening[:-2], "--from", "2026-11-28T08:30", code=2)
    run("leases", "extend", *place, lease_id)
    listing = ("leases", "list", *place, "--pricing", pricing)
    (body,) = [b for b in json.loads(run(*listing, "--json"))["leases"] if b["lease_id"] == lease_id]
    assert (body["from"], body["to"], body["tags"]) == ("2026-11-28T08:00:00Z", None, {"team": "rl"})
    run("leases", "close", *place, lease_id, "--at", "2026-11-28T10:00")
    (body,) = [b for b in json.loads(run(*listing, "--json"))["leases"] if b["lease_id"] == lease_id]
    assert (body["cost"], body["how"]) == ("16.2", "closed by hand")
    assert max(map(len, run(*listing).splitlines())) <= 100


def test_an_open_lease_without_heartbeats_is_listed_with_its_cost_since_then(root, pricing):
    place = ("--root", root, "--pricing", pricing)
    opening = ("leases", "open", *place, "--machine", "rented", "--sku", "box", "--cards", 8, "--from", "2026-11-20")
    lease_id = run(*opening, "--instance", "i-9").strip()
    text = run("leases", "list", *place)
    assert f"lease {lease_id} is open, but no driver has sent a heartbeat since 2026-11-20T00:00:00Z" in text
    assert "194.40 USD a day" in text
    assert f"python -m cost leases close {lease_id}" in text
    assert run("check", *place) == "", "leases opened by hand need no heartbeats"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--sku", "nope"], "no price for SKU 'nope'"),
        (["--cards", "4"], "machine of 8 cards, not of 4"),
        (["--cards", "0"], "machine of 8 cards, not of 0"),
        (["--from", "2036-01-01"], "at 2036-01-01T00:00:00Z, in the future"),
        (["--tag", "team"], "NAME=VALUE"),
        (["--watts", "1,000"], "not a plain decimal number"),
    ],
)
def test_a_refused_lease_is_not_stored(tmp_path, pricing, change, message):
    place = ("--root", tmp_path / "runs", "--pricing", pricing)
    opening = ("leases", "open", *place, "--machine", "rented", "--sku", "box", "--cards", 8)
    assert message in run(*opening, *change, code=2)
    assert json.loads(run("leases", "list", *place, "--json")) == {"leases": []}


def test_a_lease_without_price_needs_an_option_and_is_shown_as_unpriced(tmp_path, pricing):
    place = ("--root", tmp_path / "runs", "--pricing", pricing)
    run("leases", "open", *place, "--machine", "m", "--sku", "nope", "--cards", 8, "--allow-unpriced")
    assert "UNPRICED" in run("leases", "list", *place)
    assert "UNPRICED" in run("check", *place, code=1)
