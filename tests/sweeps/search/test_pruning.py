"""Pruning: the rules against values worked out by hand and against Optuna, and the decisions after a restart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.spec import Stop
from sweeps.config.build import compose
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import AttemptRecord, SweepRecord, TrialRecord, TrialState, load, sweep_events
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.journal.trial_summary import Accuracy, TrialSummary
from sweeps.planning.plan import make_plan
from sweeps.search.pruning import Pruner, accuracy_at, asha, first_evaluation, median, percentile_of, why_never_pruning
from sweeps.search.pruning import curve as curve_of
from tests.sweeps.in_process import a_sweep
from tests.sweeps.search.test_proposals import SMALL, SWEEP, Killed, resumed

PRUNED = ("search=random", "search.trials=6", "search.pruning=median", *SMALL)


def among(*curves: list[tuple[int, float]]) -> Callable[[int], list[float]]:
    """The accuracies of all these curves at a number of completions, computed one by one."""
    return lambda completions: sorted(v for c in curves if (v := accuracy_at(c, completions)) is not None)


def pruned_by_asha(own: list[tuple[int, float]], others: list[list[tuple[int, float]]], **rule) -> bool:
    return asha(own, among(own, *others), **rule) is not None


def pruned_by_median(own: list[tuple[int, float]], others: list[list[tuple[int, float]]], **rule) -> bool:
    return median(own, among(own, *others), **rule) is not None


def flat(*accuracies: float) -> list[tuple[int, float]]:
    """Evaluations at 100, 200, 300 ... completions, after one before training."""
    return [(100 * i, acc) for i, acc in enumerate((0.1, *accuracies))]


# ---------------------------------------------------------------------------------------------------------------------
# Rules
# ---------------------------------------------------------------------------------------------------------------------


def test_of_nine_at_a_rung_the_best_three_continue_with_a_factor_of_three():
    others = [flat(acc) for acc in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)]
    continues = [not pruned_by_asha(flat(acc), others, first=100, factor=3, min_trials=2) for acc in (0.55, 0.65, 0.75)]
    # With the ninth, the best three are 0.7, 0.8 and the ninth itself, if it is above 0.6.
    assert continues == [False, True, True]


def test_with_fewer_trials_than_the_factor_only_the_best_continues():
    assert pruned_by_asha(flat(0.5), [flat(0.6)], first=100, factor=3, min_trials=2)
    assert not pruned_by_asha(flat(0.7), [flat(0.6)], first=100, factor=3, min_trials=2)
    assert not pruned_by_asha(flat(0.6), [flat(0.6)], first=100, factor=3, min_trials=2), "a tie continues"


def test_rungs_are_at_powers_of_the_factor_and_no_trial_is_pruned_between_them():
    others = [flat(0.9, 0.9, 0.9, 0.9)] * 5
    own = [0.1, 0.1, 0.1, 0.1]
    judged = [pruned_by_asha(flat(*own[:n]), others, first=100, factor=2, min_trials=2) for n in (1, 2, 3, 4)]
    assert judged == [True, True, False, True]


def test_no_trial_is_pruned_before_enough_trials_have_come_as_far():
    others = [flat(0.9)] * 3
    assert not pruned_by_asha(flat(0.1), others, first=100, factor=3, min_trials=5)
    assert pruned_by_asha(flat(0.1), others, first=100, factor=3, min_trials=4)
    assert not pruned_by_median(flat(0.1), others, first=100, percentile=50, min_trials=5)
    assert pruned_by_median(flat(0.1), others, first=100, percentile=50, min_trials=4)


def test_a_trial_is_pruned_when_its_best_is_below_the_median_of_the_others():
    others = [flat(0.2, acc) for acc in (0.3, 0.4, 0.6)]
    rule = {"first": 100, "percentile": 50.0, "min_trials": 2}
    assert pruned_by_median(flat(0.2, 0.39), others, **rule)
    assert not pruned_by_median(flat(0.2, 0.40), others, **rule)
    assert not pruned_by_median(flat(0.45, 0.1), others, **rule), "its best so far counts"
    assert not pruned_by_median(flat(0.2, 0.39), others, **{**rule, "percentile": 25.0}), (
        "25 % of 0.3, 0.4, 0.6 is 0.35"
    )
    assert pruned_by_median(flat(0.2, 0.34), others, **{**rule, "percentile": 25.0})
    assert not pruned_by_median(flat(0.2, 0.1), others, **{**rule, "first": 201}), "warm-up"


def test_the_evaluation_before_training_does_not_count():
    assert pruned_by_median([(0, 0.9), (100, 0.1)], [flat(0.5)] * 3, first=100, percentile=50, min_trials=2)


def test_accuracy_is_interpolated_between_evaluations_and_unknown_beyond_the_last():
    curve = [(0, 0.1), (160, 0.3), (320, 0.7)]
    assert accuracy_at(curve, 160) == pytest.approx(0.3)
    assert accuracy_at(curve, 240) == pytest.approx(0.5)
    assert accuracy_at(curve, 80) == pytest.approx(0.2)
    assert accuracy_at(curve, 321) is None


def test_equal_accuracies_at_a_rung_compare_as_equal():
    assert 0.2 + (0.9 - 0.2) * 100 / 100 < 0.9, "the interpolated value would be smaller"
    assert not pruned_by_asha([(0, 0.2), (100, 0.9)], [[(0, 0.9), (100, 0.9)]], first=100, factor=3, min_trials=2)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values: list[float], percentile: float):
    assert percentile_of(sorted(values), percentile) == pytest.approx(float(np.percentile(values, percentile)))


accuracies = st.integers(0, 16).map(lambda right: right / 16)
some_curves = st.lists(st.lists(accuracies, min_size=9, max_size=9), min_size=1, max_size=12)


@settings(max_examples=50)
@given(some_curves, st.integers(2, 4))
def test_successive_halving_decides_like_optuna_when_all_trials_have_the_same_batch(
    values: list[list[float]], factor: int
):
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=factor)

    def ours(own: list[tuple[int, float]], others: list[list[tuple[int, float]]]) -> bool:
        return pruned_by_asha(own, others, first=100, factor=factor, min_trials=1)

    assert decisions(values, ours) == decisions_of(pruner, values)


@settings(max_examples=50)
@given(some_curves, st.floats(1, 99))
def test_the_median_rule_decides_like_optuna_when_every_trial_completes(values: list[list[float]], percentile: float):
    """Optuna's percentile counts from the best, and considers completed trials only."""
    pruner = optuna.pruners.PercentilePruner(100 - percentile, n_startup_trials=1, n_min_trials=1)
    *before, last = values
    others = [flat(*curve) for curve in before]
    ours = [
        pruned_by_median(flat(*last[: n + 1]), others, first=1, percentile=percentile, min_trials=2)
        for n in range(len(last))
    ]
    study = a_study(pruner)
    for curve in before:
        distributions = dict(enumerate(curve))
        study.add_trial(optuna.trial.create_trial(value=curve[-1], intermediate_values=distributions))
    trial = study.ask()
    theirs = []
    for step, value in enumerate(last):
        trial.report(value, step)
        theirs.append(trial.should_prune())
    assert ours == theirs


