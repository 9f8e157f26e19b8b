"""The machine of a sweep as its driver holds it: brought up before, given back after, and a person told what it costs.

Between `sweeps.leaving`, which knows how a machine comes and goes, and the driver, which knows when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cost.ledger import Ledger
from cost.records import StoreError
from sweeps import leaving
from sweeps.config_types import SweepConfig
from sweeps.machine import Pricing, machine_instance, money_text
from sweeps.opening import database
from sweeps.saving import unsaved


def brought_up(cfg: SweepConfig, console: Console) -> SweepConfig:
    """Run `machine.up`; the configuration with the Ray that it named, if it named one."""
    console.print(Text(f"Bringing {cfg.machine.name} up: {cfg.machine.up}"), soft_wrap=True)
    address = leaving.bring_up(cfg.machine)
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
    return leaving.undo_up(cfg.machine, per_hour(pricing))


def leave(
    cfg: SweepConfig,
    console: Console,
    ledger: Ledger,
    lease_id: str,
    sweep_dir: Path,
    going: bool,
    pricing: Pricing,
    keep_books: Callable[[], None],
) -> None:
    """Give the machine back, if it is to go; else say what is still running and what it costs.

    Args:
        keep_books: brings the ledger off the machine, before it goes and once more when it is gone.
    """
    if going:
        left = [] if cfg.machine.down_unsaved else unsaved(cfg.storage, ledger, sweep_dir.name, sweep_dir)
        text = leaving.leave(cfg.machine, ledger, lease_id, sweep_dir.name, left, keep_books)
        keep_books()
    else:
        text = leaving.still_held(cfg, ledger.lease_state(lease_id), per_hour(pricing))
    if text:
        console.print(Text(f"Machine:  {text}"), soft_wrap=True)


def per_hour(pricing: Pricing) -> str:
    return "UNPRICED" if pricing.per_hour is None else money_text(pricing.per_hour)


def warn(console: Console, text: str) -> None:
    console.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)
