"""The machine of a sweep as its driver holds it: brought up before, given back after, and a person told what it costs.

Between `sweeps.leaving`, which knows how a machine comes and goes, and the driver, which knows when.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import lock_owner
from cost.money import money_text
from cost.records import StoreError
from cost.reports import unaccounted
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.driver.finish import snapshot
from sweeps.driver.resume import database
from sweeps.driver.session import Session
from sweeps.journal.events import WarningIssued
from sweeps.machines import release
from sweeps.machines.machine import Pricing, hold_machine, machine_instance
from sweeps.storage.uploads import unsaved


def brought_up(cfg: SweepConfig, console: Console) -> SweepConfig:
    """Run `machine.up`; the configuration with the Ray that it named, if it named one."""
    console.print(Text(f"Bringing {cfg.machine.name} up: {cfg.machine.up}"), soft_wrap=True)
    address = release.bring_up(cfg.machine)
    if not address:
        return cfg
    console.print(f"  its Ray is at {address}")
    return replace(cfg, machine=replace(cfg.machine, cluster=address))


def undone(cfg: SweepConfig, root: Path, pricing: Pricing) -> str:
    """What `machine.up` brought up goes again, where no sweep has it."""
    try:
        with Ledger.open(database(cfg, root), create=False, read_only=True) as ledger:
            held = ledger.open_lease_of(machine_instance(cfg, ""))
    except StoreError:
        held = None
    if held:
        return f"machine.up was run, and {cfg.machine.name} is held by lease {held.lease.lease_id}: it stays."
    return release.undo_up(cfg.machine, per_hour(pricing))


def hold(session: Session) -> str:
    """Hold the machine for this sweep; the id of its lease. Says what is not known of the time before.

    Raises:
        ConfigError: another sweep is giving it back just now; or as `machine.hold_machine`.
    """
    cfg, ledger, sweep_id = session.cfg, session.ledger, session.record.sweep_id
    instance = machine_instance(cfg, sweep_id)
    held = ledger.open_lease_of(instance)
    for other in held.sweeps if held and release_requests.under_way(ledger, held.lease.lease_id) else ():
        if other != sweep_id and (by := lock_owner(session.database, other)):
            raise ConfigError(
                f"machine={cfg.machine.name}: {other} ({by}) is giving it back: wait until it is gone, or until "
                "`python -m sweeps status` says that it is not"
            )
    lease_id = hold_machine(cfg, ledger, sweep_id, session.pricing)
    mine = [gap for gap in unaccounted.unaccounted_times(ledger) if gap.before.lease.instance_id == instance]
    for sentence in unaccounted.describe(mine, session.pricing.book, ledger.now_ns()).values():
        session.tell(f"  {sentence}")
    return lease_id


def leave(session: Session, lease_id: str, going: bool) -> None:
    """Give the machine back, if it is to go; else say what is still running and what it costs."""
    cfg, ledger, sweep_id = session.cfg, session.ledger, session.record.sweep_id
    if going:
        left = [] if cfg.machine.down_unsaved else unsaved(cfg.storage, ledger, sweep_id, session.sweep_dir)
        # The ledger goes off the machine before it does, and once more when its release is on the books.
        cost = per_hour(session.pricing)
        text = release.leave(cfg.machine, ledger, lease_id, sweep_id, left, lambda: snapshot(session), per_hour=cost)
        if ledger.lease_state(lease_id).to_ns is None:
            session.journal.append(WarningIssued(text))
        snapshot(session)
    else:
        text = release.still_held(cfg, ledger.lease_state(lease_id), per_hour(session.pricing))
    if text:
        session.tell(f"Machine:  {text}")


def per_hour(pricing: Pricing) -> str:
    return "UNPRICED" if pricing.per_hour is None else money_text(pricing.per_hour)
