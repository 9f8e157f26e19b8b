"""A diagnosis as a person reads it, and as JSON."""

from __future__ import annotations

import json

from sweeps.protocol.diagnosis.diagnose import diagnose
from sweeps.report.diagnosis_text import bars, diagnosis_json, diagnosis_text, overview
from tests.sweeps.protocol.curves import a_run, collapsing, learning


def test_a_finding_is_shown_with_evidence_cause_remedy_and_blind_spot() -> None:
    text = diagnosis_text("trial", diagnose(collapsing()))
    for part in ("stop the run: reward collapsed.", "Evidence from step:", "Likely cause:", "What to do:"):
        assert part in text
    assert "This cannot see:" in text
    assert "reward  " in text


def test_no_line_is_wider_than_100_columns() -> None:
    for run in (collapsing(), learning(), a_run(3, reward=0.5)):
        assert max(len(line) for line in diagnosis_text("trial", diagnose(run)).splitlines()) <= 100


def test_a_reason_for_not_judging_is_printed_once() -> None:
    text = diagnosis_text("trial", diagnose(learning(10)))
    assert text.replace("\n  ", " ").count("(the run is too short for two windows of reward)") == 1


def test_an_overview_has_one_line_per_run() -> None:
    lines = overview([("a", diagnose(learning())), ("b", diagnose(collapsing()))])
    assert [line[:2] for line in lines] == ["a:", "b:"]


def test_bars_run_from_the_lowest_to_the_highest_value() -> None:
    assert bars([0.0, 0.5, 1.0]) == "▁▅█"
    assert bars([2.0, 2.0]) == "▁▁"


def test_json_has_every_finding_with_its_points() -> None:
    found = json.loads(json.dumps(diagnosis_json(diagnose(collapsing()))))
    assert found["healthy"] is False
    finding = next(f for f in found["findings"] if f["name"] == "reward_collapse")
    assert finding["severity"] == "stop"
    assert finding["evidence"][0]["points"]
    assert found["not_judged"]["entropy_collapse"] == "missing: entropy"
