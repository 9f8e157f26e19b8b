"""The records of the ledger as frozen dataclasses, its constants and its errors.

Times are integer nanoseconds UTC (`*_ns`). A number of cards may be a fraction with at most six decimal places.

Tested in tests/cost/ledger/test_leases.py and tests/cost/ledger/test_usages.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

PHASES = ("startup", "rollout", "reward", "logprob", "train", "sync", "evaluation", "checkpoint", "recovery", "other")
"""Phases whose time a trial reports. `other` includes time that the trial did not report."""

OVERHEADS = (
    *("startup", "idle", "teardown", "unassigned", "billing_increment", "unused_commitment"),
    *("storage", "egress", "requests", "fee", "tax", "credit", "refund", "fx", "adjustment", "purchase", "stopped"),
)
"""Categories of cost outside any trial.

`unassigned`: no sweep was attached to the machine. `purchase`: the invoice of a commitment; its cost is amortised over
the term in other categories. `stopped`: the machine was leased but stopped, billed or not.
"""

CATEGORIES = (*PHASES, "lost_work", *(name for name in OVERHEADS if name not in PHASES))
"""All categories of cost, in the order of the columns of a report."""

OUTCOMES = ("COMPLETED", "PRUNED", "FAILED", "PREEMPTED", "BUDGET_STOPPED", "CANCELLED", "LOST")
"""How an attempt's use of cards can end. LOST: its driver died, and it was closed at its last heartbeat."""

LOST_WORK_OUTCOMES = frozenset({"FAILED", "PREEMPTED", "LOST"})
"""Outcomes after which the work since the last checkpoint must be repeated."""

FORECAST_LABELS = ("forecast_p50", "forecast_p90")
"""Labels of an attempt with the forecast cost of its trial at the start, as text with a currency."""


class LedgerError(Exception):
    """The ledger refuses a record or a request. The message names the problem, the place and the remedy."""


class IntegrityError(LedgerError):
    """A record exists with other content, or contradicts other records."""


class StoreError(LedgerError):
    """The database cannot be used: locked, read-only, corrupt, full, or written by a newer version."""


class NoLedgerError(StoreError):
    """There is no ledger at this location, or it is empty."""


class LedgerRemovedError(StoreError):
    """The ledger's file was deleted or replaced while it was open."""


def no_ledger_message(place: object) -> str:
    """The message for a missing or an empty ledger."""
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
    """The lease of a machine, with what is known when it is opened."""

    lease_id: str
    instance_id: str
    """Identifies the machine (cloud instance id, host name). At most one lease of an instance is open."""
    machine: str
    """Name of the machine's configuration, e.g. `h100x8`."""
    sku: str
    provider: str
    cards: int
    currency: str
    price_hash: str | None
    """Hash of the price row in force at the opening. None only if leases without a price were allowed."""
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
        """Whether the machine is simulated. Only the report of its own sweep includes it."""
        return self.tags.get("simulated") == "true"


@dataclass(frozen=True)
class LeaseState:
    """The current state of a lease."""

    lease: Lease
    from_ns: int
    to_ns: int | None
    """None: still open."""
    how: str | None
    """How the lease ended."""
    released: bool
    """Whether the provider confirmed the release of the machine."""
    last_heartbeat_ns: int
    """The last heartbeat of a driver; `from_ns` if there is none."""
    sweeps: tuple[str, ...]
    """The sweeps that are attached now."""


@dataclass(frozen=True)
class Attachment:
    """A sweep is attached to a lease from one moment to another."""

    lease_id: str
    sweep_id: str
    from_ns: int
    to_ns: int | None
    how: str | None


@dataclass(frozen=True)
class Usage:
    """Cards of a lease that one attempt uses, in its current state."""

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
    """The latest value of each label."""
    wall: bool
    """Whether start and end come from the clocks of two drivers, so that the duration is a difference of UTC times."""


@dataclass(frozen=True)
class NewEvent:
    """An event to be appended to a stream; `key` identifies the event within the stream."""

    kind: str
    body: Mapping[str, Any] | str
    """JSON types, or a text that is already JSON."""
    key: str


@dataclass(frozen=True)
class StoredEvent:
    """One event of a stream."""

    sequence: int
    """1, 2, 3 ... within the stream."""
    stream: str
    kind: str
    at_ns: int
    driver: str
    text: str
    """The body as JSON."""
    key: str

    @property
    def body(self) -> Mapping[str, Any]:
        """Parsed on demand, because many readers need few of the events."""
        return read_json(self.text)


def read_json(text: str | bytes) -> Any:
    """Parse JSON. Unpaired surrogates, which file names may contain, need the slower standard decoder."""
    import msgspec  # imported here: it takes 30 ms, and many commands read no event

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


@dataclass(frozen=True)
class Correction:
    """Raises or lowers the cost of a lease after the fact."""

    correction_id: str
    lease_id: str
    category: str
    pico: int
    currency: str
    at_ns: int
    """The instant under which it is reported: it decides the day and the month."""
    reason: str
    sweep_id: str = ""
    trial_id: str = ""
    attempt: int = 0
