"""The command line `python -m cost`: assembles the commands of this package.

A command that cannot do its work prints one message and exits 2. `check` exits 1 if a check fails, and `reconcile` if a
bill and the ledger differ.
"""

from __future__ import annotations

import typer

from cost.cli.budget import budget
from cost.cli.check import check
from cost.cli.commitments import commitments_app
from cost.cli.copies import backup, restore
from cost.cli.corrections import close, correct
from cost.cli.leases import leases_app
from cost.cli.prices import prices_app
from cost.cli.reconcile import reconcile
from cost.cli.report import report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Cost reports, leases, prices, budgets, and checks of the ledger.",
    epilog="Examples:  python -m cost report  |  python -m cost report --by day --json  |  python -m cost check",
)
for command in (report, budget, check, reconcile, correct, close, backup, restore):
    app.command()(command)
app.add_typer(leases_app, name="leases")
app.add_typer(commitments_app, name="commitments")
app.add_typer(prices_app, name="prices")