def a_study(pruner: optuna.pruners.BasePruner) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", pruner=pruner)


def decisions(values: list[list[float]], rule) -> list[int]:
    """After how many evaluations each trial ends, one trial after the other."""
    done: list[list[tuple[int, float]]] = []
    ended = []
    for curve in values:
        reached = next((n for n in range(1, len(curve) + 1) if rule(flat(*curve[:n]), done)), len(curve))
        ended.append(reached)
        done.append(flat(*curve[:reached]))
    return ended


def decisions_of(pruner: optuna.pruners.BasePruner, values: list[list[float]]) -> list[int]:
    study, ended = a_study(pruner), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for curve in values:
            trial, reached = study.ask(), len(curve)
            for step, value in enumerate(curve, 1):
                trial.report(value, step)
                if trial.should_prune():
                    reached = step
                    break
            ended.append(reached)
            study.tell(trial, curve[-1])
    return ended


# ---------------------------------------------------------------------------------------------------------------------
# From the journal
# ---------------------------------------------------------------------------------------------------------------------


def record_of(cfg, *curves: tuple[int, int, list[float]]) -> tuple[SweepRecord, list[TrialRecord]]:
    """Trials of (prompts per step, seed, accuracies at each evaluation), all of them running."""
    record, planned = SweepRecord(SWEEP), make_plan(cfg).trials[0]
    for number, (prompts, seed, values) in enumerate(curves):
        found = tuple(Accuracy(cfg.evaluation.every_steps * i, acc) for i, acc in enumerate(values))
        trial = replace(planned, trial_id=f"t{number}", prompts_per_step=prompts, seed=seed)
        attempt = AttemptRecord(1, "lease-1", 0, 0)
        record.trials[trial.trial_id] = TrialRecord(trial, [attempt], TrialSummary(accuracies=found))
    return record, list(record.trials.values())


MEDIAN = ("search.pruning=median", "evaluation.every_steps=5", "search.pruning_min_trials=2")


