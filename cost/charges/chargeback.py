"""Who answers for a sweep's share of a machine: owner, project, cost centre and any tags, kept in the books.

A machine has an owner and tags of its own; what a sweep causes on it is charged to the sweep's. Which names have to be
said is kept in the books too. Reads and appends
entries of one journal; decides nothing about amounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cost.charges.attribution import CostLine
from cost.ledger.ledger import Ledger
from cost.records import Lease, LedgerError

STREAM = "chargeback"
COST_CENTER = "cost_center"
"""The tag that a cost centre is kept under."""


@dataclass(frozen=True)
class Chargeback:
    """Whom a sweep is charged to. Empty: what the machine says counts."""

    owner: str = ""
    project: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def lacking(self, required: Iterable[str]) -> list[str]:
        """Which of the required names it does not say: `owner`, `project`, or a tag."""
        said = {**self.tags, "owner": self.owner, "project": self.project}
        return [name for name in required if not said.get(name, "").strip()]


def set_required_names(ledger: Ledger, names: Sequence[str]) -> None:
    """From now on every machine opened by hand, and every sweep, has to say these: `owner`, `project`, or a tag.

    Raises:
        LedgerError: a name is empty or holds a space or an equals sign.
    """
    for name in names:
        if not name or set(name) & set(" ="):
            raise LedgerError(f"{name!r} is no name of a tag; write for example: owner project cost_center team")
    if list(required_names(ledger)) != list(names):
        ledger.append_event(STREAM, "required", {"names": list(names)}, f"required:{ledger.now_ns()}")


def required_names(ledger: Ledger) -> tuple[str, ...]:
    """What has to be said; nothing where nobody has set it."""
    # By when it was said: books that were merged have entries in another order.
    said = [event for event in ledger.events(STREAM) if event.kind == "required"]
    return tuple(max(said, key=lambda event: event.at_ns).body["names"]) if said else ()


def set_chargeback(ledger: Ledger, sweep_id: str, whom: Chargeback) -> None:
    """From now on a sweep is charged to these; a sweep that goes on under others is charged to the latest."""
    if chargebacks_by_sweep(ledger).get(sweep_id) == whom:
        return
    body = {"sweep_id": sweep_id, "owner": whom.owner, "project": whom.project, "tags": dict(whom.tags)}
    ledger.append_event(STREAM, "set", body, f"{sweep_id}:{ledger.now_ns()}")


def chargebacks_by_sweep(ledger: Ledger, as_of_ns: int | None = None) -> dict[str, Chargeback]:
    """By sweep, as it was known at a moment (None: now)."""
    return {
        event.body["sweep_id"]: Chargeback(event.body["owner"], event.body["project"], event.body["tags"])
        for event in ledger.events(STREAM)
        if event.kind == "set" and (as_of_ns is None or event.at_ns <= as_of_ns)
    }


def apply_chargebacks(lines: Iterable[CostLine], known: Mapping[str, Chargeback]) -> list[CostLine]:
    """The lines, each with the owner, project and tags of its sweep in place of its machine's, where it has some."""
    leases: dict[tuple[str, str], Lease] = {}
    found = []
    for line in lines:
        whom = known.get(line.sweep_id)
        if whom is None:
            found.append(line)
            continue
        key = (line.lease.lease_id, line.sweep_id)
        if key not in leases:
            lease = line.lease
            leases[key] = replace(
                lease,
                owner=whom.owner or lease.owner,
                project=whom.project or lease.project,
                tags={**lease.tags, **whom.tags},
            )
        found.append(replace(line, lease=leases[key]))
    return found
