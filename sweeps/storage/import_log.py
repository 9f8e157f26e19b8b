"""Imports the log of another trainer's run into the journal, and its cost into the ledger.

The import is a driver of its own whose clock stands at the start of the run: it opens the lease, starts and ends the
usage, and closes the lease, so that past instants are written in the same way as present ones. The lease has the tag
`imported`.

Tested in tests/sweeps/cli/test_import_log.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.periods import instant_text
from cost.prices.billing import load_rules, rule_for
from cost.prices.book import PriceBook, PriceRow, hourly
from cost.records import Lease, LedgerError, UsageKey
from rl.trainers.logs import ImportedRun
from sweeps.config.overrides import CONF_DIR
from sweeps.config.types import MachineConfig
from sweeps.journal.events import DriverEnded, RunImported
from sweeps.journal.journal import Journal, sweep_ids
from sweeps.journal.outcomes import DriverEnd


@dataclass(frozen=True)
class Billing:
    """What the run used: cards of a machine from an instant on."""

    machine: MachineConfig
    cards: int
    from_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Imported:
    """What an import has written."""

    sweep_id: str
    new_journal: bool
    """False: the same file was imported before."""
    new_lease: bool


def content_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def duration_ns(run: ImportedRun) -> int:
    """Wall time of the run: as the trainer reports it, else the sum of its step times.

    Raises:
        LedgerError: the log has neither.
    """
    seconds = run.elapsed_seconds
    if seconds is None:
        timed = [row.step_seconds for row in run.rows]
        if None in timed:
            raise LedgerError(
                f"the log has no step times in {timed.count(None)} of {len(timed)} rows and no total time, so the cost "
                "is unknown; import it without --machine and --cards"
            )
        seconds = sum(row.step_seconds * row.rows_are_means_of for row in run.rows if row.step_seconds is not None)
    if not 0.0 < seconds < float("inf"):
        raise LedgerError(f"the log states a duration of {seconds} seconds, so the cost is unknown")
    return round(seconds * 1e9)


def import_log(location: str | Path, path: Path, run: ImportedRun, billing: Billing | None) -> Imported:
    """Import a run that was read from the file `path`.

    The same file again changes nothing; a billing that was not given before is added.

    Raises:
        LedgerError: the ledger has another billing for this file.
        PriceError: the machine has no price at the start of the run.
    """
    digest = content_hash(path)
    sweep_id = f"imported-{digest[:8]}"
    row = None if billing is None else _price(billing)
    with Ledger.open(location, _clock(billing)) as ledger:
        known = sweep_id in sweep_ids(ledger)
        billed = any(state.lease.lease_id == sweep_id for state in ledger.leases.find())
        if billed and billing is not None:
            _check_same(ledger, sweep_id, billing)
        with ledger.transaction():
            if billing is not None and row is not None and not billed:
                _write_usage(ledger, sweep_id, run, billing, row)
            if not known:
                machine = "" if billing is None else billing.machine.name
                journal = Journal(ledger, sweep_id)
                journal.append(RunImported(path.name, digest, machine, run))
                journal.append(DriverEnded(DriverEnd.DONE, "imported"))
    return Imported(sweep_id, not known, billing is not None and not billed)


def _clock(billing: Billing | None) -> FakeClock | None:
    return None if billing is None else FakeClock(utc=billing.from_ns)


def _price(billing: Billing) -> PriceRow:
    machine, book = billing.machine, PriceBook.load(CONF_DIR / "pricing")
    row = book.in_force(machine.sku, billing.from_ns, purchase=machine.purchase, region=machine.region or None)
    rule_for(load_rules(CONF_DIR / "pricing"), row.provider, row.purchase)
    hourly(row, machine.cards, Decimal(str(machine.watts)))  # raises PriceError where the row does not fit the machine
    return row


def _check_same(ledger: Ledger, sweep_id: str, billing: Billing) -> None:
    (usage,) = ledger.usages.find(sweep_id=sweep_id)
    lease = ledger.leases.get(sweep_id).lease
    if (lease.machine, usage.cards) != (billing.machine.name, Decimal(billing.cards)):
        raise LedgerError(
            f"{sweep_id} was imported on {usage.cards} cards of {lease.machine} from {instant_text(usage.from_ns)} on; "
            "the ledger is append-only: `python -m cost correct` changes its cost"
        )


def _write_usage(ledger: Ledger, sweep_id: str, run: ImportedRun, billing: Billing, row: PriceRow) -> None:
    machine, clock = billing.machine, ledger.writer.clock
    lease = Lease(
        lease_id=sweep_id,
        instance_id=f"imported:{sweep_id}",
        machine=machine.name,
        sku=machine.sku,
        provider=row.provider,
        cards=machine.cards,
        currency=row.currency,
        price_hash=row.hash,
        region=machine.region,
        purchase=row.purchase,
        watts=Decimal(str(machine.watts)) if machine.watts else None,
        tags={"imported": "true"},
    )
    key = UsageKey(sweep_id, sweep_id, 1)
    ledger.leases.open(lease)
    ledger.price_archive.add([row])
    ledger.leases.attach(sweep_id, sweep_id)
    labels = {"stage": "imported", "state": "COMPLETED", "steps": str(run.steps), "trainer": run.trainer}
    ledger.usages.start(key, sweep_id, Decimal(billing.cards), labels)
    assert isinstance(clock.clock, FakeClock)
    clock.clock.advance(billing.duration_ns)
    ledger.usages.end(key, "COMPLETED")
    ledger.leases.detach(sweep_id, sweep_id, "imported")
