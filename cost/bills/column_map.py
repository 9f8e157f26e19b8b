"""Column maps: which column of a provider's export holds which fact. Maps are data, in conf/pricing/bills.

Tested in tests/cost/bills/test_reader.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import yaml

from cost.bills.bill import KINDS, BillError
from cost.prices.book import DEFAULT_FOLDER

FIELDS = (
    *("resource", "commitment", "start", "end", "amount", "currency", "quantity", "unit", "category", "description"),
    "invoice",
)
REQUIRED_FIELDS = ("resource", "start", "amount")


@dataclass(frozen=True)
class BillMap:
    """The columns of one kind of export. The fields are explained in conf/pricing/bills/focus.yaml."""

    name: str
    provider: str
    columns: Mapping[str, tuple[str, ...]]
    categories: Mapping[str, str]
    kind_columns: tuple[str, ...]
    kinds: Mapping[str, str]
    units: Mapping[str, Fraction]
    card_units: Mapping[str, Fraction]
    currency: str
    timezone: str
    exact_times: bool
    thousands: str

    def position(self, header: Sequence[str], fact: str) -> int | None:
        """The index of the column that holds a fact; None: the file has no such column."""
        return next((header.index(name) for name in self.columns[fact] if name in header), None)


def load_maps(folder: str | Path | None = None) -> tuple[BillMap, ...]:
    """The column maps of `folder`/bills, ordered by file name. Raises BillError for an invalid map."""
    place = (Path(folder) if folder is not None else DEFAULT_FOLDER) / "bills"
    return tuple(read_map(file) for file in sorted(place.glob("*.yaml")))


def read_map(file: Path) -> BillMap:
    """Read one column map. Raises BillError that names the missing or invalid key."""
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        columns = {fact: tuple(raw["columns"].get(fact) or ()) for fact in FIELDS}
        kind_columns = raw["kind_column"] or ()
        found = BillMap(
            name=raw["name"],
            provider=raw["provider"],
            columns=columns,
            categories=dict(raw["categories"]),
            kind_columns=(kind_columns,) if isinstance(kind_columns, str) else tuple(kind_columns),
            kinds=dict(raw["kinds"]),
            units={k: Fraction(str(v)) for k, v in raw["units"].items()},
            card_units={k: Fraction(str(v)) for k, v in raw["card_units"].items()},
            currency=raw["currency"],
            timezone=raw["timezone"],
            exact_times=raw["exact_times"],
            thousands=raw["thousands"],
        )
        ZoneInfo(found.timezone)
    except OSError as error:
        raise BillError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
        raise BillError(f"{file}: not a column map ({error}); see conf/pricing/bills/focus.yaml") from error
    for kind in (*found.categories.values(), *found.kinds.values()):
        if kind not in KINDS:
            raise BillError(f"{file}: kind {kind!r} is not one of {', '.join(KINDS)}")
    return found


def choose_map(header: Sequence[str], maps: Sequence[BillMap], path: Path, name: str = "") -> BillMap:
    """The map of a name, or among the maps that have the required columns the one that finds the most columns.

    Raises BillError: there is no such map, or none fits.
    """
    if name:
        maps = [m for m in maps if m.name == name]
        if not maps:
            raise BillError(f"no column map is called {name!r}; add one to conf/pricing/bills")
    found = {m.name: {fact for fact in FIELDS if m.position(header, fact) is not None} for m in maps}
    fits = [m for m in maps if found[m.name] >= set(REQUIRED_FIELDS)]
    if not fits:
        wanted = maps[0] if name else None
        lacking = [fact for fact in REQUIRED_FIELDS if wanted and fact not in found[wanted.name]]
        hint = f"map {name} finds no column for {lacking[0]} " if lacking else "no column map fits "
        raise BillError(
            f"{path}: {hint}in the columns {', '.join(header[:12])}; copy conf/pricing/bills/instances.yaml and name "
            "your columns there"
        )
    return max(fits, key=lambda m: len(found[m.name]))
