"""Which trials end early: judged at an evaluation on their way, against what others came to with as many completions.

Pure: from what the journal knows to a reason, or none. The driver writes the decision down as the command that it is,
before the trainer hears it, so a restart finds the same trials ended.

Two trials are compared at equal *completions* seen (steps x prompts_per_step x group_size), not at equal steps: of two
batch sizes, the larger has paid for more at the same step, and what is asked is which did more with what it paid. Where
evaluations do not fall on the same number, the accuracy there is read off the line between two of them. Trials are
compared within a seed: they saw the same questions in the same order, and a point's repeats do not push each other out.

With few evaluation questions differences are noise: the 95 % interval of an accuracy of 0.5 over 64 questions is 0.12
wide to either side. `search.pruning_min_trials` and the rules' own keys say how much is ended on how little.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sweeps.config_types import SweepConfig
from sweeps.journal import SweepRecord, TrialRecord
from sweeps.search.space import axes

Curve = Sequence[tuple[int, float]]
"""Accuracy by completions seen, in order; the first is before training, at 0."""


def prune_reason(record: SweepRecord, trial: TrialRecord, step: int, cfg: SweepConfig) -> str | None:
    """Why a trial ends after its evaluation at `step`; None: it goes on.

    An evaluation that is done again after a restore is judged only if it is still the newest: those before it have
    been judged.
    """
    search = cfg.search
    if search.pruning == "none" or not 0 < step < cfg.stage.steps:
        return None
    own = curve(trial)
    if not own or own[-1][0] != step * completions_per_step(trial):
        return None
    rivals = [t for t in record.trials.values() if t.planned.seed == trial.planned.seed and t is not trial]
    others = [c for t in rivals if (c := curve(t))]
    first = search.pruning_warmup_completions or first_evaluation(cfg)
    if search.pruning == "asha":
        return asha(own, others, first=first, factor=search.pruning_factor, min_trials=search.pruning_min_trials)
    return median(own, others, first=first, percentile=search.pruning_percentile, min_trials=search.pruning_min_trials)


def asha(own: Curve, others: Sequence[Curve], *, first: int, factor: int, min_trials: int) -> str | None:
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
            reached = sorted([value, *_known(others, rung)], reverse=True)
            kept = max(1, len(reached) // factor)
            if len(reached) >= min_trials and value < reached[kept - 1]:
                return (
                    f"accuracy {value:.3f} at {rung} completions, and the best {kept} of {len(reached)} have "
                    f"{reached[kept - 1]:.3f} or more"
                )
        rung *= factor
    return None


def median(own: Curve, others: Sequence[Curve], *, first: int, percentile: float, min_trials: int) -> str | None:
    """The median rule (D. Golovin et al. 2017, "Google Vizier", and Optuna's `PercentilePruner`).

    A trial ends if its best accuracy so far is below this percentile of what the others had at the same number of
    completions. All that came so far count, ended ones too, as in Syne Tune: many may run at once from the start.
    """
    now = own[-1][0]
    known = _known(others, now)
    best = max(accuracy for completions, accuracy in own if completions > 0)
    if now < first or len(known) + 1 < min_trials:
        return None
    bar = percentile_of(known, percentile)
    if best >= bar:
        return None
    return (
        f"best accuracy {best:.3f} up to {now} completions, and percentile {percentile:g} of {len(known)} others there "
        f"is {bar:.3f}"
    )


def curve(trial: TrialRecord) -> list[tuple[int, float]]:
    """Every evaluation of a trial."""
    size = completions_per_step(trial)
    return [(a.step * size, a.acc) for a in trial.summary.accuracies if a.acc is not None]


def accuracy_at(curve: Curve, completions: int) -> float | None:
    """Accuracy at a number of completions, on the line between the evaluations around it; None: not come that far."""
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= completions <= x1:
            return y0 + (y1 - y0) * (completions - x0) / (x1 - x0)
    return next((y for x, y in curve if x == completions), None)


def percentile_of(values: Sequence[float], percentile: float) -> float:
    """Linear between the ranks, as numpy's default."""
    ranked = sorted(values)
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


def _known(others: Sequence[Curve], completions: int) -> list[float]:
    return [value for c in others if (value := accuracy_at(c, completions)) is not None]
