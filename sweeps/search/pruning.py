"""Decides which trials end early (are pruned): each evaluation during training is compared with those of other trials.

Pure: from the journal's record to a reason, or None. The driver commits the decision before the trainer receives it, so
a restarted driver finds the same trials pruned.

Trials are compared at equal *completions* (steps x prompts_per_step x group_size), not at equal steps: of two batch
sizes, the larger one has cost more at the same step, and the comparison asks what each trial has learnt for its cost.
Where a trial has no evaluation at a number of completions, its accuracy there is interpolated linearly. Only trials of
the same seed are compared: they train on the same questions in the same order, and the repeats of one point do not
compete with each other.

Few evaluation questions make noisy comparisons: the 95 % interval of an accuracy of 0.5 over 64 questions is +-0.12.
`search.pruning_min_trials` and the keys of each rule set how many trials are pruned on how much evidence.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from sweeps.config.axes import axes
from sweeps.config.types import SweepConfig
from sweeps.journal.journal import SweepRecord, TrialRecord
from sweeps.planning.plan import PlannedTrial

Curve = Sequence[tuple[int, float]]
"""(completions, accuracy) of a trial's evaluations, in order; the first is before training, at 0."""

Reached = Callable[[int], Sequence[float]]
"""Maps completions to the accuracies that trials had there, in ascending order, the judged trial's own included."""


class Pruner:
    """The pruning rule of one sweep. The cost of a decision does not grow with the number of trials."""

    def __init__(self, cfg: SweepConfig, record: SweepRecord) -> None:
        self._search, self._steps = cfg.search, cfg.stage.steps
        self._first = 0
        self._by_seed: dict[int, AccuracyTable] = {}
        if self._search.pruning == "none":
            return
        self._first = self._search.pruning_warmup_completions or first_evaluation(cfg)
        for trial in record.trials.values():
            self.add(trial)

    def add(self, trial: TrialRecord) -> None:
        """Add the trial's new evaluations to the comparison."""
        if self._search.pruning != "none":
            self._by_seed.setdefault(trial.planned.seed, AccuracyTable()).add(trial.trial_id, curve(trial))

    def reason(self, trial: TrialRecord, step: int) -> str | None:
        """Why a trial is pruned after its evaluation at `step`; None: it continues. Call `add` first.

        An evaluation that is repeated after a restore is judged only if it is the trial's newest: the ones before it
        have been judged already.
        """
        search = self._search
        if search.pruning == "none" or not 0 < step < self._steps:
            return None
        own = curve(trial)
        if not own or own[-1][0] != step * completions_per_step(trial):
            return None
        reached = self._by_seed[trial.planned.seed].at
        if search.pruning == "asha":
            return asha(
                own, reached, first=self._first, factor=search.pruning_factor, min_trials=search.pruning_min_trials
            )
        return median(
            own,
            reached,
            first=self._first,
            percentile=search.pruning_percentile,
            min_trials=search.pruning_min_trials,
        )


def why_never_pruning(cfg: SweepConfig, trials: Sequence[PlannedTrial]) -> str | None:
    """Why the rule cannot prune any of these trials; None: it can."""
    search, every = cfg.search, cfg.evaluation.every_steps
    if search.pruning == "none" or not trials:
        return None
    most = max(Counter(trial.seed for trial in trials).values())
    if most < search.pruning_min_trials:
        return (
            f"search.pruning={search.pruning} has no effect: it needs search.pruning_min_trials="
            f"{search.pruning_min_trials} trials of one seed, and there are {most}"
        )
    first = search.pruning_warmup_completions or first_evaluation(cfg)
    last = (cfg.stage.steps - 1) // every * every * max(t.prompts_per_step * t.group_size for t in trials)
    if last < first:
        return (
            f"search.pruning={search.pruning} has no effect: it begins at search.pruning_warmup_completions={first}, "
            f"and the last evaluation before the end of a trial is at {last}"
        )
    return None


