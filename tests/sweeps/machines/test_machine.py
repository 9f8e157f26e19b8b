"""The lease that a sweep opens: whom it is charged to, and the watts that its price goes by."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path

import pytest

from cost.charges.chargeback import Chargeback, chargebacks_by_sweep, set_required_names
from cost.charges.power import STREAM
from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import Change, set_state
from cost.prices.billing import load_rules
from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.journal.events import DriverEnd, DriverEnded
from sweeps.journal.journal import Journal
from sweeps.machines.machine import find_price, hold_machine, machine_instance

CHARGED = ["budget.owner=ann", "budget.project=ladder", "budget.cost_center=k17", "+budget.tags.team=rl"]


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger.db") as opened:
        yield opened


def test_a_lease_carries_owner_project_cost_centre_and_tags(ledger):
    cfg = compose(["+stage=smoke", *CHARGED])
    lease = ledger.lease_state(hold_machine(cfg, ledger, "s1", find_price(cfg))).lease
    assert (lease.owner, lease.project, dict(lease.tags)) == ("ann", "ladder", {"cost_center": "k17", "team": "rl"})


def test_a_sweep_that_joins_a_lease_is_charged_to_its_own(ledger):
    ann, bob = (compose(["+stage=smoke", f"budget.owner={name}"]) for name in ("ann", "bob"))
    first = hold_machine(ann, ledger, "s1", find_price(ann))
    assert hold_machine(bob, ledger, "s2", find_price(bob)) == first
    assert chargebacks_by_sweep(ledger) == {"s1": Chargeback("ann"), "s2": Chargeback("bob")}


def test_a_sweep_that_has_ended_and_whose_machine_stayed_leaves_it_to_the_next(ledger):
    cfg = compose(["+stage=smoke"])
    for sweep_id, event in (("s1", DriverEnded(DriverEnd.DONE)), ("s2", None)):
        lease_id = hold_machine(cfg, ledger, sweep_id, find_price(cfg))
        if event:
            Journal(ledger, sweep_id).append(event)
    assert ledger.lease_state(lease_id).sweeps == ("s2",)
    hold_machine(cfg, ledger, "s3", find_price(cfg))
    assert ledger.lease_state(lease_id).sweeps == ("s2", "s3"), "the driver of s2 has not ended"


def test_own_hardware_is_priced_by_what_it_drew_last_time_and_else_by_what_is_configured(ledger):
    cfg = compose(["+stage=smoke", "machine.watts=65"])
    pricing = find_price(cfg)
    lease_id = hold_machine(cfg, ledger, "s1", pricing)
    assert ledger.lease_state(lease_id).lease.watts == 65
    ledger.append_event(STREAM, "measured", {"instance_id": machine_instance(cfg, "s1"), "watts": "311.5"}, "1")
    ledger.detach(lease_id, "s1", "done")
    assert ledger.lease_state(hold_machine(cfg, ledger, "s2", pricing)).lease.watts == Decimal("311.5")
    simulated = dataclasses.replace(cfg, trainer=dataclasses.replace(cfg.trainer, name="simulated"))
    assert ledger.lease_state(hold_machine(simulated, ledger, "s3", pricing)).lease.watts == 65


def test_a_machine_that_the_books_have_as_stopped_is_refused_with_the_command_that_starts_it(ledger):
    cfg = compose(["+stage=smoke"])
    lease_id = hold_machine(cfg, ledger, "s1", find_price(cfg))
    set_state(ledger, Change(lease_id, "stopped", ledger.now_ns()), load_rules())
    with pytest.raises(ConfigError, match=rf"machine=cpu: lease {lease_id} is stopped since .*leases start {lease_id}"):
        hold_machine(cfg, ledger, "s2", find_price(cfg))
    assert set(chargebacks_by_sweep(ledger)) == {"s1"}, "nothing of the refused sweep was written"


def test_a_sweep_that_lacks_what_the_books_require_or_names_what_nobody_bought_holds_nothing(ledger):
    set_required_names(ledger, ["project", "team", "cost_center"])
    cfg = compose(["+stage=smoke", "budget.project=ladder"])
    with pytest.raises(
        ConfigError, match=r"require team, cost_center .* add \+budget.tags.team=NAME budget.cost_center="
    ):
        hold_machine(cfg, ledger, "s1", find_price(cfg))
    set_required_names(ledger, [])
    cfg = compose(["+stage=smoke", "+budget.tags.commitment=cb-9"])
    with pytest.raises(ConfigError, match=r"budget.tags.commitment: there is no commitment 'cb-9'"):
        hold_machine(cfg, ledger, "s1", find_price(cfg))
    assert ledger.leases() == []
