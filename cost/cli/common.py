"""What the commands share: options, opening the ledger, saying what is wrong, tables of at most 100 columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

WIDTH = 100

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


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """A plain table; where it would be wider than WIDTH its widest cells are shortened."""
    widths = [max(len(cells[i]) for cells in (columns, *rows)) for i in range(len(columns))]
    room = WIDTH - 2 * (len(columns) - 1)
    while sum(widths) > room and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for cells in (columns, *rows):
        parts = []
        for name, cell, width in zip(columns, cells, widths, strict=True):
            shown = cell if len(cell) <= width else cell[: width - 1] + "…"
            parts.append(shown.rjust(width) if name in right else shown.ljust(width))
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)
