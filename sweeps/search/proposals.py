"""What Optuna's TPE sampler proposes next, from what the journal knows of earlier trials.

Optuna is a sampler here and nothing more: its study lives in memory, is made from the journal, and is thrown away with
the driver. A proposal is a function of the search space, the sampler's seed and the journal so far. It is written down
before its trial starts, so that a resume finds it, and asks for no more than are left.

TPE models the best of what it sees, a tenth of it and at most 25, against the rest, of which the newest count most. In
a large search it sees those best of all, and of the rest the newest 1,000 to 2,000.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import statistics
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rl.codec import to_json
from sweeps.config.axes import Axis, axes, draws
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import UNFINISHED, Journal, SweepRecord, TrialRecord, TrialState
from sweeps.planning.plan import PlannedTrial, resolve
from sweeps.search.pruning import curve

if TYPE_CHECKING:
    import optuna

TRIES = 20
"""So often the sampler is asked for a point that is not there yet; then one is drawn at random."""
DRAWS = 2_000
NEWEST = 1_000
"""So many points at least are seen by the sampler, if there are so many, and less than twice as many."""
BEST = 25
"""Of older points, it sees the best of those that went to their end, as many as TPE takes for good at most."""


class Proposer:
    """The search of one sweep. The sampler's study is kept from one proposal to the next, and told what is new."""

    def __init__(self, cfg: SweepConfig) -> None:
        self._cfg, self._space = cfg, axes(cfg)
        self._by_place: dict[str, list[TrialRecord]] = {}
        self._points: list[list[TrialRecord]] = []
        """In the order in which they were proposed; by that a point is known here."""
        self._trials = 0
        """Those of the record that are among the points."""
        self._running: set[int] = set()
        """Points with a trial that has not ended."""
        self._worth: dict[int, float] = {}
        """Of the points that went to their end."""
        self._study: optuna.Study | None = None
        self._told: dict[int, int] = {}
        """Of the points in the study, in order: the ids of its trials."""

    def propose(self, journal: Journal) -> list[str]:
        """Write down the search's next point; the ids of its trials, one a seed. Empty: there is nothing more to
        propose.

        A space may turn out smaller than it seemed when several of its points are the same trial: that the search has
        ended is then written down, too.
        """
        record = journal.record
        if record.to_propose:
            journal.catch_up()  # somebody may have ended the search
        if not record.to_propose:
            return []
        trials = self.next_point(record)[: record.to_propose]
        with journal.transaction():
            for trial in trials:
                journal.append("trial_planned", {"trial": to_json(trial)}, f"trial_planned:{trial.trial_id}")
            if not trials:
                journal.append("search_ended", {"trials": len(record.trials)}, f"search_ended:{len(record.trials)}")
        return [t.trial_id for t in trials]

    def next_point(self, record: SweepRecord) -> list[PlannedTrial]:
        """The trials of a point that no trial has been at; empty: there is none."""
        for point in self._suggested(record):
            trials = [resolve(self._cfg, point, seed) for seed in self._cfg.search.seeds]
            if trials[0].trial_id not in record.trials:
                return trials
        return []

    def study(self, record: SweepRecord) -> optuna.Study:
        """What the sampler sees of what is known so far. Points that still run are RUNNING: it takes them for poor
        (its "constant liar") and proposes elsewhere."""
        ended = self._look(record)
        seen = self._seen()
        if self._study is None or seen[: len(self._told)] != list(self._told):
            self._study, self._told = _empty_study(), {}
        storage = self._study._storage
        for number in sorted(ended & self._told.keys()):
            end, told = _as_optuna(self._space, self._points[number]), self._told[number]
            for completions, accuracy in end.intermediate_values.items():
                storage.set_trial_intermediate_value(told, completions, accuracy)
            storage.set_trial_state_values(told, end.state, end.values)
        for number in seen[len(self._told) :]:
            new = _as_optuna(self._space, self._points[number])
            self._told[number] = storage.create_new_trial(self._study._study_id, new)
        return self._study

    def _look(self, record: SweepRecord) -> set[int]:
        """Take in what the record has new; the points that have ended since the last look."""
        for trial in itertools.islice(record.trials.values(), self._trials, None):
            place = _place(trial)
            if place not in self._by_place:
                self._by_place[place] = []
                self._running.add(len(self._points))
                self._points.append(self._by_place[place])
            self._by_place[place].append(trial)
        self._trials = len(record.trials)
        ended = {n for n in self._running if not any(t.state in UNFINISHED for t in self._points[n])}
        self._running -= ended
        for number in ended:
            value = objective(self._points[number])
            if value is not None:
                self._worth[number] = value
        return ended

    def _seen(self) -> list[int]:
        """The points that the sampler sees, in order."""
        newest = max(0, len(self._points) // NEWEST - 1) * NEWEST
        older = (n for n in self._worth if n < newest)
        best = heapq.nlargest(BEST, older, key=lambda n: (self._worth[n], -n)) if newest else []
        return sorted({*best, *(n for n in self._running if n < newest)}) + list(range(newest, len(self._points)))

    def _suggested(self, record: SweepRecord) -> Iterator[dict[str, Any]]:
        from optuna.trial import TrialState as State

        for attempt in range(TRIES):
            study = self.study(record)
            study.sampler = _sampler(self._cfg, f"{self._cfg.search.sampler_seed}:{len(self._points)}:{attempt}")
            trial = study.ask()
            point: dict[str, Any] = {}
            for axis in self._space:
                if axis.active(point):
                    point[axis.key] = _suggest(trial, axis)
            study.tell(trial, state=State.FAIL)  # what becomes of it is told as a point of the journal
            yield point
        for _, point in zip(range(DRAWS), draws(self._space, self._cfg.search.sampler_seed), strict=False):
            yield point


def _empty_study() -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize")


def _sampler(cfg: SweepConfig, seed: str) -> optuna.samplers.TPESampler:
    import optuna

    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=number, n_startup_trials=cfg.search.startup_trials, constant_liar=True)


