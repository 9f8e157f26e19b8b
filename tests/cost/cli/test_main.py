"""`python -m cost` as a whole: help, a missing ledger, a database server."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cost.cli.conftest import run


@pytest.mark.parametrize("command", ["report", "check", "leases list"])
def test_without_a_ledger_the_message_names_the_commands_that_create_one(command, tmp_path):
    text = run(*command.split(), "--root", tmp_path / "nothing", code=2)
    assert "there is nothing in the ledger at" in text
    assert "python sweep.py +stage=smoke" in text
    assert not (tmp_path / "nothing").exists()


def test_help_imports_no_heavy_module():
    code = (
        "import sys; from cost.cli.main import app; "
        "print([m for m in ('sqlalchemy', 'alembic', 'rich.table', 'pandas', 'numpy', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_command_works_on_a_database_server(any_database, pricing):
    place = ("--db", any_database, "--pricing", pricing)
    opening = ("--machine", "m", "--sku", "box", "--cards", 8, "--from", "2026-11-28T08:00")
    lease_id = run("leases", "open", *place, *opening).strip()
    run("leases", "extend", "--db", any_database, lease_id)
    run("leases", "close", "--db", any_database, lease_id, "--at", "2026-11-28T10:00")
    run("correct", lease_id, "--db", any_database, "--amount", "-1 USD", "--reason", "note")
    run("budget", *place, "--set", "month=500 USD")
    body = json.loads(run("report", *place, "--by", "category", "--json"))
    assert [(g["name"], g["cost"]) for g in body["groups"]] == [("adjustment", "-1"), ("unassigned", "16.2")]
    assert run("check", *place) == ""
