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


def test_a_machine_of_a_provider_without_a_billing_rule_is_refused_when_its_lease_is_opened(tmp_path, pricing):
    catalogue = tmp_path / "verda_vms.csv"
    catalogue.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Region,Price\n8H100,H100,8,fin,16.5\n", encoding="utf-8"
    )
    text = run("prices", "import", "skypilot", catalogue, "--pricing", pricing, "--valid-from", "2026-01-01")
    assert "no billing rule for provider verda (on_demand); add one to billing.yaml" in text
    assert "leases of this provider are refused until then" in text
    place = ("--root", tmp_path / "runs", "--pricing", pricing)
    opening = ("leases", "open", *place, "--machine", "rented", "--sku", "verda-8h100", "--cards", 8)
    assert "no billing rule for provider 'verda' (on_demand)" in run(*opening, code=2)
    assert json.loads(run("leases", "list", *place, "--json")) == {"leases": []}
    run(*opening, "--allow-unpriced")
    assert "UNPRICED" in run("leases", "list", *place)


def test_a_lease_that_lost_its_billing_rule_does_not_stop_any_command(tmp_path, pricing):
    place = ("--root", tmp_path / "runs", "--pricing", pricing)
    for name in ("one", "two"):
        opening = ("leases", "open", *place, "--machine", name, "--sku", "box", "--cards", 8, "--from", "2026-01-02")
        run(*opening)
    rules = pricing / "billing.yaml"
    rules.write_text(rules.read_text(encoding="utf-8").replace("provider: cloud", "provider: other"), encoding="utf-8")
    for command in (("report",), ("report", "--by", "day"), ("leases", "list"), ("budget",)):
        text = run(*command, *place)
        assert "no billing rule for provider 'cloud'" in text, command
        assert "UNPRICED" in text, command
