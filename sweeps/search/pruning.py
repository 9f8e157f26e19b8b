"""Which trials end early: judged at an evaluation on their way, against what others came to with as many completions.

From what the journal knows to a reason, or none. The driver writes the decision down as the command that it is, before
the trainer hears it, so a restart finds the same trials ended.

Two trials are compared at equal *completions* seen (steps x prompts_per_step x group_size), not at equal steps: of two
batch sizes, the larger has paid for more at the same step, and what is asked is which did more with what it paid. Where
evaluations do not fall on the same number, the accuracy there is read off the line between two of them. Trials are
compared within a seed: they saw the same questions in the same order, and a point's repeats do not push each other out.

With few evaluation questions differences are noise: the 95 % interval of an accuracy of 0.5 over 64 questions is 0.12
wide to either side. `search.pruning_min_trials` and the rules' own keys say how much is ended on how little.
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
"""Accuracy by completions seen, in order; the first is before training, at 0."""

Reached = Callable[[int], Sequence[float]]
"""What the trials that have come to a number of completions had there, in ascending order; the judged one included."""


class Pruner:
    """The rule of one sweep. It hears each evaluation once, and keeps by seed what is asked at each: what a decision
    costs does not grow with the trials."""

    def __init__(self, cfg: SweepConfig, record: SweepRecord) -> None:
        self._search, self._steps = cfg.search, cfg.stage.steps
        self._first = 0
        self._standings: dict[int, Standings] = {}
        if self._search.pruning == "none":
            return
        self._first = self._search.pruning_warmup_completions or first_evaluation(cfg)
        for trial in record.trials.values():
            self.hear(trial)

    def hear(self, trial: TrialRecord) -> None:
        """Take in the evaluations of a trial that are new."""
        if self._search.pruning != "none":
            self._standings.setdefault(trial.planned.seed, Standings()).hear(trial.trial_id, curve(trial))

    def reason(self, trial: TrialRecord, step: int) -> str | None:
        """Why a trial ends after its evaluation at `step`, which was heard; None: it goes on.

        An evaluation that is done again after a restore is judged only if it is still the newest: those before it have
        been judged.
        """
        search = self._search
        if search.pruning == "none" or not 0 < step < self._steps:
            return None
        own = curve(trial)
        if not own or own[-1][0] != step * completions_per_step(trial):
            return None
        reached = self._standings[trial.planned.seed].at
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


def ends_nothing(cfg: SweepConfig, trials: Sequence[PlannedTrial]) -> str | None:
    """Why the rule cannot end any of these trials; None: it can."""
    search, every = cfg.search, cfg.evaluation.every_steps
    if search.pruning == "none" or not trials:
        return None
    most = max(Counter(trial.seed for trial in trials).values())
    if most < search.pruning_min_trials:
        return (
            f"search.pruning={search.pruning} ends nothing here: it waits for search.pruning_min_trials="
            f"{search.pruning_min_trials} trials of one seed, and there are {most}"
        )
    first = search.pruning_warmup_completions or first_evaluation(cfg)
    last = (cfg.stage.steps - 1) // every * every * max(t.prompts_per_step * t.group_size for t in trials)
    if last < first:
        return (
            f"search.pruning={search.pruning} ends nothing here: it begins at search.pruning_warmup_completions="
            f"{first}, and the last evaluation on a trial's way comes at {last}"
        )
    return None


class Standings:
    """What trials came to, at those numbers of completions that somebody has asked for."""

    def __init__(self) -> None:
        self._curves: dict[str, list[tuple[int, float]]] = {}
        self._places: list[int] = []
        self._values: dict[int, list[float]] = {}

    def hear(self, trial_id: str, curve: Curve) -> None:
        """The evaluations of a trial, those that were heard before included."""
        mine = self._curves.setdefault(trial_id, [])
        for number in range(len(mine), len(curve)):
            mine.append(curve[number])
            before = mine[-2][0] if number else -1
            first = bisect.bisect_right(self._places, before)
            for place in self._places[first : bisect.bisect_right(self._places, mine[-1][0])]:
                self._put(place, mine)

    def at(self, completions: int) -> Sequence[float]:
        """As `Reached`."""
        if completions not in self._values:
            bisect.insort(self._places, completions)
            self._values[completions] = []
            for curve in self._curves.values():
                self._put(completions, curve)
        return self._values[completions]

    def _put(self, place: int, curve: Curve) -> None:
        value = accuracy_at(curve, place)
        if value is not None:
            bisect.insort(self._values[place], value)


def asha(own: Curve, reached: Reached, *, first: int, factor: int, min_trials: int) -> str | None:
    """Asynchronous successive halving, in the variant that stops (L. Li et al. 2020, arXiv:1810.05934, and Optuna's
    `SuccessiveHalvingPruner`).

    Rungs lie at `first`, `first` x factor, `first` x factor^2 ... completions. Of the trials that have reached a rung
    so far, this one included, the best 1 in `factor` goes on, at least one; whoever comes first is judged by few. A
    tie goes on.
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
                    f"accuracy {value:.3f} at {rung} completions, and the best {kept} of {len(there)} have "
                    f"{there[-kept]:.3f} or more"
                )
        rung *= factor
    return None


def median(own: Curve, reached: Reached, *, first: int, percentile: float, min_trials: int) -> str | None:
    """The median rule (D. Golovin et al. 2017, "Google Vizier", and Optuna's `PercentilePruner`).

    A trial ends if its best accuracy so far is below this percentile of what the others had at the same number of
    completions. All that came so far count, ended ones too, as in Syne Tune: many may run at once from the start.
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
        f"best accuracy {best:.3f} up to {now} completions, and percentile {percentile:g} of {len(there) - 1} others "
        f"there is {bar:.3f}"
    )


def curve(trial: TrialRecord) -> list[tuple[int, float]]:
    """Every evaluation of a trial."""
    size = completions_per_step(trial)
    return [(a.step * size, a.acc) for a in trial.summary.accuracies if a.acc is not None]


def accuracy_at(curve: Curve, completions: int) -> float | None:
    """Accuracy at a number of completions, on the line between the evaluations around it; None: not come that far.

    Where there was an evaluation it is that one's to the last bit: what is equal must be found equal.
    """
    for x, y in curve:
        if x == completions:
            return y
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 < completions < x1:
            return y0 + (y1 - y0) * (completions - x0) / (x1 - x0)
    return None


def percentile_of(ranked: Sequence[float], percentile: float) -> float:
    """Of values in ascending order; linear between the ranks, as numpy's default."""
    place = (len(ranked) - 1) * percentile / 100
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (place - below)


def first_evaluation(cfg: SweepConfig) -> int:
    """Completions by which every batch of the space has had an evaluation on its way: the largest one's first."""
    ends = {axis.key: axis.extremes for axis in axes(cfg)}
    return cfg.evaluation.every_steps * max(ends["prompts_per_step"]) * max(ends["group_size"])


def completions_per_step(trial: TrialRecord) -> int:
    return trial.planned.prompts_per_step * trial.planned.group_size
