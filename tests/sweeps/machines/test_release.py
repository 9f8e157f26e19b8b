"""Machines come and go: what is run, what counts as gone, and what stays in the books until somebody says so."""

from __future__ import annotations

import dataclasses
import json
from decimal import Decimal
from pathlib import Path

import boto3
import pytest
from botocore.stub import Stubber

from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.records import UsageKey
from rl.spec import Stop, StopKind
from sweeps.config.build import compose
from sweeps.config.text_values import ReleaseMethod
from sweeps.config.types import ConfigError, MachineConfig
from sweeps.journal.events import DriverEnd
from sweeps.machines import release
from sweeps.machines.machine import find_price, hold_machine
from tests.e2e.test_sweep_command import module

RENTED = [
    *("+stage=smoke", "machine.purchase=on_demand", "machine.sku=runpod-h100", "machine.provider=runpod"),
    *("machine.watts=0", "budget.allow_unpriced=true"),
]


def machine(*, down: str | None = None, **changes) -> MachineConfig:
    method = ReleaseMethod.parse(down) if down else None
    return dataclasses.replace(compose(["+stage=smoke"]).machine, down=method, **changes)


@pytest.fixture
def held(tmp_path: Path):
    """A ledger in which sweep s1 holds a machine."""
    cfg = compose(["+stage=smoke"])
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        yield ledger, hold_machine(cfg, ledger, "s1", find_price(cfg))


def test_a_command_that_ends_well_gives_the_machine_back_and_closes_the_lease_as_released(held, tmp_path):
    ledger, lease_id = held
    told = release.leave(machine(down=f"touch {tmp_path}/gone"), ledger, lease_id, "s1", [])
    assert (tmp_path / "gone").exists()
    assert "is given back" in told
    state = ledger.lease_state(lease_id)
    assert state.to_ns is not None
    assert state.released
    assert release_requests.unconfirmed(ledger) == {}


def test_the_books_are_brought_away_after_the_request_is_in_them_and_before_the_command_runs(held, tmp_path):
    ledger, lease_id = held
    seen = []

    def keep_books():
        seen.append((release_requests.unconfirmed(ledger), (tmp_path / "gone").exists()))

    release.leave(machine(down=f"touch {tmp_path}/gone"), ledger, lease_id, "s1", [], keep_books)
    assert len(seen) == 1
    assert list(seen[0][0]) == [lease_id]
    assert seen[0][1] is False


def test_a_release_that_nobody_confirms_stays_visible_and_goes_on_accruing_until_it_is_closed_by_hand(held, tmp_path):
    ledger, lease_id = held
    down = machine(down="echo no such pod >&2; exit 3")
    told = release.leave(down, ledger, lease_id, "s1", [], per_hour="2.69 USD")
    assert "RELEASE_UNCONFIRMED" in told
    assert "Its lease goes on at 2.69 USD an hour" in told
    assert "exit code 3: no such pod" in told
    assert ledger.lease_state(lease_id).to_ns is None
    listed = module(tmp_path, "cost", "leases", "list", "--root", str(tmp_path)).stdout
    assert f"RELEASE_UNCONFIRMED: lease {lease_id} goes on: exit code 3" in listed
    row = json.loads(module(tmp_path, "cost", "leases", "list", "--json", "--root", str(tmp_path)).stdout)["leases"][0]
    assert row["to"] is None
    assert row["release"].startswith("RELEASE_UNCONFIRMED")
    assert "RELEASE_UNCONFIRMED" in module(tmp_path, "sweeps", "status", "--root", str(tmp_path)).stdout
    assert "RELEASE_UNCONFIRMED" in module(tmp_path, "cost", "report", "--root", str(tmp_path)).stdout
    ledger.close_lease(lease_id, "by hand", released=True)
    assert release_requests.unconfirmed(ledger) == {}


