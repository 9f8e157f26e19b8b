"""Results of the preflight stage in the ledger's event table: one stream per run of the checks.

A preflight is no sweep: it has no plan, no lease and no trials. So its results have streams of their own, named by the
recipe, and are found again by it.

Tested in tests/sweeps/journal/test_preflight_results.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from cost.records import NewEvent
from rl.checks.result import CheckResult, Status, worst

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

STREAM_PREFIX = "preflight:"

Scope = Literal["all", "reward and questions"]
"""Which checks ran: those of the stage, or those that a smoke runs first."""


@dataclass(frozen=True)
class PreflightResult:
    """The checks of one recipe."""

    kind: ClassVar[str] = "preflight"
    recipe: str
    """`sweeps.protocol.promotion.recipe_hash`: weights, tokenizer, template, questions, reward, lengths, loss."""
    scope: Scope
    simulated: bool
    """The trainer is simulated: the checks that need a model were skipped."""
    checks: tuple[CheckResult, ...]

    @property
    def status(self) -> Status:
        return worst(self.checks)

    @property
    def passed(self) -> bool:
        return self.status != "failed"


def record_result(ledger: Ledger, result: PreflightResult) -> None:
    """Append a result to the ledger."""
    stream = f"{STREAM_PREFIX}{result.recipe}:{ledger.now_ns()}"
    body = msgspec.json.encode(result).decode()
    ledger.events.append_all(stream, [NewEvent(PreflightResult.kind, body, "result")])


def results_of(ledger: Ledger, recipe: str) -> list[PreflightResult]:
    """All results of a recipe, oldest first."""
    streams = [s for s in ledger.events.streams() if s.startswith(f"{STREAM_PREFIX}{recipe}:")]
    events = [event for stream in streams for event in ledger.events.read(stream)]
    return [msgspec.json.decode(event.text, type=PreflightResult) for event in events]


def has_passed(ledger: Ledger, recipe: str, *, simulated: bool) -> bool:
    """Whether the newest result of a recipe is without a failed check. A simulated result is valid for simulation."""
    found = [r for r in results_of(ledger, recipe) if simulated or not r.simulated]
    return bool(found) and found[-1].passed
