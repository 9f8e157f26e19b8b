"""Releasing a machine: which command runs, when a release is confirmed, and which lease stays open."""

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
from cost.money import Money
from cost.records import UsageKey
from rl.spec import Stop, StopKind
from sweeps.config.build import compose
from sweeps.config.text_values import ReleaseMethod
from sweeps.config.types import ConfigError, MachineConfig
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines import acquire, provider, release
from sweeps.machines.lease import attach_to_machine
from sweeps.machines.pricing import Pricing, find_price
from tests.e2e.test_sweep_command import module

RENTED = [
    *("+stage=smoke", "machine.purchase=on_demand", "machine.sku=runpod-h100", "machine.provider=runpod"),
    *("machine.watts=0", "budget.allow_unpriced=true"),
]


def machine(*, down: str | None = None, **changes) -> MachineConfig:
    method = ReleaseMethod.parse(down) if down else None
    return dataclasses.replace(compose(["+stage=smoke"]).machine, down=method, **changes)


@pytest.fixture
def leased(tmp_path: Path):
    """A ledger in which sweep s1 is attached to a machine."""
    cfg = compose(["+stage=smoke"])
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        yield ledger, attach_to_machine(cfg, ledger, "s1", find_price(cfg))


def test_a_successful_command_releases_the_machine_and_closes_the_lease_as_released(leased, tmp_path):
    ledger, lease_id = leased
    text = release.release(machine(down=f"touch {tmp_path}/gone"), ledger, lease_id, "s1", [])
    assert (tmp_path / "gone").exists()
    assert "was released" in text
    state = ledger.leases.get(lease_id)
    assert state.to_ns is not None
    assert state.released
    assert release_requests.unconfirmed_releases(ledger) == {}


def test_the_ledger_can_be_copied_after_the_request_and_before_the_command(leased, tmp_path):
    ledger, lease_id = leased
    seen = []

    def keep_snapshot():
        seen.append((release_requests.unconfirmed_releases(ledger), (tmp_path / "gone").exists()))

    release.release(machine(down=f"touch {tmp_path}/gone"), ledger, lease_id, "s1", [], before_stop=keep_snapshot)
    assert len(seen) == 1
    assert list(seen[0][0]) == [lease_id]
    assert seen[0][1] is False


def test_an_unconfirmed_release_stays_visible_until_the_lease_is_closed_by_hand(leased, tmp_path):
    ledger, lease_id = leased
    down = machine(down="echo no such pod >&2; exit 3")
    text = release.release(down, ledger, lease_id, "s1", [], per_hour="2.69 USD")
    assert "RELEASE_UNCONFIRMED" in text
    assert "Its lease stays open and costs 2.69 USD an hour" in text
    assert "exit code 3: no such pod" in text
    assert ledger.leases.get(lease_id).to_ns is None
    listed = module(tmp_path, "cost", "leases", "list", "--root", str(tmp_path)).stdout
    assert f"RELEASE_UNCONFIRMED: lease {lease_id} is open and accrues cost: exit code 3" in listed
    row = json.loads(module(tmp_path, "cost", "leases", "list", "--json", "--root", str(tmp_path)).stdout)["leases"][0]
    assert row["to"] is None
    assert row["release"].startswith("RELEASE_UNCONFIRMED")
    assert "RELEASE_UNCONFIRMED" in module(tmp_path, "sweeps", "status", "--root", str(tmp_path)).stdout
    assert "RELEASE_UNCONFIRMED" in module(tmp_path, "cost", "report", "--root", str(tmp_path)).stdout
    ledger.leases.close(lease_id, "by hand", released=True)
    assert release_requests.unconfirmed_releases(ledger) == {}