def test_a_sweep_that_takes_an_unconfirmed_machine_up_again_ends_the_alarm(held):
    ledger, lease_id = held
    release.leave(machine(down="false"), ledger, lease_id, "s1", [])
    assert list(release_requests.unconfirmed(ledger)) == [lease_id]
    cfg = compose(["+stage=smoke"])
    assert hold_machine(cfg, ledger, "s1", find_price(cfg)) == lease_id
    assert release_requests.unconfirmed(ledger) == {}


def test_what_lies_on_the_machine_only_keeps_it_unless_told_otherwise_or_its_disk_stays(held, tmp_path):
    ledger, lease_id = held
    command = machine(down=f"touch {tmp_path}/gone")
    told = release.leave(command, ledger, lease_id, "s1", ["the checkpoint of t1 at step 20"])
    assert "NOT taken down" in told
    assert "the checkpoint of t1 at step 20" in told
    assert not (tmp_path / "gone").exists()
    assert ledger.lease_state(lease_id).to_ns is None
    stopped = release.leave(
        machine(down="stop"), ledger, lease_id, "s1", ["x"], down=lambda *_: release.ReleaseOutcome(False, "?")
    )
    assert "was asked to go" in stopped
    release.leave(dataclasses.replace(command, down_unsaved=True), ledger, lease_id, "s1", ["x"])
    assert (tmp_path / "gone").exists()
    assert ledger.lease_state(lease_id).released


def test_a_machine_that_another_sweep_is_on_is_left_to_it(held, tmp_path):
    ledger, lease_id = held
    ledger.attach(lease_id, "s2")
    told = release.leave(machine(down=f"touch {tmp_path}/gone"), ledger, lease_id, "s1", [])
    assert "s2 is still on it" in told
    assert not (tmp_path / "gone").exists()
    assert ledger.lease_state(lease_id).sweeps == ("s2",)


@pytest.mark.parametrize(
    ("hook", "operation", "state"), [("stop", "stop", "stopped"), ("terminate", "terminate", "terminated")]
)
def test_ec2_is_asked_until_it_says_that_the_instance_is_gone(hook, operation, state, monkeypatch):
    monkeypatch.setattr(release, "POLL_SECONDS", 0)
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    ids = {"InstanceIds": ["i-0123456789abcdef0"]}
    with Stubber(client) as stub:
        stub.add_response(f"{operation}_instances", {}, ids)
        for name in ("running", "shutting-down" if hook == "terminate" else "stopping", state):
            stub.add_response("describe_instances", _instance(name), ids)
        result = release.take_down(machine(down=hook, provider="aws"), "i-0123456789abcdef0", client)
        stub.assert_no_pending_responses()
    assert result == release.ReleaseOutcome(True, f"EC2 says that i-0123456789abcdef0 is {state}")


def test_an_instance_that_ec2_never_reports_gone_is_not_confirmed(monkeypatch):
    monkeypatch.setattr(release, "POLL_SECONDS", 0)
    monkeypatch.setattr(release, "POLLS", 2)
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        stub.add_response("stop_instances", {})
        for _ in range(2):
            stub.add_response("describe_instances", _instance("stopping"))
        result = release.take_down(machine(down="stop", provider="aws", instance_id="i-0123456789abcdef0"), "", client)
    assert not result.confirmed
    assert "does not report i-0123456789abcdef0 as 'stopped'" in result.text


def test_a_refusal_of_the_provider_leaves_the_lease_open(held):
    ledger, lease_id = held
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        stub.add_client_error("terminate_instances", "UnauthorizedOperation", "not allowed")
        there = machine(down="terminate", provider="aws", instance_id="i-0123456789abcdef0")
        told = release.leave(there, ledger, lease_id, "s1", [], down=lambda m, i: release.take_down(m, i, client))
    assert "RELEASE_UNCONFIRMED" in told
    assert "not allowed" in told
    assert ledger.lease_state(lease_id).to_ns is None


