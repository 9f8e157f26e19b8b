"""The lease that a sweep opens or attaches to: chargeback, power draw, and refusals."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest

from cost.charges.chargeback import Chargeback, chargebacks_by_sweep, set_required_names
from cost.charges.power import STREAM
from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import StateChange, set_state
from cost.prices.billing import load_rules
from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.journal.events import DriverEnded
from sweeps.journal.journal import Journal
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines.lease import attach_to_machine, machine_instance
from sweeps.machines.pricing import find_price

CHARGED = ["budget.owner=ann", "budget.project=ladder", "budget.cost_center=k17", "+budget.tags.team=rl"]


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger.db") as opened:
        yield opened


def test_a_lease_has_owner_project_cost_centre_and_tags(ledger):
    cfg = compose(["+stage=smoke", *CHARGED])
    lease = ledger.leases.get(attach_to_machine(cfg, ledger, "s1", find_price(cfg))).lease
    assert (lease.owner, lease.project, dict(lease.tags)) == ("ann", "ladder", {"cost_center": "k17", "team": "rl"})


def test_a_sweep_that_joins_a_lease_keeps_its_own_chargeback(ledger):
    ann, bob = (compose(["+stage=smoke", f"budget.owner={name}"]) for name in ("ann", "bob"))
    first = attach_to_machine(ann, ledger, "s1", find_price(ann))
    assert attach_to_machine(bob, ledger, "s2", find_price(bob)) == first
    assert chargebacks_by_sweep(ledger) == {"s1": Chargeback("ann"), "s2": Chargeback("bob")}


def test_an_ended_sweep_is_detached_when_the_next_one_attaches(ledger):
    cfg = compose(["+stage=smoke"])
    for sweep_id, event in (("s1", DriverEnded(DriverEnd.DONE)), ("s2", None)):
        lease_id = attach_to_machine(cfg, ledger, sweep_id, find_price(cfg))
        if event:
            Journal(ledger, sweep_id).append(event)
    assert ledger.leases.get(lease_id).sweeps == ("s2",)
    attach_to_machine(cfg, ledger, "s3", find_price(cfg))
    assert ledger.leases.get(lease_id).sweeps == ("s2", "s3"), "the driver of s2 has not ended"


def test_the_power_draw_is_the_last_measured_one_or_the_configured_one(ledger):
    cfg = compose(["+stage=smoke", "machine.watts=65"])
    pricing = find_price(cfg)
    lease_id = attach_to_machine(cfg, ledger, "s1", pricing)
    assert ledger.leases.get(lease_id).lease.watts == 65
    ledger.events.append(STREAM, "measured", {"instance_id": machine_instance(cfg, "s1"), "watts": "311.5"}, "1")
    ledger.leases.detach(lease_id, "s1", "done")
    assert ledger.leases.get(attach_to_machine(cfg, ledger, "s2", pricing)).lease.watts == Decimal("311.5")
    simulated = dataclasses.replace(cfg, trainer=dataclasses.replace(cfg.trainer, name="simulated"))
    assert ledger.leases.get(attach_to_machine(simulated, ledger, "s3", pricing)).lease.watts == 65


def test_a_stopped_lease_is_refused_with_the_command_that_starts_it(ledger):
    cfg = compose(["+stage=smoke"])
    lease_id = attach_to_machine(cfg, ledger, "s1", find_price(cfg))
    set_state(ledger, StateChange(lease_id, "stopped", ledger.now_ns()), load_rules())
    with pytest.raises(ConfigError, match=rf"machine=cpu: lease {lease_id} is stopped since .*leases start {lease_id}"):
        attach_to_machine(cfg, ledger, "s2", find_price(cfg))
    assert set(chargebacks_by_sweep(ledger)) == {"s1"}, "nothing of the refused sweep was written"


def test_a_sweep_without_a_required_name_or_with_an_unknown_commitment_opens_no_lease(ledger):
    set_required_names(ledger, ["project", "team", "cost_center"])
    cfg = compose(["+stage=smoke", "budget.project=ladder"])
    with pytest.raises(
        ConfigError, match=r"requires team, cost_center .* add \+budget.tags.team=NAME budget.cost_center="
    ):
        attach_to_machine(cfg, ledger, "s1", find_price(cfg))
    set_required_names(ledger, [])
    cfg = compose(["+stage=smoke", "+budget.tags.commitment=cb-9"])
    with pytest.raises(ConfigError, match=r"budget.tags.commitment: there is no commitment 'cb-9'"):
        attach_to_machine(cfg, ledger, "s1", find_price(cfg))
    assert ledger.leases.find() == []