def test_attaching_to_a_machine_ends_its_unconfirmed_release(leased):
    ledger, lease_id = leased
    release.release(machine(down="false"), ledger, lease_id, "s1", [])
    assert list(release_requests.unconfirmed_releases(ledger)) == [lease_id]
    cfg = compose(["+stage=smoke"])
    assert attach_to_machine(cfg, ledger, "s1", find_price(cfg)) == lease_id
    assert release_requests.unconfirmed_releases(ledger) == {}


def test_unsaved_files_keep_the_machine_unless_configured_otherwise_or_its_disk_stays(leased, tmp_path):
    ledger, lease_id = leased
    command = machine(down=f"touch {tmp_path}/gone")
    text = release.release(command, ledger, lease_id, "s1", ["the checkpoint of t1 at step 20"])
    assert "NOT released" in text
    assert "the checkpoint of t1 at step 20" in text
    assert not (tmp_path / "gone").exists()
    assert ledger.leases.get(lease_id).to_ns is None
    stopped = release.release(
        machine(down="stop"), ledger, lease_id, "s1", ["x"], stop_machine=lambda *_: release.ReleaseOutcome(False, "?")
    )
    assert "was requested and is not confirmed" in stopped
    release.release(dataclasses.replace(command, down_unsaved=True), ledger, lease_id, "s1", ["x"])
    assert (tmp_path / "gone").exists()
    assert ledger.leases.get(lease_id).released


def test_a_machine_that_another_sweep_uses_is_not_released(leased, tmp_path):
    ledger, lease_id = leased
    ledger.leases.attach(lease_id, "s2")
    text = release.release(machine(down=f"touch {tmp_path}/gone"), ledger, lease_id, "s1", [])
    assert "s2 uses it" in text
    assert not (tmp_path / "gone").exists()
    assert ledger.leases.get(lease_id).sweeps == ("s2",)


@pytest.mark.parametrize(
    ("hook", "operation", "state"), [("stop", "stop", "stopped"), ("terminate", "terminate", "terminated")]
)
def test_ec2_is_queried_until_it_reports_the_end_of_the_instance(hook, operation, state, monkeypatch):
    monkeypatch.setattr(provider, "POLL_SECONDS", 0)
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    ids = {"InstanceIds": ["i-0123456789abcdef0"]}
    with Stubber(client) as stub:
        stub.add_response(f"{operation}_instances", {}, ids)
        for name in ("running", "shutting-down" if hook == "terminate" else "stopping", state):
            stub.add_response("describe_instances", _instance(name), ids)
        result = provider.stop_machine(machine(down=hook, provider="aws"), "i-0123456789abcdef0", client)
        stub.assert_no_pending_responses()
    assert result == release.ReleaseOutcome(True, f"EC2 reports i-0123456789abcdef0 as {state}")


def test_an_instance_that_ec2_never_reports_as_stopped_is_not_confirmed(monkeypatch):
    monkeypatch.setattr(provider, "POLL_SECONDS", 0)
    monkeypatch.setattr(provider, "POLLS", 2)
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        stub.add_response("stop_instances", {})
        for _ in range(2):
            stub.add_response("describe_instances", _instance("stopping"))
        result = provider.stop_machine(
            machine(down="stop", provider="aws", instance_id="i-0123456789abcdef0"), "", client
        )
    assert not result.confirmed
    assert "does not report i-0123456789abcdef0 as stopped" in result.text


