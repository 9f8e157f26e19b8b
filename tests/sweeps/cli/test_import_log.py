"""`python -m sweeps import-log`: what an imported run leaves in journal, ledger and MLflow, and what is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cost.cli.main
import sweeps.cli.main
from cost.ledger.ledger import Ledger
from cost.periods import instant_ns
from sweeps.journal.journal import load

STEPS = 30
START = "2026-12-01T00:00"
BILLED = ("--machine", "h100", "--cards", "1", "--price-at", START)


def a_log(folder: Path, *, seconds: float | None = 60.0, name: str = "run.jsonl", **changes: object) -> Path:
    rows = [
        {"step": n, "reward": 0.5 + 0.001 * n, "kl": 0.01, "entropy": 1.0}
        | ({} if seconds is None else {"step_seconds": seconds})
        | changes
        for n in range(1, STEPS + 1)
    ]
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def call(folder: Path, *arguments: object, app=sweeps.cli.main.app, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments), "--root", str(folder / "runs")])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def without_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating MLflow's database takes seconds."""
    monkeypatch.setattr("sweeps.cli.import_log._track", lambda *_: None)


@pytest.mark.usefixtures("without_mlflow")
def test_an_imported_run_has_its_rows_in_the_journal_and_can_be_shown_and_diagnosed(tmp_path: Path) -> None:
    sweep_id = call(tmp_path, "import-log", a_log(tmp_path)).strip()
    with Ledger.open(tmp_path / "runs/ledger.db") as ledger:
        record = load(ledger, sweep_id)
        assert ledger.leases.find() == []
    assert record.imported is not None
    assert [row.reward for row in record.imported.run.rows][:2] == [0.501, 0.502]
    assert (record.trials, record.gate) == ({}, None)
    assert "imported run.jsonl" in call(tmp_path, "show", "last")
    assert "after 30 steps" in call(tmp_path, "diagnose", "last")
    (row,) = json.loads(call(tmp_path, "status", "--json"))["sweeps"]
    assert (row["sweep"], row["stage"], row["gate"]) == (sweep_id, "imported", None)


@pytest.mark.usefixtures("without_mlflow")
def test_its_lease_and_usage_have_the_duration_of_the_run_at_the_price_of_its_start(tmp_path: Path) -> None:
    sweep_id = call(tmp_path, "import-log", a_log(tmp_path), *BILLED).strip()
    with Ledger.open(tmp_path / "runs/ledger.db") as ledger:
        (usage,), (state,) = ledger.usages.find(), ledger.leases.find()
    start, end = instant_ns(START), instant_ns(START) + STEPS * 60 * 10**9
    assert (usage.from_ns, usage.to_ns, usage.cards) == (start, end, Decimal(1))
    assert (state.from_ns, state.to_ns, state.lease.tags) == (start, end, {"imported": "true"})
    (row, *_) = json.loads(call(tmp_path, "report", "--json", app=cost.cli.main.app))["trials"]
    assert row["trial_id"] == sweep_id
    assert Decimal(row["cost"]) > 0


@pytest.mark.usefixtures("without_mlflow")
def test_the_same_file_again_changes_nothing_and_a_billing_can_be_added_later(tmp_path: Path) -> None:
    log = a_log(tmp_path)
    sweep_id = call(tmp_path, "import-log", log).strip()
    assert "imported before" in call(tmp_path, "import-log", log)
    assert call(tmp_path, "import-log", log, *BILLED).strip() == sweep_id
    assert "imported before" in call(tmp_path, "import-log", log, *BILLED)
    with Ledger.open(tmp_path / "runs/ledger.db") as ledger:
        assert (len(ledger.usages.find()), len(ledger.leases.find())) == (1, 1)
    other = ("--machine", "h100x8", "--cards", "2", "--price-at", START)
    assert "append-only" in call(tmp_path, "import-log", log, *other, code=2)


@pytest.mark.usefixtures("without_mlflow")
def test_without_step_times_the_run_is_imported_but_no_cost_is(tmp_path: Path) -> None:
    log = a_log(tmp_path, seconds=None)
    assert "no step times in 30 of 30 rows" in call(tmp_path, "import-log", log, *BILLED, code=2)
    assert not (tmp_path / "runs").exists()
    call(tmp_path, "import-log", log)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--trainer", "verll"), "unknown trainer 'verll'"),
        (("--machine", "h100"), "--machine and --cards are given together"),
        (("--machine", "h1000", "--cards", "1"), "there is no machine 'h1000'"),
        (("--machine", "h100", "--cards", "3"), "machine h100 has 1 cards, not 3"),
        (("--machine", "h100", "--cards", "1", "--price-at", "2050-01-01"), "in the future"),
    ],
)
def test_options_that_do_not_fit_are_one_message_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    output = call(tmp_path, "import-log", a_log(tmp_path), *arguments, code=2)
    assert text in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", ["", "nothing that looks like a metric\n", '{"epoch": 1}\n'])
def test_a_file_without_steps_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.log").write_text(content)
    call(tmp_path, "import-log", tmp_path / "x.log", code=2)
    call(tmp_path, "import-log", tmp_path / "missing.log", code=2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("without_mlflow")
def test_values_that_are_not_finite_survive_the_journal_and_are_a_finding(tmp_path: Path) -> None:
    sweep_id = call(tmp_path, "import-log", a_log(tmp_path, grad_norm=float("nan"))).strip()
    assert "values that are not finite" in call(tmp_path, "diagnose", sweep_id)


def test_mlflow_has_the_curves_of_the_run(tmp_path: Path) -> None:
    from sweeps.report.mlflow_store import default_uri, open_client

    sweep_id = call(tmp_path, "import-log", a_log(tmp_path)).strip()
    client = open_client(default_uri(tmp_path / "runs"))
    ids = [e.experiment_id for e in client.search_experiments()]
    (run,) = client.search_runs(ids, f"tags.sweep_id = '{sweep_id}'")
    assert run.data.metrics["reward"] == pytest.approx(0.53)
    assert run.data.tags["stage"] == "imported"
    assert "has everything" in call(tmp_path, "track", "all")
