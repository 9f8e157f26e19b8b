"""The end of a sweep: its gate is judged, its ledger is copied, and the command's exit code is chosen.

Tested in tests/sweeps/machines/test_acquire.py and tests/e2e/test_sweep_command.py.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from cost.commands import command_text
from cost.copies.s3 import BucketError
from cost.copies.s3_snapshot import upload_snapshot
from cost.ledger.ledger import Ledger
from cost.ledger.sqlite_copy import daily_backup
from cost.records import LedgerRemovedError, StoreError
from sweeps.config.overrides import CONF_DIR
from sweeps.driver.context import DriverContext
from sweeps.journal.events import DriverEnded, GateVerdict, WarningIssued
from sweeps.journal.journal import SweepRecord, TrialState
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines import lease, release
from sweeps.protocol.gates import metric_gate
from sweeps.protocol.trial_rules import TrialRules
from sweeps.storage.sweep_bucket import bucket_of
from sweeps.storage.uploads import unsaved

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_GATE, EXIT_BUDGET, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


def judge_gate(context: DriverContext, rules: TrialRules) -> GateVerdict:
    """Judge the stage's metric gate, and write the verdict into the journal."""
    verdict = metric_gate(context.record, context.cfg.stage.steps, context.cfg.gate, rules)
    context.journal.append(verdict)
    return verdict


def end_before_trials(context: DriverContext) -> bool:
    """End a sweep that a person interrupted before its first trial; whether it was attached to a lease.

    The machine is kept, as after every interruption.
    """
    cfg, ledger, sweep_id = context.cfg, context.ledger, context.record.sweep_id
    state = ledger.leases.open_on(lease.machine_instance(cfg, sweep_id))
    if state is None or sweep_id not in state.sweeps:
        return False
    lease_id = state.lease.lease_id
    with context.journal.transaction():
        context.journal.append(DriverEnded(DriverEnd.INTERRUPTED))
        ledger.leases.detach(lease_id, sweep_id, DriverEnd.INTERRUPTED.value)
    release_machine(context, lease_id, wanted=False)
    return True


def put_back(ledger: Ledger, error: StoreError) -> StoreError:
    """Restore a ledger that was deleted while the sweep ran; the error, with where its content is now.

    Other errors, and one that names that place already, are returned unchanged.
    """
    if not isinstance(error, LedgerRemovedError) or error.__cause__ is not None:
        return error
    before = ledger.place
    try:
        path = ledger.put_back()
    except StoreError as failure:
        return LedgerRemovedError(f"{error}, and could not be written back: {failure}")
    if str(path) == before:
        return LedgerRemovedError(f"{error}. Everything that was recorded was written back to {path}")
    restore = command_text("cost", "restore", str(path), place=before)
    return LedgerRemovedError(f"{error}. Everything that was recorded is in {path}; to use it: {restore}")


def copy_ledger(context: DriverContext) -> None:
    """Make the daily copy of a SQLite ledger, and a snapshot in the bucket. A server's ledger has its own backups."""
    if isinstance(path := context.cfg.database, Path):
        try:
            daily_backup(path, context.ledger.now_ns())
        except StoreError as error:
            context.warn(f"the ledger was not copied: {error}")
    write_snapshot(context)


def write_snapshot(context: DriverContext) -> None:
    """Write a snapshot of the ledger into the bucket, if there is one. Each snapshot holds everything."""
    if context.cfg.storage.bucket is None:
        return
    try:
        upload_snapshot(context.ledger, bucket_of(context.cfg.storage), pricing=CONF_DIR / "pricing", tries=1)
    except (BucketError, StoreError) as error:
        again = command_text("cost", "backup", "--to", bucket_of(context.cfg.storage).url, place=context.ledger.place)
        context.warn(f"no snapshot of the ledger was written: {error}; the next sweep or `{again}` writes one")


def release_machine(context: DriverContext, lease_id: str, *, wanted: bool) -> None:
    """Release the machine, if wanted; otherwise report that it is still running, and its cost."""
    cfg, ledger, sweep_id = context.cfg, context.ledger, context.record.sweep_id
    per_hour = context.pricing.per_hour_text
    if wanted:
        left = [] if cfg.machine.down_unsaved else unsaved(cfg.storage, ledger, sweep_id, context.sweep_dir)
        # A snapshot before the machine stops, since this process may stop with it, and one with the outcome.
        text = release.release(
            cfg.machine,
            ledger,
            lease_id,
            sweep_id,
            left,
            before_stop=lambda: write_snapshot(context),
            per_hour=per_hour,
        )
        with suppress(StoreError):  # a ledger that cannot be written does not hide the outcome of the release
            if ledger.leases.get(lease_id).to_ns is None:
                context.journal.append(WarningIssued(text))
        write_snapshot(context)
    else:
        text = release.still_running_text(cfg, ledger.leases.get(lease_id), per_hour)
    if text:
        context.show(f"Machine:  {text}")


def has_failed_trials(record: SweepRecord) -> bool:
    return any(t.state is TrialState.FAILED for t in record.trials.values())


def exit_code(record: SweepRecord, verdict: GateVerdict | None = None) -> int:
    """Exit code of a sweep that was not interrupted. `verdict`: the gate's; None: as in the journal."""
    if any(t.state is TrialState.BUDGET_STOPPED for t in record.trials.values()) or record.ended is DriverEnd.BUDGET:
        return EXIT_BUDGET
    verdict = verdict or record.gate
    if verdict is not None and verdict.open:
        return EXIT_OK
    return EXIT_FAILED if has_failed_trials(record) or record.ended is DriverEnd.FAILED else EXIT_GATE
