"""A search from the first to the last proposal: exact counts, and the same proposals after interruptions."""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.clock import FakeClock
from cost.ledger.events import EventStore
from cost.ledger.ledger import Ledger
from rl.trainers.simulated_curves import State, accuracy, progress_per_step
from sweeps.cli.main import app
from sweeps.config.build import compose
from sweeps.driver.controller import SweepController
from sweeps.executors.in_process import InProcessExecutor
from sweeps.journal.journal import AttemptRecord, Journal, SweepRecord, TrialRecord, TrialState, load, sweep_events
from sweeps.journal.lost_attempts import end_lost_attempts
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.journal.trial_summary import Accuracy, TrialSummary
from sweeps.planning.plan import PlannedTrial, make_plan, trial_spec
from sweeps.search import proposals as proposals_module
from sweeps.search.proposals import Proposer, objective, points_of
from tests.sweeps.in_process import Silent, Sweep, a_sweep

SWEEP = "smoke-test-1"
LR = "search.space.algorithm.lr={low:1e-6,high:1e-3,log:true}"
SMALL = (
    *("search.prompts_per_step=[8]", "search.lr_scaling=[hold]", "stage.steps=4", "evaluation.every_steps=2", LR),
    "trainer.simulated.steps_to_half=3",
)


def over(planned: PlannedTrial, *acc: float, outcome: AttemptOutcome = AttemptOutcome.COMPLETED) -> TrialRecord:
    """A trial that has ended, with these accuracies at steps 2, 4, 6 ..."""
    accuracies = tuple(Accuracy(2 * i, a) for i, a in enumerate(acc, 1))
    return TrialRecord(planned, [AttemptRecord(1, "lease-1", 0, 0, outcome)], TrialSummary(accuracies=accuracies))


def proposals(sweep: Sweep) -> list[tuple[str, float]]:
    planned = (e.body["trial"] for e in sweep_events(sweep.ledger, SWEEP) if e.kind == "trial_proposed")
    return [(trial["trial_id"], trial["lr"]) for trial in planned]


def test_every_proposal_is_in_the_journal_before_its_trial_starts_and_their_number_is_exact(tmp_path):
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=7", "search.startup_trials=3", *SMALL).run()
    record = sweep.journal.record
    assert len(record.trials) == 7
    assert {t.state for t in record.trials.values()} == {TrialState.COMPLETED}
    assert record.left == 0
    events = [
        (e.kind, e.body.get("trial_id") or e.body["trial"]["trial_id"])
        for e in sweep_events(sweep.ledger, SWEEP)
        if e.kind in ("trial_proposed", "attempt_started")
    ]
    for trial_id in record.trials:
        assert events.index(("trial_proposed", trial_id)) < events.index(("attempt_started", trial_id))
    assert load(sweep.ledger, SWEEP) == record


def test_the_plan_of_a_search_has_the_number_of_trials_and_the_search_space(tmp_path):
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=7", *SMALL)
    body = next(iter(sweep_events(sweep.ledger, SWEEP))).body
    assert (body["trials"], body["proposals"]) == ([], 7)
    assert body["config"]["search"]["sampler_seed"] == 0
    assert body["config"]["search"]["space"]["algorithm.lr"]["low"] == 1e-6
    assert sweep.journal.record.left == 7


def test_a_plan_whose_sampler_never_proposes_gets_a_warning():
    search = (
        "+stage=smoke",
        "trainer=simulated",
        "search=optuna",
        "search.seeds=[0,1]",
        "search.startup_trials=4",
        *SMALL,
    )
    (warning,) = make_plan(compose([*search, "search.trials=8"])).warnings
    assert "search.startup_trials=4 points at random, and search.trials=8 leaves no trial after them" in warning
    assert not make_plan(compose([*search, "search.trials=9"])).warnings


def test_each_point_runs_with_every_seed_and_the_last_point_with_the_remaining_trials(tmp_path):
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=5", "search.seeds=[0,1]", *SMALL).run()
    points = points_of(sweep.journal.record)
    assert [len(trials) for trials in points] == [2, 2, 1]
    assert [[t.planned.seed for t in trials] for trials in points] == [[0, 1], [0, 1], [0]]
    assert len({trials[0].planned.lr for trials in points}) == 3
    first = [t.summary.acc for t in points[0]]
    assert objective(points[0]) == pytest.approx(sum(a for a in first if a is not None) / 2)


