"""What goes into the ledger and comes out of it, as frozen dataclasses. No behaviour beyond checks of single fields.

Times are integer nanoseconds UTC (`*_ns`); cards may be a fraction of one, with at most six decimal places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

PHASES = ("startup", "rollout", "reward", "logprob", "train", "sync", "evaluation", "checkpoint", "recovery", "other")
"""Kinds of time that a trial reports. `other` is also what it did not report."""

OVERHEADS = (
    *("startup", "idle", "teardown", "unassigned", "billing_increment", "unused_commitment"),
    *("storage", "egress", "requests", "fee", "tax", "credit", "refund", "fx", "adjustment", "purchase", "stopped"),
)
"""Categories of cost outside any trial.

`unassigned`: no sweep was attached to the machine. `purchase`: the bill of a commitment, whose cost is amortised over
its term under other categories. `stopped`: the machine was leased and did not run, billed or not.
"""

CATEGORIES = (*PHASES, "lost_work", *(name for name in OVERHEADS if name not in PHASES))
"""Every category of cost, in the order of the report's columns."""

OUTCOMES = ("COMPLETED", "PRUNED", "FAILED", "PREEMPTED", "BUDGET_STOPPED", "CANCELLED", "LOST")
"""How an attempt's use of cards can end. LOST: its driver died, and it was closed at its last heartbeat."""

LOST_WORK_OUTCOMES = frozenset({"FAILED", "PREEMPTED", "LOST"})
"""Outcomes after which the work since the last checkpoint has to be done again."""

FORECAST_LABELS = ("forecast_p50", "forecast_p90")
"""Labels of an attempt that say, as text with a currency, what its trial was forecast to cost when it was started."""


class LedgerError(Exception):
    """Something the ledger refuses. The message says what is wrong, where, and what would be right."""


class IntegrityError(LedgerError):
    """The same fact was written before with another content, or the fact contradicts what is in the ledger."""


class StoreError(LedgerError):
    """The database cannot be used: locked, read-only, corrupt, full, or written by a newer version."""


class NoLedgerError(StoreError):
    """There is no ledger at this place yet, or nothing in it."""


class LedgerRemovedError(StoreError):
    """The ledger's file was deleted or replaced while it was open."""


def no_ledger_message(place: object) -> str:
    """What to say where there is no ledger, or an empty one."""
    return (
        f"there is nothing in the ledger at {place} yet; run a sweep (python sweep.py +stage=smoke), enter a machine "
        "(python -m cost leases open), or name another folder with --root"
    )


@dataclass(frozen=True)
class UsageKey:
    """One attempt of one trial on one lease."""

    lease_id: str
    trial_id: str
    attempt: int


@dataclass(frozen=True)
class Lease:
    """A machine held from a moment on, as it is when it is opened."""

    lease_id: str
    instance_id: str
    """The machine's own identity (cloud instance id, host name): at most one lease of it is open."""
    machine: str
    """Name of the machine's configuration, e.g. `h100x8`."""
    sku: str
    provider: str
    cards: int
    currency: str
    price_hash: str | None
    """Hash of the price row quoted at opening. None only when unpriced leases were allowed by hand."""
    account: str = ""
    resource_id: str = ""
    region: str = ""
    purchase: str = "on_demand"
    watts: Decimal | None = None
    """Electric power under load; own hardware only."""
    owner: str = ""
    project: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    opened_by: Literal["sweep", "hand"] = "sweep"
    from_ns: int | None = None
    """None: the moment of opening."""

    @property
    def simulated(self) -> bool:
        """Nobody ever held this machine: it is in no report but its own sweep's."""
        return self.tags.get("simulated") == "true"


@dataclass(frozen=True)
class LeaseState:
    """A lease as the ledger knows it now."""

    lease: Lease
    from_ns: int
    to_ns: int | None
    """None: still open."""
    how: str | None
    """How it ended."""
    released: bool
    """Whether its provider confirmed that it is gone."""
    last_heartbeat_ns: int
    """The last moment at which a driver said that the machine is held; `from_ns` where none did."""
    sweeps: tuple[str, ...]
    """Attached now."""


@dataclass(frozen=True)
class Attachment:
    """A sweep's hold on a lease from one moment to another."""

    lease_id: str
    sweep_id: str
    from_ns: int
    to_ns: int | None
    how: str | None


@dataclass(frozen=True)
class Usage:
    """Cards of a lease held by one attempt, with what is known of it now."""

    key: UsageKey
    sweep_id: str
    cards: Decimal
    from_ns: int
    to_ns: int | None
    """None: still open."""
    outcome: str | None
    end_estimated: bool
    last_heartbeat_ns: int
    labels: Mapping[str, str]
    """Latest value of each label."""
    wall: bool
    """True where start and end were stamped by two drivers, so that the duration is a difference of UTC."""


@dataclass(frozen=True)
class NewEvent:
    """An entry to be written to a journal; `key` is its own within its stream."""

    kind: str
    body: Mapping[str, Any] | str
    """JSON types; or JSON that its writer has made already."""
    key: str


@dataclass(frozen=True)
class StoredEvent:
    """One entry of a journal."""

    sequence: int
    """1, 2, 3 ... within its stream."""
    stream: str
    kind: str
    at_ns: int
    driver: str
    text: str
    """The body as JSON."""
    key: str

    @property
    def body(self) -> Mapping[str, Any]:
        """Made of the text when it is asked for: many readers want a few events of many."""
        return read_json(self.text)


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Half surrogate pairs, which file names may contain, need the slower decoder."""
    import msgspec  # here: it takes 30 ms to load, and many commands read no event

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


@dataclass(frozen=True)
class Correction:
    """An entry that changes what a closed interval cost, up or down."""

    correction_id: str
    lease_id: str
    category: str
    pico: int
    currency: str
    at_ns: int
    """The moment within the lease that it belongs to: it decides the day and month it is reported under."""
    reason: str
    sweep_id: str = ""
    trial_id: str = ""
    attempt: int = 0
