"""`sweeps show` and `sweeps status`: events in order with their costs, read without trainer messages."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from cost.money import money_text
from cost.prices.book import PriceBook, PriceRow
from cost.reports.by_trial import sweep_report
from sweeps.cli.main import app
from sweeps.config.build import compose
from sweeps.journal.events import DriverEnded, GateCheck, GateVerdict
from sweeps.journal.journal import REPORT_KINDS, decisions, load, replay, sweep_events
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines.pricing import find_price
from sweeps.report.timeline import read_costs, still_running, timeline
from tests.sweeps.in_process import Sweep, a_sweep

SWEEP = "smoke-test-1"


def the_price() -> PriceRow | None:
    return find_price(compose(["+stage=smoke", "trainer=simulated"])).row


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Sweep:
    """Two trials that were preempted once each, on a machine with a price."""
    folder = tmp_path_factory.mktemp("timeline")
    sweep = a_sweep(
        folder, "search.lr_scaling=[clip_frac]", "trainer.simulated.preempt_at_step=15", price=the_price()
    ).run()
    sweep.ledger.leases.detach("lease-1", SWEEP, "done")
    sweep.journal.append(GateVerdict("metric", (GateCheck("finite numbers", False, "loss"),), simulated=True))
    sweep.journal.append(DriverEnded(DriverEnd.DONE))
    return sweep


def shown(sweep: Sweep, *arguments: str) -> str:
    folder = str(sweep.cfg.paths.root)
    result = CliRunner().invoke(app, [arguments[0], *arguments[1:], "--root", folder])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_timeline_is_in_time_order_and_has_each_decision_once(finished):
    output = json.loads(shown(finished, "show", "last", "--json"))
    times = [row["at"] for row in output["events"]]
    assert times == sorted(times)
    kinds = [row["kind"] for row in output["events"]]
    assert kinds[0] == "sweep_planned"
    assert kinds.count("attempt_started") == kinds.count("attempt_ended") == kinds.count("released") == 4
    assert "message" not in kinds


def test_attempts_cost_as_much_as_their_trials_in_the_report(finished):
    now = finished.clock.utc
    costs = read_costs(finished.ledger, SWEEP, [now], now, lambda money: f"{money.amount} {money.currency}")
    report = sweep_report(finished.ledger, PriceBook.load(), SWEEP, now)
    for row in report.trials:
        attempts = finished.journal.record.trials[row.trial_id].attempts
        parts = [costs.of_attempt(row.trial_id, a.attempt).split() for a in attempts]
        assert {currency for _, currency in parts} == {row.currency}
        assert row.cost is not None
        assert sum(Decimal(amount) for amount, _ in parts) == row.cost.amount
    assert Decimal(costs.until(now).split()[0]) == Decimal(report.total_pico) / 10**12


def test_lines_fit_into_100_columns_and_end_with_the_cost(finished):
    lines = shown(finished, "show").splitlines()
    assert max(map(len, lines)) <= 100
    ended = [line for line in lines if "preempted at step 14" in line or "completed at step 20" in line]
    assert len(ended) == 4
    assert all(line.endswith("USD") for line in ended)
    assert lines[-1].endswith("USD in all")
    assert "\x1b" not in "".join(lines), "no colours without a terminal"


def test_trainer_messages_are_shown_on_request(finished):
    output = json.loads(shown(finished, "show", "--messages", "--json"))["events"]
    steps = [row["text"] for row in output if " did step " in row["text"]]
    assert len(steps) == 2 * (14 + 10)
    assert sum(text.endswith("again") for text in steps) == 2 * 4
    assert any("evaluated after step 20: acc 0." in row["text"] for row in output)


def test_an_attempt_that_has_not_ended_is_shown_with_its_cost_so_far(tmp_path):
    sweep = a_sweep(tmp_path, price=the_price())
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.on_granted(attempt)
    sweep.clock.advance_seconds(60)
    now = sweep.clock.utc
    costs = read_costs(sweep.ledger, SWEEP, [], now, money_text)
    record = replay(SWEEP, decisions(sweep.ledger, SWEEP))
    (line,) = still_running(record, costs, now)
    assert str(attempt) in line.text
    assert line.money.endswith("USD so far")
    assert [t.money for t in timeline(sweep_events(sweep.ledger, SWEEP))] == [""] * 3


def test_status_reads_decisions_only_and_agrees_with_the_whole_journal(finished, monkeypatch):
    whole = load(finished.ledger, SWEEP)
    decided = list(decisions(finished.ledger, SWEEP))
    assert not REPORT_KINDS & {event.kind for event in decided}
    assert [t.state for t in replay(SWEEP, decided).trials.values()] == [t.state for t in whole.trials.values()]
    assert "2 completed" in shown(finished, "status")
    (row,) = json.loads(shown(finished, "status", "--json"))["sweeps"]
    assert row["trials"] == {"COMPLETED": 2}
    assert row["gate"] == "closed"
    assert [d["step"] for d in row["details"]] == [20, 20]
    assert all(d["acc"] is not None and d["checkpoint"] for d in row["details"])
