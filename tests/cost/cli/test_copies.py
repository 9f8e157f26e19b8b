"""`python -m cost backup` and `python -m cost restore`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cost.cli.conftest import run


def test_a_ledger_is_backed_up_and_restored(root, pricing):
    place = ("--root", root)
    before = json.loads(run("report", *place, "--pricing", pricing, "--by", "sweep", "--json"))["total"]
    copy = Path(run("backup", *place).strip())
    assert copy.suffix == ".bak"
    run("correct", "L1", *place, "--amount", "1 USD", "--reason", "a mistake")
    text = run("restore", copy, *place)
    assert (
        text
        == f"Restored {root / 'ledger.db'} from {copy}. The previous ledger is kept as {root / 'ledger.db.aside1'}.\n"
    )
    assert json.loads(run("report", *place, "--pricing", pricing, "--by", "sweep", "--json"))["total"] == before
    assert "not an intact ledger" in run("restore", pricing / "fx.yaml", *place, code=2)