class AccuracyTable:
    """The accuracies of the trials of one seed, at each number of completions that a decision has asked for."""

    def __init__(self) -> None:
        self._curves: dict[str, list[tuple[int, float]]] = {}
        self._columns: list[int] = []
        """The numbers of completions asked for so far, in order."""
        self._values: dict[int, list[float]] = {}

    def add(self, trial_id: str, curve: Curve) -> None:
        """Take the new evaluations of a trial from its whole curve."""
        known = self._curves.setdefault(trial_id, [])
        for number in range(len(known), len(curve)):
            known.append(curve[number])
            before = known[-2][0] if number else -1
            first = bisect.bisect_right(self._columns, before)
            for completions in self._columns[first : bisect.bisect_right(self._columns, known[-1][0])]:
                self._insert(completions, known)

    def at(self, completions: int) -> Sequence[float]:
        """See `Reached`."""
        if completions not in self._values:
            bisect.insort(self._columns, completions)
            self._values[completions] = []
            for curve in self._curves.values():
                self._insert(completions, curve)
        return self._values[completions]

    def _insert(self, completions: int, curve: Curve) -> None:
        value = accuracy_at(curve, completions)
        if value is not None:
            bisect.insort(self._values[completions], value)


def asha(own: Curve, reached: Reached, *, first: int, factor: int, min_trials: int) -> str | None:
    """Asynchronous successive halving, in the variant that stops trials (L. Li et al. 2020, arXiv:1810.05934, and
    Optuna's `SuccessiveHalvingPruner`).

    Rungs are at `first`, `first` x factor, `first` x factor^2 ... completions. Of the trials that have reached a rung
    so far, this one included, the best 1 in `factor` continues, and at least one. The first trials at a rung are
    compared with few others. A tie continues.
    """
    before, now = (own[-2][0] if len(own) > 1 else 0), own[-1][0]
    rung = first
    while rung <= now:
        value = accuracy_at(own, rung)
        if rung > before and value is not None:
            there = reached(rung)
            kept = max(1, len(there) // factor)
            if len(there) >= min_trials and value < there[-kept]:
                return (
                    f"accuracy {value:.3f} at {rung} completions, while the best {kept} of {len(there)} have "
                    f"{there[-kept]:.3f} or more"
                )
        rung *= factor
    return None


def median(own: Curve, reached: Reached, *, first: int, percentile: float, min_trials: int) -> str | None:
    """The median rule (D. Golovin et al. 2017, "Google Vizier", and Optuna's `PercentilePruner`).

    A trial is pruned if its best accuracy so far is below this percentile of the other trials' accuracies at the same
    number of completions. Running and ended trials both count, as in Syne Tune, since many may run at once.
    """
    now, latest = own[-1]
    there = reached(now)
    best = max(accuracy for completions, accuracy in own if completions > 0)
    if now < first or len(there) < max(min_trials, 2):
        return None
    mine = bisect.bisect_left(there, latest)
    bar = percentile_of([*there[:mine], *there[mine + 1 :]], percentile)
    if best >= bar:
        return None
    return (
        f"best accuracy {best:.3f} up to {now} completions, while percentile {percentile:g} of {len(there) - 1} other "
        f"trials there is {bar:.3f}"
    )


def curve(trial: TrialRecord) -> list[tuple[int, float]]:
    """Every evaluation of a trial."""
    size = completions_per_step(trial)
    return [(a.step * size, a.acc) for a in trial.summary.accuracies if a.acc is not None]


def accuracy_at(curve: Curve, completions: int) -> float | None:
    """The accuracy at a number of completions, interpolated linearly; None beyond the last evaluation.

    At an evaluation the value is exact, without interpolation: equal accuracies must compare as equal.
    """
    for x, y in curve:
        if x == completions:
            return y
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 < completions < x1:
            return y0 + (y1 - y0) * (completions - x0) / (x1 - x0)
    return None


def percentile_of(ranked: Sequence[float], percentile: float) -> float:
    """Of values in ascending order; linear between ranks, like numpy's default."""
    place = (len(ranked) - 1) * percentile / 100
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def first_evaluation(cfg: SweepConfig) -> int:
    """The completions of the largest batch of the search space at its first evaluation during training."""
    ends = {axis.key: axis.extremes for axis in axes(cfg)}
    return cfg.evaluation.every_steps * max(ends["prompts_per_step"]) * max(ends["group_size"])


def completions_per_step(trial: TrialRecord) -> int:
    return trial.planned.prompts_per_step * trial.planned.group_size
