"""The end of a sweep: its gate judged, its books copied to where they are safe, and what the command returns."""

from __future__ import annotations

from pathlib import Path

from cost.copies.s3 import BucketError
from cost.copies.s3_snapshot import archive
from cost.ledger.sqlite_copy import daily_backup
from cost.records import StoreError
from sweeps.config.overrides import CONF_DIR
from sweeps.driver.session import Session
from sweeps.journal.events import DriverEnd, GateVerdict, WarningIssued
from sweeps.journal.journal import SweepRecord, TrialState
from sweeps.machines import release
from sweeps.protocol.gates import metric_gate
from sweeps.storage.sweep_bucket import bucket_of
from sweeps.storage.uploads import unsaved

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_GATE, EXIT_BUDGET, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


def judge(session: Session) -> GateVerdict:
    """The stage's metric gate, written into the journal."""
    verdict = metric_gate(session.record, session.cfg.stage.steps, session.cfg.gate)
    session.journal.append(verdict)
    return verdict


def keep_books(session: Session) -> None:
    """A copy of the day beside a local ledger (a server's is its keeper's business), and a snapshot in the bucket."""
    if isinstance(place := session.database, Path):
        try:
            daily_backup(place, session.ledger.now_ns())
        except StoreError as error:
            session.warn(f"no copy of the ledger was made: {error}")
    snapshot(session)


def snapshot(session: Session) -> None:
    """Into S3, where there is a bucket. Each holds everything: the next one makes good for one that failed."""
    if session.cfg.storage.bucket is None:
        return
    try:
        archive(session.ledger, bucket_of(session.cfg.storage), pricing=CONF_DIR / "pricing", tries=1)
    except (BucketError, StoreError) as error:
        session.warn(
            f"no snapshot of the ledger was made: {error}; the next sweep or `python -m cost backup --to` will"
        )


def release_machine(session: Session, lease_id: str, *, wanted: bool) -> None:
    """Release the machine, if wanted; otherwise report that it is still running, and its cost."""
    cfg, ledger, sweep_id = session.cfg, session.ledger, session.record.sweep_id
    per_hour = session.pricing.per_hour_text
    if wanted:
        left = [] if cfg.machine.down_unsaved else unsaved(cfg.storage, ledger, sweep_id, session.sweep_dir)
        # A snapshot before the machine stops, since this process may stop with it, and one with the outcome.
        text = release.release(
            cfg.machine,
            ledger,
            lease_id,
            sweep_id,
            left,
            before_stop=lambda: snapshot(session),
            per_hour=per_hour,
        )
        if ledger.leases.get(lease_id).to_ns is None:
            session.journal.append(WarningIssued(text))
        snapshot(session)
    else:
        text = release.still_running_text(cfg, ledger.leases.get(lease_id), per_hour)
    if text:
        session.tell(f"Machine:  {text}")


def failed(record: SweepRecord) -> bool:
    return any(t.state is TrialState.FAILED for t in record.trials.values())


def exit_code(record: SweepRecord, verdict: GateVerdict | None = None) -> int:
    """Of a sweep that was not interrupted. `verdict`: just now; None: what the journal knows counts."""
    if any(t.state is TrialState.BUDGET_STOPPED for t in record.trials.values()) or record.ended is DriverEnd.BUDGET:
        return EXIT_BUDGET
    gate_open = verdict.open if verdict else bool(record.gate and record.gate.open)
    if gate_open:
        return EXIT_OK
    return EXIT_FAILED if failed(record) or record.ended is DriverEnd.FAILED else EXIT_GATE