def test_a_refused_request_leaves_the_lease_open(leased):
    ledger, lease_id = leased
    client = boto3.client("ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        stub.add_client_error("terminate_instances", "UnauthorizedOperation", "not allowed")
        there = machine(down="terminate", provider="aws", instance_id="i-0123456789abcdef0")
        text = release.release(
            there, ledger, lease_id, "s1", [], stop_machine=lambda m, i: provider.stop_machine(m, i, client)
        )
    assert "RELEASE_UNCONFIRMED" in text
    assert "not allowed" in text
    assert ledger.leases.get(lease_id).to_ns is None


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
def test_the_machine_is_released_except_after_an_interruption_or_by_its_provider(
    end: DriverEnd, kind: StopKind | None, expected: bool
):
    stop = None if kind is None else Stop(kind, "why")
    down = 'machine.down="touch /gone"'
    cfg = compose(["+stage=smoke", down])
    assert release.should_release(cfg, end, stop) is expected
    assert release.should_release(compose(["+stage=smoke", down, "trainer=simulated"]), end, stop) is False
    assert release.should_release(compose(["+stage=smoke"]), end, stop) is False


def test_without_down_a_rented_machine_is_reported_with_its_price_and_own_hardware_is_not(leased):
    ledger, lease_id = leased
    state = ledger.leases.get(lease_id)
    rented = compose(RENTED)
    lease = dataclasses.replace(state.lease, purchase="on_demand")
    text = release.still_running_text(rented, dataclasses.replace(state, lease=lease), "2.69 USD")
    assert "runpod-h100 at runpod" in text
    assert "2.69 USD an hour" in text
    assert "extend" not in text, "its lease is open"
    ledger.leases.detach(lease_id, "s1", "done")
    left = dataclasses.replace(ledger.leases.get(lease_id), lease=lease)
    assert f"python -m cost leases extend {lease_id}" in release.still_running_text(rented, left, "2.69 USD")
    taken = dataclasses.replace(left, how="taken_back")
    assert "taken back by runpod" in release.still_running_text(rented, taken, "2.69 USD")
    assert release.still_running_text(compose(["+stage=smoke"]), state, "0.01 USD") == ""
    assert release.still_running_text(compose([*RENTED, "trainer=simulated"]), state, "2.69 USD") == ""


def test_a_sweep_that_attaches_during_the_release_keeps_the_lease_open(leased):
    ledger, lease_id = leased

    def stop(*_: object) -> release.ReleaseOutcome:
        ledger.leases.attach(lease_id, "s2")
        ledger.usages.start(UsageKey(lease_id, "t1", 1), "s2", Decimal(1), {})
        return release.ReleaseOutcome(True, "its command exited with 0")

    text = release.release(machine(down="true"), ledger, lease_id, "s1", [], stop_machine=stop)
    assert "RELEASE_UNCONFIRMED" in text
    assert "trial t1 attempt 1 of sweep s2 is still open" in text
    assert ledger.leases.get(lease_id).to_ns is None


def test_the_last_line_of_machine_up_is_the_ray_address_if_it_is_one():
    assert provider.start_machine(machine(up="echo renting...; echo 10.0.0.7:6379")) == "10.0.0.7:6379"
    assert provider.start_machine(machine(up="echo ready")) == ""


def test_a_failing_machine_up_is_refused_before_a_lease_opens():
    with pytest.raises(ConfigError, match=r"exit code 4: out of capacity; no lease was\s+opened"):
        provider.start_machine(machine(up="echo out of capacity >&2; exit 4"))


def test_a_machine_that_was_started_for_nothing_is_released(tmp_path):
    cfg = compose(["+stage=smoke", "machine.up=hostname"])
    pricing = Pricing(find_price(cfg).book, None, Money.parse("2.69 USD"))
    text = acquire.release_started(
        compose(["+stage=smoke", "machine.up=hostname", f'machine.down="touch {tmp_path}/gone"']), pricing
    )
    assert (tmp_path / "gone").exists()
    assert "was released (its command exited with 0)" in text
    failing = compose(["+stage=smoke", "machine.up=hostname", 'machine.down="exit 1"'])
    assert "costs 2.69 USD an hour: release requested, not confirmed (exit code 1" in acquire.release_started(
        failing, pricing
    )
    assert "costs 2.69 USD an hour: release it at own" in acquire.release_started(cfg, pricing)


def _instance(state: str) -> dict:
    return {"Reservations": [{"Instances": [{"InstanceId": "i-0123456789abcdef0", "State": {"Name": state}}]}]}