@pytest.mark.parametrize(
    ("end", "kind", "expected"),
    [
        (DriverEnd.DONE, None, True),
        (DriverEnd.BUDGET, StopKind.BUDGET, True),
        (DriverEnd.FAILED, None, True),
        (DriverEnd.INTERRUPTED, StopKind.IDLE, True),
        (DriverEnd.INTERRUPTED, StopKind.REQUESTED, True),
        (DriverEnd.INTERRUPTED, StopKind.NO_CARDS, True),
        (DriverEnd.INTERRUPTED, StopKind.INTERRUPTED, False),
        (DriverEnd.INTERRUPTED, StopKind.TERMINATED, False),
        (DriverEnd.INTERRUPTED, StopKind.MACHINE_TAKEN, False),
    ],
)
def test_the_machine_goes_after_every_end_but_a_persons_and_its_providers(
    end: DriverEnd, kind: StopKind | None, expected: bool
):
    stop = None if kind is None else Stop(kind, "why")
    down = 'machine.down="touch /gone"'
    cfg = compose(["+stage=smoke", down])
    assert release.goes(cfg, end, stop) is expected
    assert release.goes(compose(["+stage=smoke", down, "trainer=simulated"]), end, stop) is False
    assert release.goes(compose(["+stage=smoke"]), end, stop) is False


def test_without_down_a_rented_machine_is_told_with_its_price_and_own_hardware_is_not(held):
    ledger, lease_id = held
    state = ledger.lease_state(lease_id)
    rented = compose(RENTED)
    lease = dataclasses.replace(state.lease, purchase="on_demand")
    told = release.still_held(rented, dataclasses.replace(state, lease=lease), "2.69 USD")
    assert "runpod-h100 at runpod" in told
    assert "2.69 USD an hour" in told
    assert "extend" not in told, "its lease is open"
    ledger.detach(lease_id, "s1", "done")
    left = dataclasses.replace(ledger.lease_state(lease_id), lease=lease)
    assert f"python -m cost leases extend {lease_id}" in release.still_held(rented, left, "2.69 USD")
    taken = dataclasses.replace(left, how="taken_back")
    assert "taken back by runpod" in release.still_held(rented, taken, "2.69 USD")
    assert release.still_held(compose(["+stage=smoke"]), state, "0.01 USD") == ""
    assert release.still_held(compose([*RENTED, "trainer=simulated"]), state, "2.69 USD") == ""


def test_a_sweep_that_comes_while_the_machine_goes_keeps_its_lease_open(held):
    ledger, lease_id = held

    def down(*_: object) -> release.ReleaseOutcome:
        ledger.attach(lease_id, "s2")
        ledger.start_usage(UsageKey(lease_id, "t1", 1), "s2", Decimal(1), {})
        return release.ReleaseOutcome(True, "its command ended with exit code 0")

    told = release.leave(machine(down="true"), ledger, lease_id, "s1", [], down=down)
    assert "RELEASE_UNCONFIRMED" in told
    assert "trial t1 attempt 1 of sweep s2 is still open" in told
    assert ledger.lease_state(lease_id).to_ns is None


def test_what_machine_up_prints_last_is_the_ray_to_use_if_it_is_one():
    assert release.bring_up(machine(up="echo renting...; echo 10.0.0.7:6379")) == "10.0.0.7:6379"
    assert release.bring_up(machine(up="echo ready")) == ""


def test_a_machine_that_does_not_come_up_is_refused_before_anything_is_leased():
    with pytest.raises(ConfigError, match=r"exit code 4: out of capacity; no machine was\s+leased"):
        release.bring_up(machine(up="echo out of capacity >&2; exit 4"))


def test_a_machine_that_was_brought_up_for_nothing_is_taken_down_again(tmp_path):
    told = release.undo_up(machine(up="true", down=f"touch {tmp_path}/gone"), "2.69 USD")
    assert (tmp_path / "gone").exists()
    assert "taken down again" in told
    assert "2.69 USD an hour" in release.undo_up(machine(up="true"), "2.69 USD")


def _instance(state: str) -> dict:
    return {"Reservations": [{"Instances": [{"InstanceId": "i-0123456789abcdef0", "State": {"Name": state}}]}]}
