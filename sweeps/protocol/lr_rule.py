"""The learning-rate rule: advice from `clip_frac` over the last steps of a trial. Pure functions.

Over 20 % the rate is lowered, from 2 to 20 % it is kept, under 2 % a raise may be tried. Healthy public runs have 0.0
to 0.9 %, so a low value alone is no reason: a raise also needs healthy entropy, approximate KL and gradient norm,
happens once per stage, and must win against a trial that keeps its rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rl.spec import AlgorithmSpec, Mean, StepReport
from sweeps.journal.journal import TrialRecord
from sweeps.journal.trial_summary import WINDOW_STEPS, TrialSummary, WindowStep

RAISE_BELOW = 0.02
LOWER_ABOVE = 0.20
_NORMAL_RANGE = f"{100 * RAISE_BELOW:.0f} to {100 * LOWER_ABOVE:.0f} %"
RAISE_FACTOR = 1.5
LOWER_FACTOR = 0.5
MAX_APPROX_KL = 0.05
"""No raise where the policy already moves this far (nats per token) within one rollout."""
MIN_ENTROPY_LEFT = 0.3
"""No raise where less than this share of the first step's entropy is left."""


@dataclass(frozen=True)
class Advice:
    """The advice of the rule, and its basis."""

    action: Literal["raise", "keep", "lower", "abstain"]
    clip_frac: float | None
    basis: str
    reason: str

    @property
    def factor(self) -> float:
        return {"raise": RAISE_FACTOR, "lower": LOWER_FACTOR}.get(self.action, 1.0)


def advise(trial: TrialSummary, algorithm: AlgorithmSpec) -> Advice:
    """Advice on a trial's learning rate from its last `WINDOW_STEPS` steps."""
    basis = (
        f"eps {algorithm.clip_eps_low:g}/{algorithm.clip_eps_high:g}, {algorithm.ratio_level} ratio, "
        f"{algorithm.updates_per_rollout} updates per rollout, staleness {trial.staleness}"
    )
    if algorithm.surrogate != "clip" or algorithm.ratio_level != "token":
        return Advice("abstain", None, basis, f"clip_frac of {algorithm.name} has another meaning")
    if len(trial.window) < WINDOW_STEPS:
        return Advice("abstain", None, basis, f"fewer than {WINDOW_STEPS} steps so far")
    clip_frac = trial.window_clip_frac
    if clip_frac is None:
        return Advice("abstain", None, basis, "one update per rollout: the ratio is 1, so nothing is clipped")
    measured = f"clip_frac {100 * clip_frac:.1f} %"
    if clip_frac > LOWER_ABOVE:
        return Advice("lower", clip_frac, basis, f"{measured}, above the normal range of {_NORMAL_RANGE}")
    if clip_frac >= RAISE_BELOW:
        return Advice("keep", clip_frac, basis, f"{measured}, normal range {_NORMAL_RANGE}")
    measured += f", below the normal range of {_NORMAL_RANGE}"
    if objection := _objection_to_a_raise(trial.first_entropy, trial.window):
        return Advice("keep", clip_frac, basis, f"{measured}, but {objection}")
    return Advice("raise", clip_frac, basis, measured)


def next_lr(trial: TrialRecord, message: StepReport, algorithm: AlgorithmSpec) -> float | None:
    """The learning rate to set after this step; None: keep the present one.

    The rate is lowered as often as the rule advises and raised at most once per stage, with at least `WINDOW_STEPS`
    between two changes. A step that is repeated after a restore gets the same rate as the first time.
    """
    if message.step in trial.lr_changes:
        return trial.lr_changes[message.step]
    if message.replay or message.step - max(trial.lr_changes, default=0) < WINDOW_STEPS:
        return None
    advice = advise(trial.summary, algorithm)
    if advice.factor == 1.0 or (advice.action == "raise" and trial.lr_was_raised):
        return None
    return trial.lr * advice.factor


def _objection_to_a_raise(first_entropy: Mean | None, window: Sequence[WindowStep]) -> str | None:
    kl = _over(step.approx_kl for step in window)
    if kl is not None and kl > MAX_APPROX_KL:
        return f"approx_kl {kl:.3g} is over {MAX_APPROX_KL:g}"
    first, now = _over([first_entropy]), _over(step.entropy for step in window)
    if first and now is not None and now < MIN_ENTROPY_LEFT * first:
        return f"entropy fell to {now / first:.0%} of its start"
    norms = [norm for step in window for norm in step.grad_norms]
    if norms and max(norms) > 10 * sorted(norms)[len(norms) // 2]:
        return "a gradient norm stands out over ten times the median"
    return None


def _over(means: Iterable[Mean | None]) -> float | None:
    return sum((mean for mean in means if mean is not None), Mean.EMPTY).value
