"""Published step times of the same work at several sizes, placements and cards, for benchmarks/forecast.py.

Each row of a set is predicted from the set's first row of the same framework. The priors come from the other sets.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cost.forecast.card_split import asynchronous_share, step_seconds
from cost.forecast.hardware import Hardware
from cost.forecast.priors import DEFAULT_PRIORS, WHOLE_STEP, Priors
from cost.forecast.sampling import DRAWS, Interval, interval, normal, total_of
from cost.forecast.scaling import Size, phases_at
from cost.forecast.step_profile import Level, StepProfile, Trend

if TYPE_CHECKING:
    from cost.forecast.sampling import Draws

CARDS = {
    "H100": Hardware("H100", 989.4, 3350.0, 80.0, 900.0),
    "H200": Hardware("H200", 989.4, 4800.0, 141.0, 900.0),
    "B200": Hardware("B200", 2250.0, 8000.0, 180.0, 1800.0),
    "A6000": Hardware("A6000", 154.8, 768.0, 48.0, 112.0),
    "A100": Hardware("A100", 312.0, 2039.0, 80.0, 600.0),
    "H20": Hardware("H20", 148.0, 4000.0, 96.0, 900.0),
}
"""Makers' data sheets: bf16 dense TFLOPS, memory GB/s and GiB, interconnect GB/s."""
SMALLEST_HALF_WORK = 0.3
"""For a phase that is in proportion to the completions."""
PUBLICATION_LOG_ERROR = 0.1
"""Printed step times of one set differ by software version, host and rounding, too."""


