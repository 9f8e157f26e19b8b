"""How to divide cards between sampling and training: seconds per step of each placement, from measured phases.

colocate: every card samples, then trains. disaggregated: some sample while the others wait, then the others train.
one_step_off: training on one batch while the next is sampled. fully_async: sampling never waits for its longest
completion either. Whether a role fits its cards is the caller's knowledge: pass the fewest cards of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cost.forecast.hardware import Hardware, ModelSize
from cost.forecast.priors import DEFAULT_PRIORS, Basis, Priors
from cost.forecast.sampling import ForecastError, Interval, interval, normal, total_of
from cost.forecast.scaling import Size, phases_at
from cost.forecast.step_profile import StepProfile

if TYPE_CHECKING:
    from cost.forecast.sampling import Draws

Placement = Literal["colocate", "disaggregated", "one_step_off", "fully_async"]
_SAMPLING = ("rollout", "reward")
_SYNC = ("sync",)


@dataclass(frozen=True)
class CardSplit:
    """One way to use the cards. With `colocate` both roles have all of them."""

    placement: Placement
    rollout_cards: int
    train_cards: int
    step_ns: Interval
    idle_share: float
    """Share of the card-time of a median step in which a card waits for the other role."""
    basis: Basis


def card_splits(
    profile: StepProfile,
    completions: int,
    cards: int,
    *,
    hardware: Hardware | None = None,
    measured_on: Hardware | None = None,
    model: ModelSize | None = None,
    fewest_rollout_cards: int = 1,
    fewest_train_cards: int = 1,
    priors: Priors = DEFAULT_PRIORS,
) -> tuple[CardSplit, ...]:
    """The best split of each placement, shortest median step first. Raises ForecastError without measured phases.

    The profile must be of a colocated synchronous run, in which each phase has all of its cards.
    """
    if profile.asynchronous:
        raise ForecastError("phases of an asynchronous run overlap: measure a colocated run to compare placements")
    if not {"rollout", "train"} <= set(profile.phases):
        raise ForecastError(f"rollout and train seconds are needed, the profile has {', '.join(profile.phases)}")

    def roles(at: int) -> tuple[Draws, Draws, Draws]:
        scaled = phases_at(
            profile, Size(completions, at), priors, hardware=hardware, measured_on=measured_on, model=model
        )
        rollout = total_of(s for p, s in scaled.seconds.items() if p in _SAMPLING)
        sync = total_of(s for p, s in scaled.seconds.items() if p in _SYNC)
        train = total_of(s for p, s in scaled.seconds.items() if p not in (*_SAMPLING, *_SYNC))
        return rollout, train, sync

    by_cards = {n: roles(n) for n in range(1, cards + 1)}
    measured = all(level.cards == cards and level.completions == completions for level in profile.levels)
    rollout, train, sync = by_cards[cards]
    colocated: Basis = profile.basis if measured else "scaled"
    found = [CardSplit("colocate", cards, cards, interval(rollout + train + sync), 0.0, colocated)]
    for placement in ("disaggregated", "one_step_off", "fully_async"):
        options = [
            _split(placement, n, cards - n, by_cards, sync, priors)
            for n in range(fewest_rollout_cards, cards - fewest_train_cards + 1)
        ]
        found += [min(options, key=lambda split: split.step_ns.p50)] if options else []
    return tuple(sorted(found, key=lambda split: split.step_ns.p50))


def step_seconds(placement: Placement, rollout: Draws, train: Draws, sync: Draws, priors: Priors) -> Draws:
    """Seconds of a step whose roles take `rollout` and `train` on their own cards."""
    import numpy as np

    if placement in ("colocate", "disaggregated"):
        return rollout + train + sync
    if placement == "fully_async":
        rollout = (
            rollout * priors.async_rollout_share * np.exp(priors.async_rollout_log_error * normal("async rollout"))
        )
    return np.maximum(rollout, train) + sync


def asynchronous_share(priors: Priors) -> Draws:
    """Factor from a synchronous to an asynchronous step on the same cards, where its phases are not known."""
    import numpy as np

    return priors.async_step_share * np.exp(priors.async_step_log_error * normal("asynchronous"))


def _split(
    placement: Placement,
    rollout_cards: int,
    train_cards: int,
    by_cards: dict[int, tuple[Draws, Draws, Draws]],
    sync: Draws,
    priors: Priors,
) -> CardSplit:
    rollout, train = by_cards[rollout_cards][0], by_cards[train_cards][1]
    step = step_seconds(placement, rollout, train, sync, priors)
    busy = float((rollout_cards * rollout + train_cards * train).mean())
    whole = float((rollout_cards + train_cards) * step.mean())
    return CardSplit(placement, rollout_cards, train_cards, interval(step), max(0.0, 1.0 - busy / whole), "scaled")
