"""Commands in messages select the right ledger and survive a shell."""

from __future__ import annotations

import shlex

import pytest

from cost.commands import command_text


@pytest.mark.parametrize(
    ("place", "option"),
    [
        ("runs/ledger.db", []),
        ("/data/my runs?/ledger.db", ["--root", "/data/my runs?"]),
        ("/data/other.db", ["--db", "/data/other.db"]),
        ("postgresql+psycopg://ann@host/ledger.db", ["--db", "postgresql+psycopg://ann@host/ledger.db"]),
    ],
)
def test_a_command_names_a_ledger_that_is_not_the_default(place: str, option: list[str]) -> None:
    expected = ["python", "-m", "cost", "leases", "close", "it's #1", *option]
    assert shlex.split(command_text("cost", "leases", "close", "it's #1", place=place)) == expected
