"""Proposes points with Optuna's TPE sampler, from the results of earlier trials in the journal.

Optuna only samples. Its study is built from the journal, exists in memory, and ends with the driver. A proposal is a
function of the search space, the sampler's seed and the journal so far. It is appended to the journal before its trial
starts, so a resume finds the proposal and counts it.

TPE models the best points (a tenth of all, at most 25) against the rest, and weights the newest of the rest most. In a
large search the study therefore has the 25 best points of all, and of the rest the newest 1,000 to 2,000.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import statistics
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sweeps.config.axes import Axis, axes, draws
from sweeps.config.types import SweepConfig
from sweeps.journal.events import SearchEnded, TrialProposed
from sweeps.journal.journal import UNFINISHED, Journal, SweepRecord, TrialRecord, TrialState
from sweeps.planning.plan import PlannedTrial, resolve
from sweeps.search.pruning import curve

if TYPE_CHECKING:
    import optuna

MAX_TRIES = 20
"""How often the sampler may propose a point that has been tried already. After that, points are drawn at random."""
MAX_DRAWS = 2_000
NEWEST_POINTS = 1_000
"""The study has at least this many of the newest points, if there are as many, and less than twice as many."""
BEST_POINTS = 25
"""Of older points, the study has this many of the best completed ones: the most that TPE models as good."""


class Proposer:
    """Proposes the points of one sweep. The study is kept between proposals and receives only new results."""

    def __init__(self, cfg: SweepConfig) -> None:
        self._cfg, self._space = cfg, axes(cfg)
        self._by_point: dict[str, list[TrialRecord]] = {}
        self._points: list[list[TrialRecord]] = []
        """The trials of each point, in the order of the proposals. A point's position is its number."""
        self._known_trials = 0
        """How many trials of the record are in `_points`."""
        self._running: set[int] = set()
        """Numbers of points with an unfinished trial."""
        self._objectives: dict[int, float] = {}
        """By number, of completed points."""
        self._study: optuna.Study | None = None
        self._study_ids: dict[int, int] = {}
        """By number, in order: the ids that the points in the study have there."""

    def propose(self, journal: Journal) -> list[str]:
        """Append the next point to the journal; the ids of its trials, one per seed. Empty: there is no further point.

        Where several points of the space resolve to the same trial, the space may be smaller than expected. The end of
        the search is then appended to the journal.
        """
        record = journal.record
        if record.to_propose:
            journal.catch_up()  # `sweeps cancel` may have ended the search
        if not record.to_propose:
            return []
        trials = self.next_point(record)[: record.to_propose]
        with journal.transaction():
            for trial in trials:
                journal.append(TrialProposed(trial))
            if not trials:
                journal.append(SearchEnded(len(record.trials)))
        return [t.trial_id for t in trials]

    def next_point(self, record: SweepRecord) -> list[PlannedTrial]:
        """The trials of a point that has not been tried; empty: there is none."""
        for point in self._suggestions(record):
            trials = [resolve(self._cfg, point, seed) for seed in self._cfg.search.seeds]
            if trials[0].trial_id not in record.trials:
                return trials
        return []

    def study(self, record: SweepRecord) -> optuna.Study:
        """The study with the results so far.

        Running points are in the state RUNNING: the sampler assumes poor results for them ("constant liar") and
        proposes points elsewhere.
        """
        ended = self._update(record)
        wanted = self._numbers_for_study()
        if self._study is None or wanted[: len(self._study_ids)] != list(self._study_ids):
            self._study, self._study_ids = _empty_study(), {}
        storage = self._study._storage
        for number in sorted(ended & self._study_ids.keys()):
            end, study_id = _as_optuna(self._space, self._points[number]), self._study_ids[number]
            for completions, accuracy in end.intermediate_values.items():
                storage.set_trial_intermediate_value(study_id, completions, accuracy)
            storage.set_trial_state_values(study_id, end.state, end.values)
        for number in wanted[len(self._study_ids) :]:
            new = _as_optuna(self._space, self._points[number])
            self._study_ids[number] = storage.create_new_trial(self._study._study_id, new)
        return self._study

    def _update(self, record: SweepRecord) -> set[int]:
        """Add the record's new trials; the numbers of the points that have ended since the last call."""
        for trial in itertools.islice(record.trials.values(), self._known_trials, None):
            key = _point_key(trial)
            if key not in self._by_point:
                self._by_point[key] = []
                self._running.add(len(self._points))
                self._points.append(self._by_point[key])
            self._by_point[key].append(trial)
        self._known_trials = len(record.trials)
        ended = {n for n in self._running if not any(t.state in UNFINISHED for t in self._points[n])}
        self._running -= ended
        for number in ended:
            value = objective(self._points[number])
            if value is not None:
                self._objectives[number] = value
        return ended

    def _numbers_for_study(self) -> list[int]:
        """The points that the study should have, in order."""
        newest = max(0, len(self._points) // NEWEST_POINTS - 1) * NEWEST_POINTS
        older = (n for n in self._objectives if n < newest)
        best = heapq.nlargest(BEST_POINTS, older, key=lambda n: (self._objectives[n], -n)) if newest else []
        return sorted({*best, *(n for n in self._running if n < newest)}) + list(range(newest, len(self._points)))

    def _suggestions(self, record: SweepRecord) -> Iterator[dict[str, Any]]:
        from optuna.trial import TrialState as State

        for attempt in range(MAX_TRIES):
            study = self.study(record)
            study.sampler = _sampler(self._cfg, f"{self._cfg.search.sampler_seed}:{len(self._points)}:{attempt}")
            trial = study.ask()
            point: dict[str, Any] = {}
            for axis in self._space:
                if axis.active(point):
                    point[axis.key] = _suggest(trial, axis)
            study.tell(trial, state=State.FAIL)  # its result reaches the study through the journal
            yield point
        for _, point in zip(range(MAX_DRAWS), draws(self._space, self._cfg.search.sampler_seed), strict=False):
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
    """A point's accuracy at the last evaluation, the mean over its completed trials; None: no trial completed."""
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
    intermediate: dict[int, float] = {}
    if states & UNFINISHED:
        state = State.RUNNING
    elif TrialState.PRUNED in states:
        state, intermediate = State.PRUNED, _mean_curve(trials)
    else:
        value = objective(trials)
        state = State.FAIL if value is None else State.COMPLETE
    return create_trial(
        state=state,
        value=value,
        params={a.key: a.choices.index(point[a.key]) if a.choices else point[a.key] for a in active},
        distributions={a.key: _distribution(a) for a in active},
        intermediate_values=intermediate,
    )


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.choices:
        return CategoricalDistribution(range(len(axis.choices)))
    if axis.whole:
        return IntDistribution(*_whole_ends(axis), log=axis.log, step=int(axis.step or 1))
    return FloatDistribution(*_ends(axis), log=axis.log, step=axis.step)


def _ends(axis: Axis) -> tuple[float, float]:
    """The lowest and the highest value of the axis that lie on its steps."""
    return axis.low, axis.high if axis.step is None else axis.number(axis.low + axis.steps * axis.step)


def _whole_ends(axis: Axis) -> tuple[int, int]:
    low, high = _ends(axis)
    return int(low), int(high)


def _mean_curve(trials: Sequence[TrialRecord]) -> dict[int, float]:
    """Mean accuracy of a point's trials by completions, at evaluations that all of them have. Without the one at 0."""
    curves = [dict(curve(t)) for t in trials]
    shared = set(curves[0]).intersection(*curves[1:]) - {0}
    return {completions: statistics.fmean(c[completions] for c in curves) for completions in sorted(shared)}


def points_of(record: SweepRecord) -> list[list[TrialRecord]]:
    """The trials by point, in the order in which the points were proposed."""
    found: dict[str, list[TrialRecord]] = {}
    for trial in record.trials.values():
        found.setdefault(_point_key(trial), []).append(trial)
    return list(found.values())


def _point_key(trial: TrialRecord) -> str:
    return repr(sorted(trial.planned.point.items()))
