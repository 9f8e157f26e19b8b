"""What Optuna's TPE sampler proposes next, from what the journal knows of earlier trials.

Optuna is a sampler here and nothing more: its study lives in memory, is rebuilt from the journal for every proposal,
and is thrown away. A proposal is a function of the search space, the sampler's seed and the journal so far. It is
written down before its trial starts, so that a resume finds it, and asks for no more than are left.
"""

from __future__ import annotations

import hashlib
import statistics
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rl.codec import to_json
from sweeps.config_types import SweepConfig
from sweeps.journal import UNFINISHED, Journal, SweepRecord, TrialRecord, TrialState
from sweeps.plan import PlannedTrial, resolve
from sweeps.pruning import curve
from sweeps.search.space import Axis, axes, draws

if TYPE_CHECKING:
    import optuna

TRIES = 20
"""So often the sampler is asked for a point that is not there yet; then one is drawn at random."""
DRAWS = 2_000


def propose(cfg: SweepConfig, journal: Journal) -> list[str]:
    """Write down the search's next point; the ids of its trials, one a seed. Empty: there is nothing more to propose.

    A space may turn out smaller than it seemed when several of its points are the same trial: that the search has ended
    is then written down, too.
    """
    record = journal.record
    if record.to_propose:
        journal.catch_up()  # somebody may have ended the search
    if not record.to_propose:
        return []
    trials = next_point(cfg, record)[: record.to_propose]
    with journal.transaction():
        for trial in trials:
            journal.append("trial_planned", {"trial": to_json(trial)}, f"trial_planned:{trial.trial_id}")
        if not trials:
            journal.append("search_ended", {"trials": len(record.trials)}, f"search_ended:{len(record.trials)}")
    return [t.trial_id for t in trials]


def next_point(cfg: SweepConfig, record: SweepRecord) -> list[PlannedTrial]:
    """The trials of a point that no trial has been at; empty: there is none."""
    space, points = axes(cfg), points_of(record)
    for point in _suggested(cfg, space, points):
        trials = [resolve(cfg, point, seed) for seed in cfg.search.seeds]
        if trials[0].trial_id not in record.trials:
            return trials
    return []


def study(cfg: SweepConfig, space: Sequence[Axis], points: Sequence[Sequence[TrialRecord]], seed: int) -> optuna.Study:
    """Everything known so far, as Optuna sees it. Points that still run are RUNNING: the sampler takes them for poor
    (its "constant liar") and proposes elsewhere."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=cfg.search.startup_trials, constant_liar=True)
    made = optuna.create_study(direction="maximize", sampler=sampler)
    for trials in points:
        made.add_trial(_as_optuna(space, trials))
    return made


def objective(trials: Sequence[TrialRecord]) -> float | None:
    """What a point is worth: accuracy of the last evaluation, the mean over its completed repeats; None: unknown."""
    known = [t.summary.acc for t in trials if t.state is TrialState.COMPLETED and t.summary.acc is not None]
    return statistics.fmean(known) if known else None


def _suggested(cfg: SweepConfig, space: Sequence[Axis], points: Sequence[Sequence[TrialRecord]]) -> Iterator[Any]:
    for attempt in range(TRIES):
        text = f"{cfg.search.sampler_seed}:{len(points)}:{attempt}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
        trial = study(cfg, space, points, seed).ask()
        point: dict[str, Any] = {}
        for axis in space:
            if axis.active(point):
                point[axis.key] = _suggest(trial, axis)
        yield point
    for _, point in zip(range(DRAWS), draws(space, cfg.search.sampler_seed), strict=False):
        yield point


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
        found.setdefault(repr(sorted(trial.planned.point.items())), []).append(trial)
    return list(found.values())