def read_rows(path: Path) -> list[dict[str, str]]:
    """A CSV file as mappings of text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float | None:
    """A cell as a number; None where it is empty or is no number."""
    try:
        return float(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class Published:
    """One printed step time: `work` names what is done, so that rows with the same are comparable."""

    pair: str
    row: str
    framework: str
    work: str
    card: str
    cards: int
    rollout_cards: int | None
    train_cards: int | None
    asynchronous: str
    """Empty for synchronous, else one_step_off, fully_async or async."""
    trainer_only: bool
    completions: int
    step: float
    phases: dict[str, float]
    disaggregated: bool


def published(data: Path) -> list[Published]:
    """Rows with step seconds (of the trainer, where nothing else runs)."""
    found = []
    for r in read_rows(data / "grpo_runs" / "published_pairs.csv"):
        trainer_only = r["regime"] == "trainer only"
        step, count = number(r["update_s"] if trainer_only else r["step_s"]), number(r["gpus"])
        if step is None or count is None:
            continue
        regime, cards = r["regime"], round(count)
        gen, logprob = number(r["gen_s"]), (number(r["old_logp_s"]) or 0.0) + (number(r["ref_s"]) or 0.0)
        update, wait = number(r["update_s"]), number(r["wait_or_other_s"]) or 0.0
        kind = _regime(regime)
        disaggregated = "disaggregated" in regime
        if trainer_only:
            phases = {"train": step}
        elif disaggregated and update:
            # The trainer's own account: it waits while the other cards sample.
            phases = {"rollout": wait or step - update, "train": update}
        elif gen and update and not kind:
            phases = {"rollout": gen, "train": logprob + update, "other": max(0.0, step - gen - logprob - update)}
        else:
            phases = {WHOLE_STEP: step}
        prompts, group = number(r["prompts"]), number(r["G"])
        completions = round((prompts or 512.0) * (group or 1.0))
        if trainer_only:
            # Work grows with the cards: the same per card.
            completions = 2 * cards
        work = "Megatron" if "Megatron" in regime else ""
        found.append(
            Published(
                r["pair_id"],
                r["row_id"],
                re.split(r"[ ,]", r["framework"])[0],
                work,
                r["gpu_type"],
                cards,
                round(value) if (value := number(r["gpus_rollout"])) else None,
                round(value) if (value := number(r["gpus_train"])) else None,
                kind,
                trainer_only,
                completions,
                step,
                phases,
                disaggregated,
            )
        )
    return found


def _regime(text: str) -> str:
    if "one-step" in text or "1-step" in text:
        return "one_step_off"
    if "fully async" in text:
        return "fully_async"
    return "async" if "async" in text or "-step off" in text else ""


def _profile_of(row: Published) -> StepProfile:
    """A profile of one printed mean: no spread, no trend, nothing outside of steps."""
    level = Level(row.completions, row.completions, row.cards, 1, row.phases, dict.fromkeys(row.phases, 0.0))
    return StepProfile(
        trainer=row.framework,
        model=row.pair,
        task="",
        card_type=row.card,
        asynchronous=bool(row.asynchronous),
        basis="measured",
        levels=(level,),
        residuals=(1.0,),
        incidents=(),
        trend=Trend("tokens", 0.0, math.inf, 0.0),
        length_exponents={},
        off_steps=(),
    )


def league_pairs(rows: Sequence[Published]) -> Iterator[tuple[Published, Published]]:
    """Each row with the row that it is predicted from: the first of its set, framework and work."""
    bases: dict[tuple[str, str, str], Published] = {}
    for row in rows:
        key = (row.pair, row.framework, row.work)
        if key in bases:
            yield bases[key], row
        else:
            bases[key] = row


def predict_row(base: Published, row: Published, priors: Priors) -> Interval:
    """Step time of `row`, in nanoseconds, from the printed phases of `base`."""
    profile = _profile_of(base)
    changed_card = row.card != base.card
    measured_on, hardware = (_hardware(base.card), _hardware(row.card)) if changed_card else (None, None)
    kind = row.asynchronous if row.asynchronous != base.asynchronous else ""

    def at(cards: int) -> dict[str, Draws]:
        size = Size(row.completions, cards)
        return dict(phases_at(profile, size, priors, measured_on=measured_on, hardware=hardware).seconds)

    if base.trainer_only:
        # The printed steps of one card and of eight do the same work per card and contain their gradient exchange.
        profile = replace(profile, levels=(replace(profile.levels[0], cards=row.cards, completions=row.completions),))
        draws = total_of(at(row.cards).values())
    elif kind and "rollout" in base.phases and row.rollout_cards and row.train_cards:
        sampling = at(row.cards if base.disaggregated else row.rollout_cards)["rollout"]
        training = at(row.cards if base.disaggregated else row.train_cards)
        train = total_of(seconds for phase, seconds in training.items() if phase != "rollout")
        placement = "fully_async" if kind == "fully_async" else "one_step_off"
        draws = step_seconds(placement, sampling, train, np.zeros(DRAWS), priors)
    else:
        draws = total_of(at(row.cards).values())
        if kind:
            draws = draws * asynchronous_share(priors)
    return interval(draws * np.exp(PUBLICATION_LOG_ERROR * normal("publication")))


def _hardware(card: str) -> Hardware | None:
    return CARDS.get(card.split(" ")[0])


def refit(rows: Sequence[Published]) -> Priors:
    """The priors that published step times give, so that a set can be predicted without itself."""
    serial, share, rollout, exponents = [], [], [], []
    half: dict[str, list[float]] = {"rollout": [], "train": []}
    for group in groups(rows):
        for a, b in itertools.combinations(group, 2):
            if a.cards == b.cards and a.completions < b.completions and not a.asynchronous and not b.asynchronous:
                for phase, found in half.items():
                    if phase in a.phases and phase in b.phases:
                        found.append(_half_work(a, b, phase))
        for a, b in itertools.pairwise(group):
            if a.asynchronous == b.asynchronous and a.cards != b.cards and not a.trainer_only:
                k = a.cards / b.cards
                serial.append((b.step / a.step - k) / (1.0 - k))
        for a, b in ((group[0], b) for b in group[1:]):
            if b.asynchronous and not a.asynchronous and a.cards == b.cards:
                share.append(b.step / a.step)
                if b.asynchronous == "fully_async" and "rollout" in a.phases and b.rollout_cards:
                    s = DEFAULT_PRIORS.serial_share
                    waiting = a.phases["rollout"] * (s + (1.0 - s) * a.cards / b.rollout_cards)
                    # A step longer than its sampling is bound by training and shows nothing of sampling.
                    rollout += [b.step / waiting] if b.step < waiting else []
            x, y = _hardware(a.card), _hardware(b.card)
            if a.trainer_only and x and y and x.tflops != y.tflops and "(" not in b.card:
                exponents.append(math.log(b.step / a.step) / math.log(x.tflops / y.tflops))
    return replace(
        DEFAULT_PRIORS,
        serial_share=statistics.median(serial) if serial else DEFAULT_PRIORS.serial_share,
        rollout_half_work=statistics.median(half["rollout"]) if half["rollout"] else DEFAULT_PRIORS.rollout_half_work,
        train_half_work=statistics.median(half["train"]) if half["train"] else DEFAULT_PRIORS.train_half_work,
        async_step_share=statistics.median(share) if share else DEFAULT_PRIORS.async_step_share,
        async_rollout_share=min(1.0, statistics.median(rollout)) if rollout else DEFAULT_PRIORS.async_rollout_share,
        flops_exponent=statistics.median(exponents) if exponents else DEFAULT_PRIORS.flops_exponent,
    )


def _half_work(a: Published, b: Published, phase: str) -> float:
    """Completions per card at which the constant of the line through two sizes is half of the phase."""
    slope = (b.phases[phase] - a.phases[phase]) / (b.completions - a.completions) * a.cards
    constant = a.phases[phase] - slope * a.completions / a.cards
    return constant / slope if slope > 0.0 and constant > 0.0 else SMALLEST_HALF_WORK


def groups(rows: Sequence[Published]) -> list[list[Published]]:
    found: dict[tuple[str, str, str], list[Published]] = {}
    for row in rows:
        found.setdefault((row.pair, row.framework, row.work), []).append(row)
    return list(found.values())


def cost_signs(rows: Sequence[Published]) -> Iterator[tuple[str, bool, bool]]:
    """Comparisons of the same work on more cards: name, whether the step costs more money, predicted and printed."""
    for group in groups(rows):
        for a, b in itertools.combinations(group, 2):
            if a.trainer_only or a.cards == b.cards or bool(a.asynchronous) != bool(b.asynchronous):
                continue
            priors = refit([r for r in rows if r.pair != a.pair])
            # Two asynchronous rows may be of different kinds; the comparison is of their cards.
            p50 = predict_row(a, replace(b, asynchronous=a.asynchronous), priors).p50 / 1e9
            yield f"{a.pair} {a.row}->{b.row}", p50 * b.cards > a.step * a.cards, b.step * b.cards > a.step * a.cards