def test_trials_that_run_at_once_have_different_points(tmp_path):
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=16", "machine=h100x8", *SMALL).run()
    assert len({lr for _, lr in proposals(sweep)}) == 16
    assert sum(u.from_ns == min(v.from_ns for v in sweep.ledger.usages.find()) for u in sweep.ledger.usages.find()) == 8


def test_running_trials_are_running_in_the_study(tmp_path):
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=4", "machine=h100x8", *SMALL)
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.on_granted(attempt)
    record = sweep.journal.record
    seen = Proposer(sweep.cfg).study(record).get_trials()
    assert [t.state.name for t in seen] == ["RUNNING"]
    assert seen[0].params["algorithm.lr"] == next(iter(record.trials.values())).planned.point["algorithm.lr"]


def test_a_search_ends_when_the_space_has_no_further_points(tmp_path):
    only = ("search.space.algorithm.kl_coef=[0.0,0.1]", "search.trials=2", "search.prompts_per_step=[8]")
    sweep = a_sweep(tmp_path, "search=optuna", *only, "search.lr_scaling=[hold]", "stage.steps=2")
    sweep.journal.record.proposals = 5  # more than the space has
    sweep.run()
    assert [e.kind for e in sweep_events(sweep.ledger, SWEEP)].count("search_ended") == 1
    assert len(sweep.journal.record.trials) == 2
    assert load(sweep.ledger, SWEEP).left == 0


def test_the_sampler_finds_better_learning_rates_than_random_draws():
    better = 0
    for seed in range(5):
        search = (*SMALL, "search.trials=40", f"search.sampler_seed={seed}", "search=optuna", "trainer=simulated")
        cfg = compose(["+stage=smoke", *search])
        record, proposer = SweepRecord(SWEEP), Proposer(cfg)
        for _ in range(40):
            (planned,) = proposer.next_point(record)
            spec = trial_spec(cfg, planned, attempt=1, sweep_dir=Path())
            learnt = State(progress=4 * progress_per_step(spec, planned.lr))
            record.trials[planned.trial_id] = over(planned, accuracy(spec, learnt))
        found = [t.summary.acc or 0 for t in record.trials.values()]
        better += statistics.fmean(found[20:]) > statistics.fmean(found[:10])
    assert better == 5


def test_a_cancelled_search_proposes_no_further_points(tmp_path):
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=9", *SMALL)
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.end_all(AttemptOutcome.LOST, "not granted")
    result = CliRunner().invoke(app, ["cancel", "last", "--root", str(tmp_path)])
    assert "9 trials cancelled" in result.output
    sweep.run()
    record = sweep.journal.record
    assert [t.state for t in record.trials.values()] == [TrialState.CANCELLED]
    assert record.left == 0


# ---------------------------------------------------------------------------------------------------------------------
# Interruptions
# ---------------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone, and its pending write is lost."""


