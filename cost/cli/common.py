"""What the commands share: options, opening the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

Root = Annotated[Path, typer.Option("--root", help="The folder that sweeps write to (paths.root).")]
Db = Annotated[str | None, typer.Option("--db", help="The ledger's database, where it is not ROOT/ledger.db.")]
Pricing = Annotated[Path | None, typer.Option("--pricing", help="Folder of the price book.")]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of a table; amounts are decimal texts.")]
DEFAULT_ROOT = Path("runs")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """What the ledger or the price book refuses is one message and exit code 2, not a traceback."""
    from cost.money import MoneyError
    from cost.prices.book import PriceError
    from cost.records import LedgerError

    try:
        yield
    except (LedgerError, PriceError, MoneyError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


def ledger_location(root: Path, db: str | None) -> str | Path:
    """Where the ledger of a root folder is."""
    return db or root / "ledger.db"


@contextmanager
def open_ledger(root: Path, db: str | None, *, write: bool = False, create: bool = False) -> Iterator[Ledger]:
    """The ledger of a root folder, for reading unless `write`; errors are refusals."""
    from cost.ledger.ledger import Ledger

    with exit_on_error(), Ledger.open(ledger_location(root, db), create=create, read_only=not write) as ledger:
        yield ledger


def print_json(body: Any) -> None:
    print(json.dumps(body, indent=2, ensure_ascii=False))
