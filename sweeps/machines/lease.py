"""The lease of a sweep's machine: a sweep attaches to the machine's open lease, or opens one."""

from __future__ import annotations

import socket
from decimal import Decimal

from cost.charges import commitments
from cost.charges.chargeback import COST_CENTER, Chargeback, required_names, set_chargeback
from cost.charges.power import measured_watts
from cost.commands import command_text
from cost.ledger.ledger import Ledger
from cost.ledger.release_requests import record_in_use
from cost.records import Lease, LedgerError
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.journal.journal import decisions, replay
from sweeps.machines.pricing import Pricing


def is_real_machine(cfg: SweepConfig) -> bool:
    """Whether trials run on a machine; simulated trials do not."""
    return not cfg.simulated


def machine_instance(cfg: SweepConfig, sweep_id: str) -> str:
    """The identity of the machine, with at most one open lease: host and name, or the sweep of simulated trials."""
    if cfg.simulated:
        return f"simulated:{sweep_id}"
    return f"{socket.gethostname()}:{cfg.machine.name}"


def attach_to_machine(cfg: SweepConfig, ledger: Ledger, sweep_id: str, pricing: Pricing) -> str:
    """Attach the sweep to the machine's open lease, or open a lease; the lease's id.

    Ended sweeps that are still attached, because the machine was not released, are detached: the machine now works for
    this sweep.

    Raises:
        ConfigError: the lease is stopped; the ledger requires a tag that the sweep lacks; or the sweep names an unknown
            commitment.
    """
    instance = machine_instance(cfg, sweep_id)
    with ledger.transaction():
        chargeback = _chargeback(cfg)
        if not cfg.simulated:
            _check_chargeback(ledger, chargeback)
        set_chargeback(ledger, sweep_id, chargeback)
        state = ledger.leases.open_on(instance)
        if state is None:
            lease_id = _open_lease(cfg, ledger, sweep_id, instance, pricing, chargeback)
        else:
            lease_id = state.lease.lease_id
            record_in_use(ledger, lease_id)
        try:
            ledger.leases.attach(lease_id, sweep_id)
        except LedgerError as error:
            raise ConfigError(f"machine={cfg.machine.name}: {error}") from error
        for other in state.sweeps if state else ():
            if other != sweep_id and replay(other, decisions(ledger, other)).ended is not None:
                ledger.leases.detach(lease_id, other, "done")
    return lease_id


def _chargeback(cfg: SweepConfig) -> Chargeback:
    budget = cfg.budget
    tags = {**budget.tags} | ({COST_CENTER: budget.cost_center} if budget.cost_center else {})
    return Chargeback(budget.owner, budget.project, tags)


def _open_lease(
    cfg: SweepConfig, ledger: Ledger, sweep_id: str, instance: str, pricing: Pricing, chargeback: Chargeback
) -> str:
    machine, row = cfg.machine, pricing.row
    watts = measured_watts(ledger, instance) if pricing.by_energy else None
    if watts is None and machine.watts:
        watts = Decimal(str(machine.watts))
    lease = Lease(
        lease_id=f"{sweep_id}-{ledger.now_ns():x}",
        instance_id=instance,
        machine=machine.name,
        sku=machine.sku,
        provider=row.provider if row else machine.provider,
        cards=machine.cards,
        currency=row.currency if row else "USD",
        price_hash=row.hash if row else None,
        resource_id=machine.instance_id,
        region=machine.region,
        purchase=row.purchase if row else machine.purchase,
        watts=watts,
        owner=chargeback.owner,
        project=chargeback.project,
        tags=dict(chargeback.tags) | ({"simulated": "true"} if cfg.simulated else {}),
    )
    ledger.leases.open(lease)
    ledger.price_archive.add([row] if row else [])
    return lease.lease_id


def _check_chargeback(ledger: Ledger, chargeback: Chargeback) -> None:
    if missing := chargeback.missing(required_names(ledger)):
        keys = (
            "budget." + name if name in ("owner", "project", COST_CENTER) else f"+budget.tags.{name}"
            for name in missing
        )
        names = command_text("cost", "leases", "require", place=ledger.place)
        raise ConfigError(
            f"the ledger requires {', '.join(missing)} of every sweep, and this sweep has none: add "
            f"{' '.join(f'{key}=NAME' for key in keys)} (`{names}` lists the required names)"
        )
    if commitments.TAG in chargeback.tags:
        try:
            commitments.find_commitment(ledger, chargeback.tags[commitments.TAG])
        except LedgerError as error:
            raise ConfigError(f"budget.tags.{commitments.TAG}: {error}") from error
