"""Who pays for a sweep's share of a machine: owner, project, cost centre and free tags, stored in the ledger.

A machine has an owner and tags of its own. The cost that a sweep causes on it is charged to the sweep's owner and
tags. The ledger also stores which of these names are required. Amounts are not changed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cost.charges.attribution import CostLine
from cost.ledger.ledger import Ledger
from cost.records import Lease, LedgerError

STREAM = "chargeback"
COST_CENTER = "cost_center"
"""The tag that holds the cost centre."""


@dataclass(frozen=True)
class Chargeback:
    """Whom a sweep is charged to. For an empty field the machine's own value counts."""

    owner: str = ""
    project: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def missing(self, required: Iterable[str]) -> list[str]:
        """The required names (`owner`, `project` or a tag) that have no value here."""
        values = {**self.tags, "owner": self.owner, "project": self.project}
        return [name for name in required if not values.get(name, "").strip()]


def set_required_names(ledger: Ledger, names: Sequence[str]) -> None:
    """Require these names (`owner`, `project` or a tag) of every sweep and of every machine opened by hand.

    Raises:
        LedgerError: a name is empty or contains a space or an equals sign.
    """
    for name in names:
        if not name or set(name) & set(" ="):
            raise LedgerError(f"{name!r} is not a valid tag name; write for example: owner project cost_center team")
    if list(required_names(ledger)) != list(names):
        ledger.events.append(STREAM, "required", {"names": list(names)}, f"required:{ledger.now_ns()}")


def required_names(ledger: Ledger) -> tuple[str, ...]:
    """The names that are required; empty if none were set."""
    # Ordered by time, not by sequence: a merged ledger has its events in another order.
    events = [event for event in ledger.events.read(STREAM) if event.kind == "required"]
    return tuple(max(events, key=lambda event: event.at_ns).body["names"]) if events else ()


def set_chargeback(ledger: Ledger, sweep_id: str, chargeback: Chargeback) -> None:
    """Charge a sweep to this owner, project and tags. The latest setting applies to all of the sweep's cost."""
    if chargebacks_by_sweep(ledger).get(sweep_id) == chargeback:
        return
    body = {"sweep_id": sweep_id, "owner": chargeback.owner, "project": chargeback.project}
    ledger.events.append(STREAM, "set", body | {"tags": dict(chargeback.tags)}, f"{sweep_id}:{ledger.now_ns()}")


def chargebacks_by_sweep(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, Chargeback]:
    """The chargeback of each sweep at a moment (None: now)."""
    return {
        event.body["sweep_id"]: Chargeback(event.body["owner"], event.body["project"], event.body["tags"])
        for event in ledger.events.read(STREAM)
        if event.kind == "set" and (as_of_ns is None or event.at_ns <= as_of_ns)
    }


def apply_chargebacks(lines: Iterable[CostLine], chargebacks: Mapping[str, Chargeback]) -> list[CostLine]:
    """The same lines with the owner, project and tags of their sweep in place of the machine's, where it has any."""
    leases: dict[tuple[str, str], Lease] = {}
    charged_lines = []
    for line in lines:
        chargeback = chargebacks.get(line.sweep_id)
        if chargeback is None:
            charged_lines.append(line)
            continue
        key = (line.lease.lease_id, line.sweep_id)
        if key not in leases:
            lease = line.lease
            leases[key] = replace(
                lease,
                owner=chargeback.owner or lease.owner,
                project=chargeback.project or lease.project,
                tags={**lease.tags, **chargeback.tags},
            )
        charged_lines.append(replace(line, lease=leases[key]))
    return charged_lines
