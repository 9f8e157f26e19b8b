"""Acquires the machine of a sweep: starts it with `machine.up`, and attaches the sweep to its lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cost.commands import command_text
from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import lock_owner
from cost.records import StoreError
from cost.reports import unaccounted
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.machines import lease, provider
from sweeps.machines.pricing import Pricing


def start(cfg: SweepConfig, notify: Callable[[str], None]) -> SweepConfig:
    """Run `machine.up`; the configuration with the Ray that the command printed, if it printed one.

    Raises:
        ConfigError: the command failed.
    """
    notify(f"Starting {cfg.machine.name}: {cfg.machine.up}")
    address = provider.start_machine(cfg.machine)
    if not address:
        return cfg
    notify(f"  Ray address: {address}")
    return replace(cfg, machine=replace(cfg.machine, cluster=address))


def attach(cfg: SweepConfig, ledger: Ledger, sweep_id: str, pricing: Pricing, notify: Callable[[str], None]) -> str:
    """Attach the sweep to the machine's lease; the lease's id. Reports unaccounted time before.

    Raises:
        ConfigError: another sweep is releasing the machine; or as `lease.attach_to_machine`.
    """
    instance = lease.machine_instance(cfg, sweep_id)
    state = ledger.leases.open_on(instance)
    for other in state.sweeps if state and release_requests.outcome_unknown(ledger, state.lease.lease_id) else ():
        if other != sweep_id and (owner := lock_owner(cfg.database, other)):
            status = command_text("sweeps", "status", place=ledger.place)
            raise ConfigError(
                f"machine={cfg.machine.name}: {other} ({owner}) is releasing the machine. Wait until it is gone, or "
                f"until `{status}` reports that the release is not confirmed"
            )
    lease_id = lease.attach_to_machine(cfg, ledger, sweep_id, pricing)
    before = [gap for gap in unaccounted.unaccounted_times(ledger) if gap.before.lease.instance_id == instance]
    for sentence in unaccounted.describe(before, pricing.book, ledger.now_ns()).values():
        notify(f"  {sentence}")
    return lease_id


def undo_start(cfg: SweepConfig, pricing: Pricing) -> str:
    """Release the machine that `machine.up` started for a sweep that cannot start; a sentence on the outcome.

    A machine that a lease is open for is not released: another sweep uses it.
    """
    try:
        with Ledger.open(cfg.database, create=False, read_only=True) as ledger:
            state = ledger.leases.open_on(lease.machine_instance(cfg, ""))
    except StoreError:
        state = None
    if state:
        return f"machine.up was run. {cfg.machine.name} has an open lease ({state.lease.lease_id}): it is not released."
    return release_started(cfg, pricing)


def release_started(cfg: SweepConfig, pricing: Pricing) -> str:
    """Release the machine that `machine.up` started, if `machine.down` is set; a sentence on the outcome."""
    machine, price = cfg.machine, pricing.per_hour_text
    if not machine.down:
        return f"machine.up started {machine.name}, which costs {price} an hour: release it at {machine.provider}."
    outcome = provider.stop_machine(machine)
    result = "was released" if outcome.confirmed else f"costs {price} an hour: release requested, not confirmed"
    return f"{machine.name}, which machine.up started, {result} ({outcome.text})."
