"""Corrections: entries that raise or lower the cost of a lease after the fact.

Tested in tests/cost/ledger/test_ledger.py and tests/cost/cli/test_corrections.py.
"""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, select

from cost.ledger import queries, schema
from cost.ledger.writer import LedgerWriter
from cost.money import checked_currency
from cost.periods import instant_text
from cost.records import CATEGORIES, Correction, IntegrityError, LedgerError


class CorrectionStore:
    """The corrections of one ledger. Each is written once and never changed."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def add(self, correction: Correction) -> bool:
        """Write a correction. Returns False where the ledger has the same correction already.

        Raises:
            LedgerError: the category or the currency is unknown, the reason is empty, or the instant is in the future.
            IntegrityError: the lease does not exist or has another currency, the sweep or trial never used the lease,
                or a correction of this id has other content.
        """
        checked_currency(correction.currency)
        if correction.category not in CATEGORIES:
            raise LedgerError(f"{correction.category!r} is not a category; choose one of {', '.join(CATEGORIES)}")
        if not correction.reason.strip():
            raise LedgerError(f"correction {correction.correction_id} needs a reason")
        if correction.at_ns > self._writer.now_ns():
            raise LedgerError(
                f"correction {correction.correction_id} is dated {instant_text(correction.at_ns)}, in the future"
            )
        table = schema.correction
        with self._writer.write() as connection:
            state = queries.lease_state(connection, correction.lease_id)
            if correction.currency != state.lease.currency:
                raise IntegrityError(
                    f"lease {correction.lease_id} is in {state.lease.currency}; write its correction in that currency"
                )
            known = connection.execute(select(table).where(table.c.correction_id == correction.correction_id)).first()
            if known is not None:
                if all(getattr(known, name) == value for name, value in asdict(correction).items()):
                    return False
                raise IntegrityError(f"correction {correction.correction_id} exists with other content")
            _check_sweep_and_trial(connection, correction)
            connection.execute(table.insert(), asdict(correction) | self._writer.signature())
            return True


def _check_sweep_and_trial(connection: Connection, correction: Correction) -> None:
    lease_id, sweep_id, trial_id = correction.lease_id, correction.sweep_id, correction.trial_id
    if trial_id and not sweep_id:
        raise LedgerError(f"correction {correction.correction_id} names trial {trial_id} without its sweep")
    sweeps = sorted({attachment.sweep_id for attachment in queries.attachments(connection, [lease_id])})
    if sweep_id and sweep_id not in sweeps:
        known = f"its sweeps were {', '.join(sweeps)}" if sweeps else "it had no sweep"
        raise IntegrityError(f"sweep {sweep_id!r} never used lease {lease_id}; {known}")
    if trial_id and not queries.usages_of_trial(connection, lease_id, trial_id, sweep_id):
        raise IntegrityError(f"trial {trial_id!r} of sweep {sweep_id} never ran on lease {lease_id}")
