"""The shared options of `python -m sweeps`, and how a sweep is named.

Tested in tests/sweeps/cli/test_main.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Root, echo, exit_on_error, ledger_location, open_ledger, print_json

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

__all__ = [
    "DEFAULT_ROOT",
    "Db",
    "Endpoint",
    "Json",
    "Reason",
    "Region",
    "Root",
    "Sweep",
    "chosen",
    "echo",
    "exit_on_error",
    "ledger_location",
    "open_ledger",
    "print_json",
]

Sweep = Annotated[str, typer.Argument(help="A sweep's name, or `last`.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
Reason = Annotated[str, typer.Option("--reason", help="Reason, stored in the journal.")]
Endpoint = Annotated[str, typer.Option(help="URL of an S3 server other than AWS; default: boto3's own settings.")]
Region = Annotated[str, typer.Option(help="Region of the bucket; default: boto3's own settings.")]


def chosen(ledger: Ledger, sweep: str) -> str:
    """The name of the chosen sweep.

    Raises:
        LedgerError: there is no such sweep.
    """
    from cost.records import LedgerError
    from sweeps.journal.journal import sweep_ids

    known = sweep_ids(ledger)
    if sweep == "last" and known:
        return known[-1]
    if sweep not in known:
        raise LedgerError(f"there is no sweep {sweep!r}; there are: {', '.join(known) or 'none'}")
    return sweep