def objective(trials: Sequence[TrialRecord]) -> float | None:
    """What a point is worth: accuracy of the last evaluation, the mean over its completed repeats; None: unknown."""
    known = [t.summary.acc for t in trials if t.state is TrialState.COMPLETED and t.summary.acc is not None]
    return statistics.fmean(known) if known else None


def _suggest(trial: optuna.Trial, axis: Axis) -> Any:
    if axis.choices:
        return axis.choices[trial.suggest_categorical(axis.key, range(len(axis.choices)))]
    if axis.whole:
        return trial.suggest_int(axis.key, *_whole_ends(axis), log=axis.log, step=int(axis.step or 1))
    return axis.number(trial.suggest_float(axis.key, *_ends(axis), step=axis.step, log=axis.log))


def _as_optuna(space: Sequence[Axis], trials: Sequence[TrialRecord]) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    point = trials[0].planned.point
    active = [axis for axis in space if axis.key in point]
    states = {t.state for t in trials}
    value: float | None = None
    passed: dict[int, float] = {}
    if states & UNFINISHED:
        state = State.RUNNING
    elif TrialState.PRUNED in states:
        state, passed = State.PRUNED, _mean_curve(trials)
    else:
        value = objective(trials)
        state = State.FAIL if value is None else State.COMPLETE
    return create_trial(
        state=state,
        value=value,
        params={a.key: a.choices.index(point[a.key]) if a.choices else point[a.key] for a in active},
        distributions={a.key: _distribution(a) for a in active},
        intermediate_values=passed,
    )


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.choices:
        return CategoricalDistribution(range(len(axis.choices)))
    if axis.whole:
        return IntDistribution(*_whole_ends(axis), log=axis.log, step=int(axis.step or 1))
    return FloatDistribution(*_ends(axis), log=axis.log, step=axis.step)


def _ends(axis: Axis) -> tuple[float, float]:
    """The lowest and the highest that can be reached in whole steps."""
    return axis.low, axis.high if axis.step is None else axis.number(axis.low + axis.steps * axis.step)


def _whole_ends(axis: Axis) -> tuple[int, int]:
    low, high = _ends(axis)
    return int(low), int(high)


def _mean_curve(trials: Sequence[TrialRecord]) -> dict[int, float]:
    """Mean accuracy over the repeats by completions, where all of them were evaluated, but not before training."""
    curves = [dict(curve(t)) for t in trials]
    shared = set(curves[0]).intersection(*curves[1:]) - {0}
    return {completions: statistics.fmean(c[completions] for c in curves) for completions in sorted(shared)}


def points_of(record: SweepRecord) -> list[list[TrialRecord]]:
    """The trials by point, in the order in which the points were proposed."""
    found: dict[str, list[TrialRecord]] = {}
    for trial in record.trials.values():
        found.setdefault(_place(trial), []).append(trial)
    return list(found.values())


def _place(trial: TrialRecord) -> str:
    return repr(sorted(trial.planned.point.items()))
