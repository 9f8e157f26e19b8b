"""Rent or not: compare one's own card with rented machines, at equal steps and at equal completions, and decide.

All costs of an option are in its money: bring-up, environment, download, storage, egress, the wait until release. A run
may collapse: then it is paid for and has to be repeated. The decision is a pure function of what is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cost.forecast.lease_cost import MoneyForecast, prepaid_balance_pico
from cost.forecast.sampling import ForecastError, Interval
from cost.money import Money, money_text

_NS_PER_HOUR = 3_600 * 10**9
_WORDS = {1: "one", 2: "two", 4: "four", 8: "eight", 16: "sixteen"}


@dataclass(frozen=True)
class Outcome:
    """Wall-clock time and all-in money of the whole work on one machine."""

    wall_ns: Interval
    money: MoneyForecast


@dataclass(frozen=True)
class RentOption:
    """One machine. `impossible` says why the work cannot be done there at all; its outcomes are then not needed."""

    name: str
    cards: int
    rented: bool
    equal_steps: Outcome | None = None
    equal_completions: Outcome | None = None
    impossible: str = ""
    prepaid: bool = False

    def __post_init__(self) -> None:
        if not self.impossible and (self.equal_steps is None or self.equal_completions is None):
            raise ForecastError(
                f"{self.name}: an option that is possible needs an outcome at equal steps and completions"
            )


@dataclass(frozen=True)
class RentTerms:
    """What the user accepts. Money is in one currency; convert options before."""

    currency: str
    budget_pico: int | None = None
    deadline_ns: int | None = None
    collapse_probability: Fraction = Fraction(0)
    """That a run teaches nothing and has to be repeated."""
    waited_hour_pico: int = 0
    """What an hour of waiting is worth. 0: the cheapest machine is the best, however long it takes."""

    def __post_init__(self) -> None:
        if not 0 <= self.collapse_probability < 1:
            raise ForecastError(f"collapse_probability must be at least 0 and below 1, not {self.collapse_probability}")
        if self.waited_hour_pico < 0 or (self.budget_pico is not None and self.budget_pico < 0):
            raise ForecastError("a budget and the worth of an hour must not be negative")

    @property
    def runs_at_p90(self) -> int:
        """Runs to pay for so that at least one of them does not collapse, with 90 %."""
        p = float(self.collapse_probability)
        return 1 if p <= 0.1 else math.ceil(math.log(0.1) / math.log(p) - 1e-9)


@dataclass(frozen=True)
class RentVerdict:
    """`chosen` is the name of an option, or None where nothing is possible within the terms."""

    text: str
    chosen: str | None


@dataclass(frozen=True)
class RentDecision:
    """The sentence to print, the verdict for either comparison, reasons, and balances of prepaid providers."""

    sentence: str
    equal_steps: RentVerdict
    equal_completions: RentVerdict
    reasons: tuple[str, ...]
    balances_pico: tuple[tuple[str, int], ...]


def decide(options: Sequence[RentOption], terms: RentTerms) -> RentDecision:
    """Choose among one's own card (at most one option that is not rented) and rented machines.

    An option counts if it is possible, its P90 fits the budget with the runs that a collapse costs, and its P90 meets
    the deadline. Of these the one with the least expected money, plus what the wait is worth, is chosen; one's own card
    wins a tie. The budget limits rented machines only: electricity of an own card is imputed, not billed.
    """
    if sum(not option.rented for option in options) > 1:
        raise ForecastError("at most one option can be the own card")
    for option in options:
        for outcome in (option.equal_steps, option.equal_completions):
            if outcome is not None and outcome.money.currency != terms.currency:
                raise ForecastError(
                    f"{option.name} is priced in {outcome.money.currency}, the terms are in {terms.currency}"
                )
    steps = _verdict(options, terms, "equal_steps")
    completions = _verdict(options, terms, "equal_completions")
    if steps.text == completions.text:
        sentence = f"{steps.text[0].upper()}{steps.text[1:]}."
    else:
        sentence = f"At equal steps: {steps.text}. At equal completions: {completions.text}."
    runs = terms.runs_at_p90
    balances = tuple(
        (
            o.name,
            max(prepaid_balance_pico(x.money, runs) for x in (o.equal_steps, o.equal_completions) if x is not None),
        )
        for o in options
        if o.prepaid and not o.impossible
    )
    reasons = [_row(option, terms) for option in options]
    if runs > 1:
        share = f"{float(terms.collapse_probability):.0%}"
        reasons.append(
            f"a collapse has a probability of {share}: money for {runs} runs is needed to be 90 % sure of one"
        )
    reasons += [f"{name}: a balance of {_money(pico, terms)} is needed at P90" for name, pico in balances]
    return RentDecision(sentence, steps, completions, tuple(reasons), balances)


def equal_completions_steps(steps: int, completions_per_step: int, other_completions_per_step: int) -> int:
    """Steps of the other size that sample at least as many completions."""
    if min(steps, completions_per_step, other_completions_per_step) < 1:
        raise ForecastError("steps and completions per step must each be at least 1")
    return -(-steps * completions_per_step // other_completions_per_step)


def _verdict(options: Sequence[RentOption], terms: RentTerms, comparison: str) -> RentVerdict:
    candidates = []
    for place, option in enumerate(options):
        outcome: Outcome | None = getattr(option, comparison)
        if outcome is None or _refusal(option, outcome, terms):
            continue
        once = outcome.money.total.p50 + Fraction(terms.waited_hour_pico * outcome.wall_ns.p50, _NS_PER_HOUR)
        expected = once / (1 - terms.collapse_probability)
        candidates.append((expected, option.rented, option.cards, place, option))
    if not candidates:
        return RentVerdict("do not rent, nothing fits the terms", None)
    chosen: RentOption = min(candidates, key=lambda c: c[:4])[4]
    if not chosen.rented:
        return RentVerdict("do not rent", chosen.name)
    count = _WORDS.get(chosen.cards, str(chosen.cards))
    return RentVerdict(f"rent {count} {'card' if chosen.cards == 1 else 'cards'} ({chosen.name})", chosen.name)


def _refusal(option: RentOption, outcome: Outcome, terms: RentTerms) -> str:
    """Why an option is not accepted, or an empty text."""
    if option.impossible:
        return option.impossible
    needed = outcome.money.total.p90 * terms.runs_at_p90
    if option.rented and terms.budget_pico is not None and needed > terms.budget_pico:
        return f"{_money(needed, terms)} at P90 is over the budget of {_money(terms.budget_pico, terms)}"
    if terms.deadline_ns is not None and outcome.wall_ns.p90 > terms.deadline_ns:
        return f"{_hours(outcome.wall_ns.p90)} at P90 is after the deadline of {_hours(terms.deadline_ns)}"
    return ""


def _row(option: RentOption, terms: RentTerms) -> str:
    if option.impossible or option.equal_steps is None or option.equal_completions is None:
        return f"{option.name}: impossible, {option.impossible}"
    parts = []
    for label, outcome in (("equal steps", option.equal_steps), ("equal completions", option.equal_completions)):
        wall, money = outcome.wall_ns, outcome.money.total
        text = f"{label} {_hours(wall.p50)} (P90 {_hours(wall.p90)}), {_money(money.p50, terms)}"
        text += f" (P90 {_money(money.p90, terms)})"
        refusal = _refusal(option, outcome, terms)
        parts.append(f"{text}, refused: {refusal}" if refusal else text)
    return f"{option.name}: {'; '.join(parts)}"


def _hours(ns: int) -> str:
    hours = ns / _NS_PER_HOUR
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def _money(pico: int, terms: RentTerms) -> str:
    return money_text(Money(pico, terms.currency))
