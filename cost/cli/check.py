"""`python -m cost check`: look for errors in the ledger."""

from __future__ import annotations

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, echo, open_ledger, print_json


def check(root: Root = DEFAULT_ROOT, db: Db = None, pricing: Pricing = None, as_json: Json = False) -> None:
    """Check the ledger for errors. Prints nothing and exits 0 if there are none; else prints them and exits 1."""
    from cost.close.check import run_checks
    from cost.prices.book import PriceBook

    with open_ledger(root, db) as ledger:
        findings = run_checks(ledger, PriceBook.load(pricing), ledger.now_ns())
    if as_json:
        print_json({"findings": [{"check": f.check, "where": f.where, "what": f.what} for f in findings]})
    else:
        for finding in findings:
            echo(f"{finding.check}: {finding.where}: {finding.what}")
    if findings:
        raise typer.Exit(1)
