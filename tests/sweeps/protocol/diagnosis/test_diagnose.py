"""Named findings: what planted diseases, healthy runs and real runs are called, and what cannot be judged."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.diagnosis import as_run_curves, finding_of
from benchmarks.grpo_bank import BANK, read_bank
from benchmarks.synthetic_runs import DISEASES, healthy, planted
from sweeps.protocol.diagnosis.diagnose import CHECKS, diagnose
from sweeps.protocol.diagnosis.finding import PLOT_POINTS, Finding, points_of
from sweeps.protocol.diagnosis.texts import TEXTS
from sweeps.protocol.gate_rules import Severity
from sweeps.protocol.run_curves import Evaluation, RunCurves
from sweeps.protocol.windows import windows
from tests.sweeps.protocol.curves import a_run, collapsing, curve, flat, found, learning, serious, why_not_judged


def test_a_healthy_run_has_no_finding_that_asks_for_action() -> None:
    diagnosis = diagnose(learning())
    assert serious(diagnosis) == set()
    assert diagnosis.healthy
    assert diagnosis.verdict.startswith("no finding after 200 steps: ")


def test_every_check_has_a_title_cause_remedy_and_blind_spot() -> None:
    for name in [check.name for check in CHECKS] + ["reward_recovered"]:
        text = TEXTS[name]
        assert all((text.title, text.cause, text.remedy, text.cannot_see)), name


def test_a_run_without_rows_is_not_called_healthy() -> None:
    diagnosis = diagnose(RunCurves((), {}))
    assert not diagnosis.healthy
    assert diagnosis.findings == ()
    assert diagnosis.excluded == ()
    assert len(diagnosis.not_judged) == len(CHECKS)


def test_a_missing_curve_is_not_judged_and_named() -> None:
    run = learning(entropy=[None] * 200, staleness=[None] * 200)
    assert why_not_judged(run, "entropy_collapse") == "missing: entropy"
    assert why_not_judged(run, "stale_policy") == "missing: staleness"
    assert "entropy" in diagnose(run).curves_missing


def test_a_run_of_ten_steps_cannot_show_a_collapse() -> None:
    assert "10 of 20 steps" in (why_not_judged(learning(10), "reward_collapse") or "")


def test_the_first_evidence_of_a_collapse_is_the_window_in_which_the_reward_fell() -> None:
    finding = found(collapsing(), "reward_collapse")
    assert finding is not None
    assert finding.severity is Severity.STOP
    assert 85 <= finding.first_step <= 105


def test_a_collapse_without_known_completions_closes_the_gate_and_does_not_stop() -> None:
    run = replace(collapsing(), completions=())
    finding = found(run, "reward_collapse")
    assert finding is not None
    assert finding.severity is Severity.CLOSE
    assert "does not stop a trial" in finding.cause


def test_a_run_that_recovers_is_named_in_a_note() -> None:
    values = curve(lambda t: 0.01 if 0.4 <= t < 0.6 else 0.8, noise=0.002)
    finding = found(a_run(200, reward=[max(v, 0.0) for v in values]), "reward_recovered")
    assert finding is not None
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("entropy_explosion", {"entropy": lambda t: 0.5 + 4.0 * t}),
        ("kl_runaway", {"kl": lambda t: 0.01 * math.exp(6.0 * t)}),
        ("length_collapse", {"response_length": lambda t: 300.0 if t < 0.5 else 40.0}),
        ("dead_groups", {"zero_std_frac": 0.97}),
        ("limit_too_short", {"truncated_frac": 0.8}),
        ("scorer_errors", {"scorer_error_frac": 0.05}),
        ("stale_policy", {"staleness": lambda t: 10.0 * t}),
    ],
)
def test_a_disease_of_a_run_that_does_not_learn_asks_for_action(name: str, changes: dict[str, Any]) -> None:
    curves: dict[str, Any] = {k: curve(cast(Any, v)) if callable(v) else v for k, v in changes.items()}
    sick = flat(**curves)
    finding = found(sick, name)
    assert finding is not None
    assert finding.severity is not Severity.NOTE
    assert found(learning(), name) is None


def test_a_scorer_that_fails_once_in_a_thousand_is_a_warning_and_one_percent_closes() -> None:
    rare = learning(scorer_error_frac=[0.1 if i == 50 else 0.0 for i in range(200)])
    often = learning(scorer_error_frac=0.02)
    assert [f.severity for f in (found(rare, "scorer_errors"), found(often, "scorer_errors")) if f] == [
        Severity.WARN,
        Severity.CLOSE,
    ]


def test_nan_in_the_last_three_rows_stops_and_one_before_is_a_warning() -> None:
    values: list[float] = curve(0.5, noise=0.05)
    middle, end = list(values), list(values)
    middle[100] = math.nan
    end[-3:] = [math.nan] * 3
    assert [f.severity for v in (middle, end) if (f := found(learning(grad_norm=v), "not_finite"))] == [
        Severity.WARN,
        Severity.STOP,
    ]


def test_a_clip_share_of_one_update_per_rollout_says_nothing_about_the_learning_rate() -> None:
    several = learning(clip_frac=0.4)
    one = replace(several, facts=replace(several.facts, updates_per_rollout=1))
    assert found(several, "learning_rate_too_high") is not None
    assert found(one, "learning_rate_too_high") is None


def test_an_entropy_that_falls_while_the_task_is_solved_is_a_note() -> None:
    solved = curve(lambda t: min(0.97, 0.3 + 1.5 * t), noise=0.01)
    run = learning(reward=solved, acc=solved, entropy=curve(lambda t: 0.8 * math.exp(-8.0 * t)))
    finding = found(run, "entropy_collapse")
    assert finding is not None
    assert finding.severity is Severity.NOTE
    assert "normal" in finding.cause


def test_reward_that_rises_while_accuracy_falls_is_hacking_and_with_accuracy_it_is_not() -> None:
    rising = curve(lambda t: 0.2 + 0.6 * t, noise=0.03)
    falling = curve(lambda t: 0.4 - 0.2 * t, noise=0.03, seed=3)
    finding = found(learning(reward=rising, acc=falling), "reward_hacking")
    assert finding is not None
    assert finding.severity is Severity.CLOSE
    assert found(learning(reward=rising, acc=rising), "reward_hacking") is None


def test_a_format_reward_that_carries_all_of_the_gain_is_a_warning() -> None:
    gain = curve(lambda t: t, noise=0.03)
    run = a_run(200, reward=gain, **{"reward_part/format": gain, "reward_part/answer": 0.0})
    finding = found(run, "reward_hacking")
    assert finding is not None
    assert "by format alone; answer never changed" in finding.summary


def test_staleness_that_grows_by_one_a_step_is_a_sync_that_never_ran() -> None:
    finding = found(flat(staleness=[float(i) for i in range(200)]), "weight_sync_broken")
    assert finding is not None
    assert finding.severity is Severity.STOP
    assert found(flat(staleness=2.0), "weight_sync_broken") is None


@pytest.mark.parametrize(("questions", "expected"), [(30, True), (2000, False), (None, None)])
def test_an_evaluation_of_few_questions_that_shows_no_change_is_too_small(
    questions: int | None, expected: bool | None
) -> None:
    run = replace(learning(), evaluations=(Evaluation(0, 0.4, questions), Evaluation(200, 0.42, questions)))
    if expected is None:
        assert "known number of questions" in (why_not_judged(run, "evaluation_too_small") or "")
    else:
        assert (found(run, "evaluation_too_small") is not None) is expected


def test_findings_are_sorted_by_severity() -> None:
    sick = flat(scorer_error_frac=0.05, staleness=[float(i) for i in range(200)], zero_std_frac=0.97)
    order = [f.severity for f in diagnose(sick).findings]
    assert order == sorted(order, key=list(Severity).index)
    assert order[0] is Severity.STOP


def test_a_finding_needs_evidence_and_a_text() -> None:
    with pytest.raises(ValueError, match="at least one piece of evidence"):
        Finding("dead_groups", Severity.WARN, "text", ())
    with pytest.raises(ValueError, match="entry in TEXTS"):
        Finding("unheard of", Severity.WARN, "text", ())


def test_a_plot_has_at_most_sixty_points_and_keeps_both_ends() -> None:
    series = windows(a_run(500, reward=curve(0.5, 500, noise=0.1)), "reward", 20)
    points = points_of(series)
    assert len(points) == PLOT_POINTS
    assert (points[0][0], points[-1][0]) == (series[0].last_step, series[-1].last_step)


@pytest.mark.parametrize("disease", list(DISEASES))
def test_a_planted_disease_is_named(disease: str) -> None:
    """Runs of another seed than those that the benchmark prints; it asks for 95 % over all diseases."""
    rng = np.random.default_rng([20_261_201, list(DISEASES).index(disease)])
    named = sum(finding_of(diagnose(as_run_curves(planted(rng, disease))), disease) is not None for _ in range(10))
    assert named >= 8


def test_at_most_one_in_twenty_synthetic_healthy_runs_raises_an_alarm() -> None:
    rng = np.random.default_rng(20_261_201)
    alarms = sum(bool(serious(diagnose(as_run_curves(healthy(rng))))) for _ in range(100))
    assert alarms <= 5


@pytest.mark.skipif(not BANK.exists(), reason="the bank of real runs is not beside the project")
def test_real_dead_runs_are_named_and_real_healthy_runs_are_not_stopped() -> None:
    runs = read_bank(BANK)
    verdicts = {run.run_id: diagnose(run.curves) for run in runs}
    dead = [run.run_id for run in runs if run.label == "dead"]
    assert len(dead) >= 5
    assert all(any(f.name == "reward_collapse" for f in verdicts[i].findings) for i in dead)
    well = [run for run in runs if run.label == "healthy" or run.recovers]
    stopped = [r.run_id for r in well if any(f.severity is Severity.STOP for f in verdicts[r.run_id].findings)]
    assert stopped == []
    alarmed = [r.run_id for r in well if serious(verdicts[r.run_id])]
    assert len(alarmed) <= 0.1 * len(well)