def killed_at(sweep: Sweep, write: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run until the n-th write to the journal, which fails; False if the sweep ended before."""
    counter = itertools.count(1)
    whole = EventStore.append_all

    def append(store: EventStore, *arguments, **named):
        if next(counter) >= write:
            raise Killed
        return whole(store, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(EventStore, "append_all", append)
        with contextlib.suppress(Killed):
            sweep.run()
            return False
    return True


def resumed(sweep: Sweep, folder: Path) -> Sweep:
    """The sweep as the same command resumes it in another process, a minute later."""
    cfg, clock = sweep.cfg, FakeClock(utc=sweep.clock.utc_ns() + 60 * 10**9)
    ledger = Ledger.open(folder / "ledger.db", clock)
    for usage in ledger.usages.find():  # as `close_dead` does when the process is gone
        if usage.to_ns is None:
            ledger.usages.end(usage.key, "PREEMPTED")
    journal = Journal(ledger, SWEEP)
    end_lost_attempts(journal)
    settings = {"cards": cfg.machine.cards, "view": Silent(), "sweep_dir": folder}
    host = SweepController(cfg, ledger=ledger, journal=journal, lease_id="lease-1", **settings)
    return Sweep(cfg, clock, ledger, journal, host, InProcessExecutor(clock))


def outcome(record: SweepRecord) -> list[tuple[str, str, int, str | None]]:
    return [(t.trial_id, str(t.state), t.summary.step, t.pruned) for t in record.trials.values()]


SEARCHES = {
    "optuna": ("search=optuna", "search.trials=5", "search.startup_trials=2", *SMALL),
    "optuna, asha": (
        *("search=optuna", "search.trials=5", "search.startup_trials=2", *SMALL),
        *("search.pruning=asha", "search.pruning_min_trials=2", "search.pruning_factor=2"),
    ),
    "random, median": ("search=random", "search.trials=5", *SMALL, "search.pruning=median"),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_killed_at_any_write_resumes_with_the_same_proposals_and_decisions(search, tmp_path, monkeypatch):
    overrides = SEARCHES[search]
    alone = a_sweep(tmp_path / "alone", *overrides).run()
    expected = outcome(alone.journal.record)
    assert any(pruned for *_, pruned in expected) == (search != "optuna")
    writes = sum(1 for _ in sweep_events(alone.ledger, SWEEP))
    rng = random.Random(search)
    for case in range(4):
        folder = tmp_path / f"{case}"
        sweep = a_sweep(folder, *overrides)
        for _ in range(2):
            if not killed_at(sweep, rng.randint(1, writes // 2), monkeypatch):
                break
            sweep = resumed(sweep, folder)
        sweep.run()
        assert outcome(sweep.journal.record) == expected
        assert proposals(sweep) == proposals(alone)
        assert load(sweep.ledger, SWEEP) == sweep.journal.record


def test_a_proposal_is_a_function_of_the_journal(tmp_path):
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=9", "search.startup_trials=3", *SMALL)
    killed = Proposer(sweep.cfg).next_point(load(sweep.ledger, SWEEP))
    assert killed == Proposer(sweep.cfg).next_point(load(sweep.ledger, SWEEP))
    sweep.run()
    assert sweep.journal.record.trials[killed[0].trial_id].planned == killed[0]


@pytest.mark.parametrize("newest", [1000, 8])
def test_an_incremental_study_proposes_the_same_as_one_built_from_the_whole_journal(newest, tmp_path, monkeypatch):
    """A large search uses the newest points and the best of the older ones: here, more than eight points."""
    monkeypatch.setattr(proposals_module, "NEWEST_POINTS", newest)
    monkeypatch.setattr(proposals_module, "BEST_POINTS", 3)
    pruned = ("search.pruning=asha", "search.pruning_factor=2", "search.pruning_min_trials=2")
    sweep = a_sweep(tmp_path, "search=optuna", "search.trials=24", "machine=h100x8", *pruned, *SMALL)
    as_optuna = proposals_module._as_optuna
    converted: list[int] = []

    def count(*arguments):
        converted.append(1)
        return as_optuna(*arguments)

    kept = sweep.controller._proposer
    whole = kept.next_point

    def next_point(record):
        with monkeypatch.context() as patched:
            patched.setattr(proposals_module, "_as_optuna", count)
            found = whole(record)
        if len(record.trials) % 3 == 0:
            assert found == Proposer(sweep.cfg).next_point(record)
        return found

    monkeypatch.setattr(kept, "next_point", next_point)
    sweep.run()
    states = {t.state for t in sweep.journal.record.trials.values()}
    assert states == {TrialState.COMPLETED, TrialState.PRUNED}
    assert newest == 8 or len(converted) <= 2 * 24, "each point is converted when it begins and when it ends"


def test_another_sampler_seed_proposes_other_points(tmp_path):
    one = a_sweep(tmp_path / "0", "search=optuna", "search.trials=3", *SMALL)
    other = a_sweep(tmp_path / "1", "search=optuna", "search.trials=3", "search.sampler_seed=1", *SMALL)
    assert Proposer(one.cfg).next_point(one.journal.record) != Proposer(other.cfg).next_point(other.journal.record)


def test_the_cost_report_shows_the_varied_keys(tmp_path):
    only = ("search.space.rollout.temperature=[0.8]", "search.prompts_per_step=[8]", "search.lr_scaling=[hold]")
    sweep = a_sweep(tmp_path, *only, "stage.steps=2").run()
    (usage,) = sweep.ledger.usages.find()
    assert usage.labels["varied"] == "temperature=0.8"
    assert usage.labels["seed"] == "0"
