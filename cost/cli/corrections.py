"""`python -m cost correct` and `python -m cost close`: corrections of a cost, and months that only they can change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Pricing, Root, echo, open_ledger


def correct(
    lease_id: Annotated[str, typer.Argument(help="The lease whose cost is corrected.")],
    amount: Annotated[str, typer.Option(help="Amount to add, in the lease's currency, such as '-5.00 USD'.")],
    reason: Annotated[str, typer.Option(help="Reason, such as the number of a credit note.")],
    category: Annotated[str, typer.Option(help="credit, refund, fee, storage, egress, tax ...")] = "adjustment",
    sweep: Annotated[str, typer.Option(help="The sweep that the amount belongs to, if any.")] = "",
    trial: Annotated[str, typer.Option(help="The trial that the amount belongs to, if any.")] = "",
    at: Annotated[
        str | None, typer.Option(help="Day (UTC) under which it is reported; default: the end of the lease.")
    ] = None,
    correction_id: Annotated[
        str | None, typer.Option("--id", help="Id of the correction; the same id again changes nothing.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Correct the cost of a lease. Prints the id of the correction. Corrections are allowed in closed months too."""
    from cost.money import Money
    from cost.periods import instant_ns
    from cost.records import Correction

    with open_ledger(root, db, write=True) as ledger:
        money, state = Money.parse(amount), ledger.leases.get(lease_id)
        at_ns = instant_ns(at) if at else min(state.to_ns or ledger.now_ns(), ledger.now_ns())
        correction = Correction(
            correction_id or f"hand-{ledger.now_ns():x}",
            *(lease_id, category, money.pico, money.currency, at_ns, reason),
            sweep_id=sweep,
            trial_id=trial,
        )
        ledger.corrections.add(correction)
    echo(correction.correction_id)


def close(
    period: Annotated[str, typer.Option(help="The month (UTC), such as 2026-11.")],
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Close a month, so that only corrections change its cost. `check` reports any other change."""
    from cost.close.close_month import close_month
    from cost.close.months import month_corrections
    from cost.money import Money
    from cost.prices.book import PriceBook

    def sums_text(amounts_by_id: Mapping[str, tuple[int, str]]) -> str:
        return ", ".join(map(str, Money.sums(Money(*amount) for amount in amounts_by_id.values())))

    with open_ledger(root, db, write=True) as ledger:
        totals = close_month(ledger, PriceBook.load(pricing), period, ledger.now_ns())
        corrections = month_corrections(ledger, period)
    text = f"Closed {period}: {len(totals)} leases, {sums_text(totals) or 'no cost'}"
    echo(text + (f", corrections {sums_text(corrections)}" if corrections else ""))
