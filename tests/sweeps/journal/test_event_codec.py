"""Journal events as text in the ledger and back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cost.ledger.ledger import Ledger
from cost.money import Money
from rl.spec import SetLr, Stop, StopKind
from rl.trainers.logs import Evaluation, Facts, ImportedRun, Note, Row
from sweeps.config.build import canonical, compose
from sweeps.journal.event_codec import KINDS, decode, encode, messages_in
from sweeps.journal.events import (
    AttemptEnded,
    AttemptStarted,
    CardsReleased,
    CheckpointMoved,
    CommandSent,
    DriverEnded,
    DriverStarted,
    GateCheck,
    GateVerdict,
    JournalEvent,
    MessagesReported,
    OperatorRequest,
    RetryPlanned,
    RuleStopped,
    RunImported,
    SearchEnded,
    SweepPlanned,
    TrialProposed,
    TrialSummarised,
    WarningIssued,
)
from sweeps.journal.messages import record_message
from sweeps.journal.outcomes import AttemptOutcome, DriverEnd
from sweeps.journal.trial_summary import TrialSummary
from sweeps.planning.plan import make_plan
from tests.sweeps.reports import a_step, an_evaluation


def a_summary() -> TrialSummary:
    summary = TrialSummary()
    for message in (an_evaluation(0, correct=3), a_step(1), a_step(2, grad_norm=math.inf), an_evaluation(2, correct=9)):
        summary.add(message)
    return summary


def an_imported_run() -> ImportedRun:
    rows = (Row(step=1, reward=-0.5, grad_norm=math.inf, rewards={"format": 1.0}), Row(step=2, attempt=2))
    notes = (Note("cut", "the file ends inside a line", None),)
    return ImportedRun(
        "trl", "JSON", rows, (Evaluation(0, "math", 0.25, "acc"),), Facts(group_size=8), notes, 3.5, ("x",)
    )


def events() -> list[JournalEvent]:
    """One event of each kind at least, with every field set."""
    cfg = compose(["+stage=smoke", "trainer=simulated"])
    plan = make_plan(cfg)
    return [
        SweepPlanned.from_plan(plan, "smoke", "cpu", canonical(cfg)),
        TrialProposed(plan.trials[0]),
        SearchEnded(3),
        DriverStarted("lease-1", 42, {"name": "cpu"}, {"bucket": None}),
        DriverEnded(DriverEnd.BUDGET, "no room"),
        OperatorRequest("cancel", "enough", ("t1", "t2")),
        WarningIssued("half a pair: \udce9, t\u00e9"),
        AttemptStarted("t1", 2, "lease-1", 10, Money.parse("0.000000000001 USD"), "budget.trial_bound"),
        MessagesReported(
            (record_message("t1", 1, 0, 5, a_step(1)), record_message("t2", 1, 4, 6, an_evaluation(0, correct=2)))
        ),
        CommandSent("t1", 1, 7, 3, SetLr(1.5e-5)),
        CommandSent("t1", 1, 8, 3, Stop(StopKind.PRUNED, "low accuracy")),
        RuleStopped("t1", 1, "reward collapsed", "mean of reward is 0", 60, 140, Money.parse("0.10 USD")),
        RunImported("a.log", "0" * 64, "h100", an_imported_run()),
        AttemptEnded("t1", 1, AttemptOutcome.OUT_OF_MEMORY, "too large", 3, None),
        TrialSummarised("t1", 1, 9, a_summary()),
        RetryPlanned("t1", 1, 10**18, "out of memory", 512, forgive=True),
        CardsReleased("t1", 1, released=False),
        CheckpointMoved("t1", 1, 10, "/c", "s3://team/c"),
        GateVerdict("metric", (GateCheck("finite numbers", None, "no steps"),), simulated=True, forced="known"),
    ]


@pytest.mark.parametrize("event", events(), ids=lambda event: event.kind)
def test_an_event_is_read_back_from_the_ledger_as_it_was_written(tmp_path: Path, event: JournalEvent):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.events.append_all("s", [encode(event, "key")])
        (stored,) = ledger.events.read("s")
    assert decode(stored) == event


def test_there_is_an_event_of_every_kind_in_this_test():
    assert {event.kind for event in events()} == set(KINDS)


def test_an_unknown_kind_is_refused_with_the_remedy(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.events.append("s", "from_the_future", {}, "key")
        (stored,) = ledger.events.read("s")
    with pytest.raises(ValueError, match=r"from_the_future.*update this installation"):
        decode(stored)


def test_a_body_of_another_shape_is_refused_with_its_place(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.events.append("s", SearchEnded.kind, {"trials": "three"}, "key")
        (stored,) = ledger.events.read("s")
    with pytest.raises(ValueError, match=r"event 1 \(search_ended\) of s: .*trials"):
        decode(stored)


def test_messages_come_from_reports_only(tmp_path: Path):
    reported = MessagesReported((record_message("t1", 1, 0, 5, a_step(1)),))
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.events.append_all("s", [encode(reported, "a"), encode(WarningIssued("w"), "b")])
        first, second = ledger.events.read("s")
    assert [m.message for m in messages_in(first)] == [a_step(1)]
    assert messages_in(second) == ()
