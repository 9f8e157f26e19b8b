"""A sweep whose driver was killed at a chosen moment, and what the next driver does."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import socket
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cost.ledger.ledger import Ledger
from cost.prices.book import PriceBook
from cost.reports.by_trial import sweep_report
from sweeps.config.overrides import CONF_DIR
from sweeps.journal.journal import TrialState, load, sweep_ids
from tests.chaos.named_moments import (
    both_at_once,
    killed_and_resumed,
    killed_then_another_plan,
    second_while_the_first_is_stopped,
)

SECOND_NS = 10**9


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessPoolExecutor]:
    """A process of one thread, from which drivers can be forked."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_a_resume_runs_exactly_the_unfinished_trials_including_those_never_started(worker, tmp_path):
    found = worker.submit(killed_and_resumed, "six trials", "closed", 3, tmp_path).result()
    assert found.wrong == []
    granted = [
        [line["trial"] for line in found.lines if line["what"] == "granted" and line["run"] == r] for r in (0, 1)
    ]
    assert len(granted[0]) == 3
    assert len(granted[1]) == 3
    assert not set(granted[0]) & set(granted[1])
    assert "3 of 6 trials left" in found.output


def test_the_concurrency_limit_holds_after_a_resume_by_the_ledgers_overlaps(worker, tmp_path):
    found = worker.submit(killed_and_resumed, "two at a time", "closed", 2, tmp_path).result()
    assert found.wrong == []
    with Ledger.open(tmp_path / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        usages = ledger.usages.find()
    edges = sorted((at, change) for u in usages for at, change in ((u.from_ns, 1), (u.to_ns or 0, -1)))
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    assert len(usages) > 6
    assert most == 2


def test_time_without_a_driver_belongs_to_no_trial_and_its_cost_is_counted(worker, tmp_path):
    found = worker.submit(killed_and_resumed, "two at a time", "message", 9, tmp_path, 3600).result()
    assert found.wrong == []
    with Ledger.open(tmp_path / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        sweep_id = sweep_ids(ledger)[0]
        (lease,) = ledger.leases.find()
        assert lease.to_ns is not None
        usages = ledger.usages.find()
        ran = [(u.to_ns or 0) - u.from_ns for u in usages]
        book = PriceBook.load(CONF_DIR / "pricing")
        report = sweep_report(ledger, book, sweep_id, lease.to_ns)
    assert max(ran) < 300 * SECOND_NS, "no attempt lasts through the hour in which nothing ran"
    assert lease.to_ns - lease.from_ns > 3600 * SECOND_NS, "the lease was open all the time"
    (idle,) = [row for row in report.overheads if "idle" in row.categories]
    assert idle.categories["idle"] > report.total_pico // 2
    assert sum(row.pico for row in (*report.trials, *report.overheads)) == report.total_pico


def test_no_trial_of_a_killed_driver_runs_any_more_once_another_sweep_has_started(worker, tmp_path):
    killed = worker.submit(killed_then_another_plan, tmp_path).result()
    with Ledger.open(tmp_path / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        states = {t.state for t in load(ledger, killed).trials.values()}
        assert TrialState.RUNNING not in states
        assert TrialState.PREEMPTED in states
        (usage,) = ledger.usages.find(sweep_id=killed)
    assert usage.end_estimated
    assert usage.outcome == "LOST"


def test_two_sweeps_of_one_plan_started_at_once_have_names_and_folders_of_their_own(worker, tmp_path):
    codes = worker.submit(both_at_once, tmp_path).result()
    assert codes == [0, 0]
    with Ledger.open(tmp_path / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        names = sweep_ids(ledger)
        records = [load(ledger, name) for name in names]
    assert len(names) == len(set(names)) == 2
    for record in records:
        assert {t.state for t in record.trials.values()} == {TrialState.COMPLETED}
        assert (tmp_path / "runs" / record.sweep_id / "cost.csv").exists()
    checkpoints = [t.checkpoint.path for r in records for t in r.trials.values() if t.checkpoint]
    assert len(set(checkpoints)) == len(checkpoints), json.dumps(checkpoints)


# Two drivers of one sweep ---------------------------------------------------------------------------------------------


def assert_every_trial_ran_once(url: str | None, folder: Path, outcomes: set[str]) -> None:
    with Ledger.open(url or folder / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        (name,) = sweep_ids(ledger)
        record, usages = load(ledger, name), ledger.usages.find()
    assert {t.state for t in record.trials.values()} == {TrialState.COMPLETED}
    completed = [u.key.trial_id for u in usages if u.outcome == "COMPLETED"]
    assert sorted(completed) == sorted(record.trials)
    assert {u.outcome for u in usages} == outcomes
    by_start = sorted(usages, key=lambda u: u.from_ns)
    assert all((u.to_ns or 0) <= v.from_ns for u, v in itertools.pairwise(by_start)), "two usages of one card"


@pytest.mark.parametrize("moment", ["planned", "message"])
def test_a_second_driver_is_refused_with_the_place_of_the_first_and_how_to_stop_it(
    worker, any_database, tmp_path, moment: str
):
    url = any_database if "://" in any_database else None
    found = worker.submit(second_while_the_first_is_stopped, url, moment, False, tmp_path).result()
    assert found.codes == (0, 1), found.output
    refusal = " ".join(found.output[1].split())
    assert f"is being driven by process {found.pids[0]} on {socket.gethostname()} since " in refusal
    assert "python -m sweeps stop smoke-" in refusal
    assert_every_trial_ran_once(url, tmp_path, {"COMPLETED"})


def test_a_driver_whose_sweep_another_has_resumed_reports_it_and_writes_nothing_more(worker, any_database, tmp_path):
    url = any_database if "://" in any_database else None
    found = worker.submit(second_while_the_first_is_stopped, url, "message", True, tmp_path).result()
    assert found.codes == (1, 0), found.output
    assert "Stopped: smoke-" in found.output[0]
    assert f"is being driven by process {found.pids[1]} on " in found.output[0]
    assert "Traceback" not in found.output[0]
    assert "resuming" in found.output[1]
    assert_every_trial_ran_once(url, tmp_path, {"COMPLETED", "LOST"})
