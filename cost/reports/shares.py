"""Where the money of a report went, in one sentence with shares that sum to 100 %.

Tested in tests/cost/reports/test_shares.py.
"""

from __future__ import annotations

from decimal import Decimal

from cost.money import Money, largest_remainder, money_text
from cost.reports.report import Report

PURPOSES = {
    "training": ("train", "logprob", "sync"),
    "rollout": ("rollout", "reward"),
    "evaluation": ("evaluation",),
    "checkpoints": ("checkpoint",),
    "start-up": ("startup",),
    "recovery": ("recovery",),
    "lost work": ("lost_work",),
    "idle": ("idle", "unassigned", "teardown"),
    "stopped machines": ("stopped",),
    "billing increments": ("billing_increment",),
    "unused commitments": ("unused_commitment",),
    "storage and traffic": ("storage", "egress", "requests"),
    "fees": ("fee",),
    "tax": ("tax",),
}
"""Categories of cost by what the money was for. Every other category is `other`."""

_PURPOSE_OF = {category: purpose for purpose, categories in PURPOSES.items() for category in categories}
_TENTHS = 1000


def shares(report: Report, currency: str) -> dict[str, Decimal]:
    """The share of each purpose in percent, the largest first. The shares sum to 100; empty if nothing was spent.

    Credits and other amounts below zero are no purpose: the shares are those of what was spent before them.
    """
    spent = {purpose: pico for purpose, pico in _by_purpose(report, currency).items() if pico > 0}
    ordered = sorted(spent, key=lambda purpose: (-spent[purpose], purpose))
    tenths = largest_remainder(_TENTHS, [spent[purpose] for purpose in ordered]) if spent else []
    return {purpose: Decimal(part) / 10 for purpose, part in zip(ordered, tenths, strict=True)}


def shares_text(report: Report, currency: str) -> str:
    """One sentence such as `12.10 USD went to rollout 61.3 %, training 30 %, idle 8.7 %.`; empty if nothing did."""
    by_purpose = _by_purpose(report, currency)
    spent, credited = (sum(pico for pico in by_purpose.values() if pico * sign > 0) for sign in (1, -1))
    parts = ", ".join(f"{purpose} {percent} %" for purpose, percent in shares(report, currency).items())
    if not parts:
        return ""
    credit = f" Credits of {money_text(Money(-credited, currency))} are not in these shares." if credited else ""
    return f"{money_text(Money(spent, currency))} went to {parts}.{credit}"


def _by_purpose(report: Report, currency: str) -> dict[str, int]:
    """1e-12 of the currency by purpose, for the rows that have a price."""
    found: dict[str, int] = {}
    for row in report.rows:
        if row.currency == currency and not row.unpriced:
            for category, pico in row.categories.items():
                purpose = _PURPOSE_OF.get(category, "other")
                found[purpose] = found.get(purpose, 0) + pico
    return found
