"""Names, labels and messages with terminal escapes, control characters and rich markup in what the commands print."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cost.cli.main import app as cost_app
from cost.printable import printable
from cost.records import Lease, StoreError
from sweeps.cli.main import app as sweeps_app
from sweeps.driver.summary import print_stopped
from sweeps.journal.events import GateCheck, GateVerdict, WarningIssued
from sweeps.report.console import make_console
from sweeps.report.live_view import LiveView
from sweeps.report.results import print_gate, results_table
from tests.sweeps.in_process import Sweep, a_sweep

PIECES = ["\x1b[31m", "\x1b]0;t\x07", "\x9b2J", "\r", "\u202e", "[bold]", "[/bold]", "[/", "[link=x]", ":x:", "a", "\n"]
hostile = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
COMMANDS = [
    (sweeps_app, "status"),
    (sweeps_app, "status", "--json"),
    (sweeps_app, "show"),
    (sweeps_app, "show", "--json"),
    (cost_app, "report"),
    (cost_app, "report", "--format", "csv"),
    (cost_app, "report", "--by", "user"),
    (cost_app, "report", "--by", "tag:team", "--json"),
    (cost_app, "leases", "list"),
    (cost_app, "leases", "list", "--json"),
]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Sweep:
    return a_sweep(tmp_path_factory.mktemp("hostile"), "search.lr_scaling=[hold]").run()


def record_hostile_names(sweep: Sweep, text: str) -> None:
    """Open a lease and record a warning with this text in every name."""
    sweep.journal.append(WarningIssued(text))
    count = len(sweep.ledger.leases.find())
    lease = Lease(
        lease_id=f"lease-{count}{text}",
        instance_id=f"instance-{count}",
        machine=text,
        sku=text,
        provider="own",
        price_hash=None,
        cards=1,
        currency="USD",
        owner=text,
        project=text,
        tags={"team": text},
    )
    sweep.ledger.leases.open(lease)


@settings(max_examples=4)
@given(texts=st.lists(hostile, min_size=2, max_size=4))
def test_no_command_prints_a_raw_control_character(sweep: Sweep, texts: list[str]) -> None:
    for text in texts:
        record_hostile_names(sweep, text)
    for app, *arguments in COMMANDS:
        result = CliRunner().invoke(app, [*arguments, "--root", sweep.cfg.paths.root])
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        assert printable(result.stdout) == result.stdout, arguments
        if "--json" in arguments:
            json.loads(result.stdout)


def printed(print_it: Callable[[], None]) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        print_it()
    return output.getvalue()


@given(text=hostile)
def test_the_driver_prints_no_raw_control_character_and_reads_no_markup(sweep: Sweep, text: str) -> None:
    record = sweep.journal.record
    verdict = GateVerdict("metric", (GateCheck(text, False, text),), simulated=False, forced=text)

    def print_all() -> None:
        console = make_console()
        LiveView(console, record, 20, dict, None).warn(text)
        print_gate(console, verdict)
        print_stopped(console, StoreError(text), [text], sweep.ledger.place)
        console.print(results_table(record, dict.fromkeys(record.trials, text), {}))
        console.print(f"a plain string: {text}")

    output = printed(print_all)
    assert printable(output) == output
    shown = printable("".join(c for c in text if c not in "\n\r\a"))  # rich removes these
    assert shown in output.replace("\n", "")


def test_a_hostile_label_of_a_trial_is_shown_as_text(sweep: Sweep) -> None:
    record = sweep.journal.record
    trial = next(iter(record.trials.values()))
    planned, trial.planned = trial.planned, replace(trial.planned, names=("[bold]\x1b[2J",))
    try:
        output = printed(lambda: make_console().print(results_table(record, {}, {})))
    finally:
        trial.planned = planned
    assert r"[bold]\x1b[2J" in output
