"""Releases the machine of a sweep. Stopping the trials does not stop the bill: only a released machine costs nothing.

`should_release` decides, `release` asks the provider and writes the ledger. A lease is closed only when the release is
confirmed; until then it accrues cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cost.charges.lease_charge import TAKEN_BACK
from cost.commands import command_text
from cost.ledger import release_requests
from cost.ledger.database import shown_place
from cost.ledger.ledger import Ledger
from cost.records import IntegrityError, LeaseState, StoreError
from cost.reports.unaccounted import LEFT
from rl.spec import Stop, StopKind
from sweeps.config.types import MachineConfig, SweepConfig
from sweeps.journal.journal import SweepRecord
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines import lease, provider
from sweeps.machines.provider import ReleaseOutcome

_NOT_RELEASED_AFTER = frozenset({StopKind.INTERRUPTED, StopKind.TERMINATED, StopKind.MACHINE_TAKEN})
"""After an interruption a person may want to look at the machine; after the others, it is being stopped anyway."""


def should_release(cfg: SweepConfig, end: DriverEnd, stop: Stop | None) -> bool:
    """Whether the machine is released after a driver that ended in this way. `stop`: why the sweep stopped early."""
    stays = end is DriverEnd.INTERRUPTED and stop is not None and stop.kind in _NOT_RELEASED_AFTER
    return bool(cfg.machine.down) and lease.is_real_machine(cfg) and not stays


def is_taken_back(stop: Stop | None) -> bool:
    """Whether the sweep stopped because the provider takes the machine back."""
    return stop is not None and stop.kind is StopKind.MACHINE_TAKEN


def release(
    machine: MachineConfig,
    ledger: Ledger,
    lease_id: str,
    sweep_id: str,
    unsaved: Sequence[str],
    *,
    before_stop: Callable[[], None] = lambda: None,
    stop_machine: Callable[[MachineConfig, str], ReleaseOutcome] = provider.stop_machine,
    per_hour: str = "",
) -> str:
    """Release the machine if no data is lost with it and no other sweep uses it; a sentence on the outcome.

    The machine is released even if the ledger cannot be written, as on a full disk: the sentence then names what to
    record by hand.

    Args:
        unsaved: the sweep's files that exist on this machine only.
        before_stop: called after the request is in the ledger and before the machine stops, which may end this process.
        per_hour: the machine's price, for people; empty where it is unknown.
    """
    state, costs = ledger.leases.get(lease_id), f"costs {per_hour} an hour" if per_hour else "costs money"
    if state.to_ns is not None:
        return f"The lease of {machine.name} is closed already ({state.how})."
    others = [s for s in state.sweeps if s != sweep_id]
    if others:
        ledger.leases.detach(lease_id, sweep_id, "done")
        return f"{machine.name} was not released and {costs}: {', '.join(others)} uses it."
    if unsaved and not machine.down_unsaved and not (machine.down and machine.down.keeps_disk):
        why = f"{len(unsaved)} files or checkpoints exist on it only, such as {unsaved[0]}"
        _write(lambda: release_requests.record_kept(ledger, lease_id, why))
        return (
            f"{machine.name} was NOT released and {costs}: {why}. Copy them and release the machine by hand, or use "
            "storage=s3. machine.down_unsaved=true releases it anyway."
        )
    _write(lambda: release_requests.record_requested(ledger, lease_id, str(machine.down)))
    before_stop()
    try:
        outcome = stop_machine(machine, state.lease.resource_id)
    except Exception as error:  # any error of the provider's client: the machine may still be running
        outcome = ReleaseOutcome(False, f"{type(error).__name__}: {provider.first_line(str(error))}")
    why = outcome.text
    by_hand = command_text("cost", "leases", "close", lease_id, "--released", place=ledger.place)
    if outcome.confirmed:
        try:
            ledger.usages.close_dead()
            ledger.leases.close(lease_id, "released", released=True)
            return f"{machine.name} was released: {why}."
        except IntegrityError as error:  # a sweep has attached in the meantime
            why = f"{why}, but {error}"
        except StoreError:
            pass
    recorded = _write(lambda: release_requests.record_failed(ledger, lease_id, why))
    if outcome.confirmed and not recorded:
        return (
            f"{machine.name} was released: {outcome.text}. The ledger has no record of it, since it cannot be written "
            f"now; record it later with: {by_hand}"
        )
    return (
        f"{release_requests.UNCONFIRMED}: the release of {machine.name} was requested and is not confirmed: {why}. Its "
        f"lease stays open and {costs}. Check at {machine.provider}, and once the machine is gone: {by_hand}"
    )


def is_pending(ledger: Ledger, record: SweepRecord) -> bool:
    """Whether a driver of this sweep died between the end of the sweep and the outcome of the machine's release."""
    if record.ended is None or not record.lease_ids:
        return False
    state = ledger.leases.get(record.lease_ids[-1])
    attached = state.to_ns is None and record.sweep_id in state.sweeps
    return attached and release_requests.outcome_unknown(ledger, state.lease.lease_id)


def _write(write: Callable[[], None]) -> bool:
    """Write to the ledger if that is possible, and return whether it was: the sentence for a person has the same."""
    try:
        write()
    except StoreError:
        return False
    return True


def still_running_text(cfg: SweepConfig, state: LeaseState | None, per_hour: str) -> str:
    """What a person must know about a machine that is not released; empty for own and simulated machines.

    `state` is None where the ledger cannot be read any more.
    """
    machine, place = cfg.machine, shown_place(cfg.database)
    if not lease.is_real_machine(cfg) or machine.purchase == "own" or (state and state.lease.purchase == "own"):
        return ""
    if state and state.how == TAKEN_BACK:
        record = command_text("cost", "leases", "open", place=place)
        return (
            f"{machine.name} is taken back by {machine.provider}, and its lease ends here. If the machine keeps "
            f"running, it costs {per_hour} an hour: record that with {record}"
        )
    hint = "" if machine.down else ", or set machine.down for the next sweep"
    extend = ""
    if state and state.how in LEFT:
        record = command_text("cost", "leases", "extend", state.lease.lease_id, place=place)
        extend = f" Its lease ends here. If you keep the machine, record its further cost with: {record}"
    return (
        f"Still running: {machine.name} ({machine.sku} at {machine.provider}) costs {per_hour} an hour, with or "
        f"without trials. This program has not released it. Release it at the provider{hint}.{extend}"
    )


def rent_hint(machine: MachineConfig, per_hour: str) -> str:
    """How to get the machine, for a person on a host without its cards."""
    return (
        f"rent {machine.cards} x {machine.card_name} ({machine.sku} at {machine.provider}, {per_hour} an hour) and run "
        "this command there, or set machine.up to a command that starts such a machine"
    )
