"""Commands in messages, written so that they work when a person pastes them into a shell."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_PLACE = "runs/ledger.db"


def command_text(module: str, *arguments: str, place: str) -> str:
    """`python -m MODULE ARGUMENTS`, quoted, with the option that selects the ledger.

    Args:
        module: `cost` or `sweeps`.
        place: the ledger as `cost.ledger.database.shown_place` names it.
    """
    return shlex.join(["python", "-m", module, *arguments, *_ledger_option(place)])


def _ledger_option(place: str) -> tuple[str, ...]:
    if place == DEFAULT_PLACE:
        return ()
    path = Path(place)
    return ("--root", str(path.parent)) if "://" not in place and path.name == "ledger.db" else ("--db", place)