def test_trials_are_compared_at_equal_completions_and_not_at_equal_steps():
    cfg = compose(["+stage=smoke", "search.prompts_per_step=[4,8]", "search.lr_scaling=[hold]", *MEDIAN])
    assert first_evaluation(cfg) == 5 * 8 * 8
    # At step 10 the small batch has seen what the large one had at step 5.
    record, (small, _) = record_of(cfg, (4, 0, [0.1, 0.2, 0.35]), (8, 0, [0.1, 0.3, 0.6]))
    assert Pruner(cfg, record).reason(small, 10) is None
    record, (small, _) = record_of(cfg, (4, 0, [0.1, 0.2, 0.25]), (8, 0, [0.1, 0.3, 0.6]))
    reason = Pruner(cfg, record).reason(small, 10)
    assert reason is not None
    assert "320 completions" in reason


def test_only_trials_of_the_same_seed_are_compared():
    cfg = compose(["+stage=smoke", "search.prompts_per_step=[8]", "search.lr_scaling=[hold]", *MEDIAN])
    record, (one, *_) = record_of(cfg, (8, 0, [0.1, 0.2]), (8, 1, [0.1, 0.9]), (8, 1, [0.1, 0.9]))
    assert Pruner(cfg, record).reason(one, 5) is None
    record, (one, *_) = record_of(cfg, (8, 0, [0.1, 0.2]), (8, 0, [0.1, 0.9]), (8, 1, [0.1, 0.9]))
    assert Pruner(cfg, record).reason(one, 5) is not None


def test_the_last_evaluation_and_a_repeated_one_prune_nothing():
    cfg = compose(["+stage=smoke", "search.prompts_per_step=[8]", "search.lr_scaling=[hold]", *MEDIAN])
    record, (one, _) = record_of(cfg, (8, 0, [0.1, 0.2, 0.2, 0.2, 0.2]), (8, 0, [0.1, 0.9, 0.9, 0.9, 0.9]))
    assert Pruner(cfg, record).reason(one, 20) is None, "the trial is complete"
    assert Pruner(cfg, record).reason(one, 5) is None, "an older one, repeated after a restore"
    assert Pruner(cfg, record).reason(one, 0) is None


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (("search.trials=6", "search.seeds=[0,1]"), "search.pruning_min_trials=4 trials of one seed, and there are 3"),
        (("search.trials=6", "search.pruning_warmup_completions=257"), "before the end of a trial is at 256"),
        (("search.trials=6", "search.pruning_warmup_completions=256"), None),
    ],
)
def test_a_rule_that_cannot_prune_any_trial_gets_a_warning(typed: tuple[str, ...], why: str | None):
    cfg = compose(
        ["+stage=smoke", "trainer=simulated", "search=random", *SMALL, "search.pruning=median", "stage.steps=5", *typed]
    )
    found = why_never_pruning(cfg, make_plan(cfg).trials)
    assert found is None if why is None else why in (found or "")


def test_without_a_rule_no_trial_is_pruned():
    cfg = compose(["+stage=smoke", "search.prompts_per_step=[8]", "search.lr_scaling=[hold]", *MEDIAN[1:]])
    record, (one, *_) = record_of(cfg, (8, 0, [0.1, 0.2]), (8, 0, [0.1, 0.9]), (8, 0, [0.1, 0.9]))
    assert Pruner(cfg, record).reason(one, 5) is None


some_trials = st.lists(st.tuples(st.sampled_from([2, 4, 6, 8]), st.integers(0, 1)), min_size=2, max_size=8)


@settings(max_examples=60)
@given(
    some_trials, st.lists(st.tuples(st.integers(0, 7), accuracies), max_size=60), st.sampled_from(["asha", "median"])
)
def test_incremental_decisions_equal_those_from_all_trials(
    trials: list[tuple[int, int]], evaluations: list[tuple[int, float]], rule: str
):
    """Evaluations of several trials, of several batch sizes and seeds, in any order."""
    cfg = configuration(rule)
    record, running = record_of(cfg, *((prompts, seed, []) for prompts, seed in trials))
    pruner = Pruner(cfg, record)
    for number, accuracy in evaluations:
        trial = running[number % len(running)]
        evaluated, every = trial.summary.accuracies, cfg.evaluation.every_steps
        trial.summary.accuracies = (*evaluated, Accuracy(every * len(evaluated), accuracy))
        pruner.add(trial)
        step = evaluated[-1].step + every if evaluated else 0
        assert pruner.reason(trial, step) == (
            from_all_trials(cfg, trial, running) if 0 < step < cfg.stage.steps else None
        )
    again = Pruner(cfg, record)  # as after a restart
    for trial in (t for t in running if t.summary.accuracies):
        step = trial.summary.accuracies[-1].step
        assert again.reason(trial, step) == pruner.reason(trial, step)


