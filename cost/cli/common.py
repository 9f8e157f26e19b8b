"""Options that the commands share, how they open the ledger, and how they fail.

Tested in tests/cost/cli/test_main.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost.printable import json_text, printable

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

Root = Annotated[Path, typer.Option("--root", help="The folder that sweeps write to (paths.root).")]
Db = Annotated[str | None, typer.Option("--db", help="The ledger's database; default: ROOT/ledger.db.")]
Pricing = Annotated[Path | None, typer.Option("--pricing", help="Folder of the price book.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table; amounts are decimal texts.")]
DEFAULT_ROOT = Path("runs")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an error of the ledger, the price book or an amount into one message and exit code 2."""
    from cost.money import MoneyError
    from cost.prices.book import PriceError
    from cost.records import LedgerError

    try:
        yield
    except (LedgerError, PriceError, MoneyError) as error:
        echo(str(error), err=True)
        raise typer.Exit(2) from error


def ledger_location(root: Path, db: str | None) -> str | Path:
    """The database of the ledger: `db`, or the file in the root folder."""
    return db or root / "ledger.db"


@contextmanager
def open_ledger(root: Path, db: str | None, *, write: bool = False, create: bool = False) -> Iterator[Ledger]:
    """Open the ledger, read-only unless `write`. Its errors are handled by `exit_on_error`."""
    from cost.ledger.ledger import Ledger

    with exit_on_error(), Ledger.open(ledger_location(root, db), create=create, read_only=not write) as ledger:
        yield ledger


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text for people. Control characters in names and messages are shown escaped."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def print_json(body: Any) -> None:
    typer.echo(json_text(body, indent=2))