def from_all_trials(cfg: SweepConfig, trial: TrialRecord, running: list[TrialRecord]) -> str | None:
    own = curve_of(trial)
    reached = among(*(curve_of(t) for t in running if t.planned.seed == trial.planned.seed))
    if cfg.search.pruning == "asha":
        return asha(own, reached, first=first_evaluation(cfg), factor=3, min_trials=2)
    return median(own, reached, first=first_evaluation(cfg), percentile=50.0, min_trials=2)


@cache
def configuration(rule: str) -> SweepConfig:
    space = ("search.prompts_per_step=[2,4,6,8]", "search.lr_scaling=[hold]", "stage.steps=200")
    return compose(["+stage=smoke", *space, f"search.pruning={rule}", *MEDIAN[1:]])


# ---------------------------------------------------------------------------------------------------------------------
# In a sweep
# ---------------------------------------------------------------------------------------------------------------------


def test_a_pruned_trial_is_neither_completed_nor_failed_and_is_not_resumed(tmp_path):
    sweep = a_sweep(tmp_path, *PRUNED).run()
    record = sweep.journal.record
    pruned = [t for t in record.trials.values() if t.pruned]
    assert pruned
    for trial in pruned:
        assert trial.state is TrialState.PRUNED
        assert trial.summary.step == 2
        assert [a.outcome for a in trial.attempts] == ["pruned"]
        assert trial.attempts[0].message == trial.pruned
    assert record.left == 0
    assert {u.outcome for u in sweep.ledger.usages.find()} == {"COMPLETED", "PRUNED"}
    steps = next(c for c in sweep.verdict().checks if c.name == "all steps done")
    assert steps.ok
    assert f"{len(pruned)} pruned" in steps.reason


def test_the_decision_is_committed_with_the_evaluation_before_the_trainer_receives_it(tmp_path):
    sweep = a_sweep(tmp_path, *PRUNED).run()
    events = list(sweep_events(sweep.ledger, SWEEP))
    for number, event in enumerate(events):
        if event.kind == "command" and event.body["command"]["type"] == "stop":
            last = events[number - 1].body["messages"][-1]
            assert (last["trial_id"], last["message"]["type"]) == (event.body["trial_id"], "eval")
            return
    raise AssertionError("nothing was pruned")


def test_a_driver_that_dies_before_the_trainer_receives_the_decision_finds_the_trial_pruned(tmp_path, monkeypatch):
    alone = a_sweep(tmp_path / "alone", *PRUNED).run()
    sweep = a_sweep(tmp_path / "killed", *PRUNED)
    on_message = sweep.controller.on_message

    def die_at_a_stop(*arguments):
        command = on_message(*arguments)
        if isinstance(command, Stop):
            raise Killed
        return command

    monkeypatch.setattr(sweep.controller, "on_message", die_at_a_stop)
    with pytest.raises(Killed):
        sweep.run()
    again = resumed(sweep, tmp_path / "killed")
    (ended,) = (t for t in again.journal.record.trials.values() if t.pruned)
    assert ended.state is TrialState.PRUNED
    again.run()
    assert len(ended.attempts) == 1
    assert ended.attempts[0].outcome == "pruned"
    record, other = again.journal.record, alone.journal.record
    assert {t: r.state for t, r in record.trials.items()} == {t: r.state for t, r in other.trials.items()}
    assert load(again.ledger, SWEEP) == record


def test_a_pruned_trial_that_crashes_while_ending_stays_pruned(tmp_path, monkeypatch):
    sweep = a_sweep(tmp_path, *PRUNED)
    ended = sweep.controller.on_ended

    def crashed(attempt, outcome: AttemptOutcome, text: str) -> None:
        ended(attempt, AttemptOutcome.CRASHED if outcome is AttemptOutcome.PRUNED else outcome, text)

    monkeypatch.setattr(sweep.controller, "on_ended", crashed)
    sweep.run()
    states = [t.state for t in sweep.journal.record.trials.values()]
    assert TrialState.PRUNED in states
    assert TrialState.FAILED not in states
    assert all(len(t.attempts) == 1 for t in sweep.journal.record.trials.values())


def test_the_study_has_the_evaluations_of_pruned_trials(tmp_path):
    from sweeps.search.proposals import Proposer

    asha_search = ("search=optuna", "search.trials=8", "search.pruning=asha", "search.pruning_factor=2")
    sweep = a_sweep(tmp_path, *asha_search, *SMALL).run()
    seen = Proposer(sweep.cfg).study(sweep.journal.record).get_trials()
    by_state = {state: [t for t in seen if t.state.name == state] for state in ("COMPLETE", "PRUNED")}
    assert sum(map(len, by_state.values())) == 8
    for trial in by_state["PRUNED"]:
        assert list(trial.intermediate_values) == [2 * 8 * 8]
    for trial in by_state["COMPLETE"]:
        assert trial.value is not None
