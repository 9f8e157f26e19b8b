"""How long a sweep will take: measured in an earlier sweep of its kind, or a rough figure from the data sheet.

This is the first figure in a plan, not the forecast between stages. The figure names its source, and is None where even
the model's size is unknown.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sweeps.config.types import SweepConfig
from sweeps.journal.journal import SweepRecord, TrialRecord
from sweeps.planning.plan import Plan, PlannedTrial

NS_PER_SECOND = 1e9
MEASURED_ALLOWANCE = 1.2
"""A bound on a trial's time is this many times the measured time."""
ROUGH_ALLOWANCE = 3.0
"""A data sheet knows nothing of software: a bound is this many times its figure."""

_PARAMETERS = {"smollm2_135m": 134_515_008, "tiny": 89_088}
_PROMPT_TOKENS = 64
"""Assumed length of a prompt."""
_TRAINING_EFFICIENCY = 0.25
"""Share of a card's peak FLOPS that small batches reach."""
_DECODING_EFFICIENCY = 0.5
"""Share of a card's memory bandwidth that decoding reaches."""
_SECONDS_PER_TOKEN_STEP = 0.02
"""Time of one decoding step beyond reading the weights."""
_FIXED_SECONDS = 40.0
"""Start and checkpoints. Evaluations are added."""


@dataclass(frozen=True)
class StepTime:
    """The time of one trial: wall-clock seconds on the cards of a trial."""

    seconds_per_completion: float
    fixed_seconds: float
    """Once per trial: start, evaluations, checkpoints."""
    source: str
    """Where the figure comes from, for the plan."""
    allowance: float
    """A bound on the time is this many times as long."""
    step_p50_p90: tuple[float, float] | None = None
    """Median and 90th percentile of a step's seconds per completion; None: not measured."""
    seconds_per_turn: float = 0.0
    """Decoding time of a batch of up to `completions_per_turn` completions, however many they are. 0 where the time was
    measured: `seconds_per_completion` then includes it."""
    completions_per_turn: int = 1
    rough: bool = False
    """From the data sheet alone."""

    def of(self, trial: PlannedTrial, steps: int) -> float:
        """Seconds of a trial."""
        completions = trial.prompts_per_step * trial.group_size
        turns = math.ceil(completions / self.completions_per_turn)
        return self.fixed_seconds + steps * (completions * self.seconds_per_completion + turns * self.seconds_per_turn)

    def forecast(self, trial: PlannedTrial, steps: int) -> tuple[float, float] | None:
        """P50 and P90 of a trial's seconds, with all steps at that percentile; None: not measured."""
        if self.step_p50_p90 is None:
            return None
        completions = steps * trial.prompts_per_step * trial.group_size
        p50, p90 = (self.fixed_seconds + completions * seconds for seconds in self.step_p50_p90)
        return p50, p90


def measured(records: Sequence[SweepRecord], cfg: SweepConfig) -> StepTime | None:
    """From the newest earlier sweep with the same model, trainer, task and completion length on this machine."""
    for record in reversed(records):
        config = record.config
        same = (
            record.machine == cfg.machine.name
            and config["model"]["kind"] == cfg.model.kind
            and config["model"]["path"] == cfg.model.path
            and config["trainer"]["name"] == cfg.trainer.name
            and config["task"]["name"] == cfg.task.name
            and config["rollout"]["max_completion_tokens"] == cfg.rollout.max_completion_tokens
        )
        per_trial = [t for trial in record.trials.values() if (t := _of_trial(trial)) is not None] if same else []
        if per_trial:
            return StepTime(
                statistics.median(seconds for seconds, _ in per_trial),
                statistics.median(fixed for _, fixed in per_trial),
                f"measured in {record.sweep_id}",
                MEASURED_ALLOWANCE,
                _step_p50_p90(record),
            )
    return None


def from_data_sheet(cfg: SweepConfig) -> StepTime | None:
    """A rough figure for a machine without a measurement; None where the model's size is unknown.

    It grows with steps, prompts, G, tokens and the model's size. A forward pass takes 2 floating-point operations per
    parameter and token, a backward pass 4 (J. Kaplan et al. 2020, arXiv:2001.08361, section 2.1): 8 to train with one
    pass for the old log-probabilities, 2 more for a reference, and 2 to sample. Decoding also reads the bf16 weights
    once per token, for all completions of a batch together.
    """
    parameters = parameters_of(cfg)
    if parameters is None or cfg.simulated:
        return None
    machine, cards, rollout = cfg.machine, cfg.search.cards_per_trial, cfg.rollout
    pass_seconds = 2 * parameters / (_TRAINING_EFFICIENCY * machine.tflops * 1e12 * cards)
    passes = 5 if cfg.algorithm.kl_coef else 4
    shared = min(cfg.search.group_size) if cfg.trainer.packing is not False else 1
    sampled = rollout.max_completion_tokens
    completion = pass_seconds * (passes * (_PROMPT_TOKENS / shared + sampled) + sampled)
    token_step = 2 * parameters / (_DECODING_EFFICIENCY * machine.memory_gb_per_s * 1e9) + _SECONDS_PER_TOKEN_STEP
    turn = sampled * token_step
    answers = cfg.task.eval_questions * cfg.evaluation.samples_per_question
    evaluations = 2 + (cfg.stage.steps // cfg.evaluation.every_steps if cfg.evaluation.every_steps else 0)
    evaluation = answers * pass_seconds * (_PROMPT_TOKENS + sampled)
    evaluation += math.ceil(answers / rollout.max_batch_completions) * turn
    return StepTime(
        completion,
        _FIXED_SECONDS + evaluations * evaluation,
        f"rough estimate from the data sheet of {machine.name}: {_short(parameters)} parameters, {sampled} tokens; "
        "not measured yet",
        ROUGH_ALLOWANCE,
        seconds_per_turn=turn,
        completions_per_turn=rollout.max_batch_completions,
        rough=True,
    )


def _short(parameters: float) -> str:
    """`0.09 M`, `135 M`, `8 B`."""
    scale, unit = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / scale:.2g} {unit}" if parameters < 1e8 else f"{parameters / scale:.3g} {unit}"


def parameters_of(cfg: SweepConfig) -> float | None:
    """By the model's kind, or by the size in its name, as in `Qwen3-0.6B`."""
    if known := _PARAMETERS.get(cfg.model.kind):
        return known
    sizes = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)([BM])(?![a-z])", cfg.model.path or "", flags=re.IGNORECASE)
    return float(sizes[-1][0]) * {"b": 1e9, "m": 1e6}[sizes[-1][1].lower()] if sizes else None


def sweep_seconds(plan: Plan, cfg: SweepConfig, time: StepTime) -> float:
    """Wall-clock seconds of the whole plan, with as many trials at once as the cards allow."""
    lanes = [0.0] * max(1, cfg.search.trials_at_once(cfg.machine.cards))
    for trial in (*plan.trials, *plan.typical):
        lanes.sort()
        lanes[0] += time.of(trial, cfg.stage.steps)
    return max(lanes)


def _step_p50_p90(record: SweepRecord) -> tuple[float, float]:
    """Of all steps without replays; step times are stored with three digits."""
    counted: Counter[float] = Counter()
    for trial in record.trials.values():
        completions = trial.planned.prompts_per_step * trial.planned.group_size
        for wall_ns, times in trial.summary.step_times.items():
            counted[float(wall_ns) / NS_PER_SECOND / completions] += times
    seconds = sorted(counted)
    up_to = list(itertools.accumulate(counted[s] for s in seconds))
    p50, p90 = (seconds[bisect.bisect_left(up_to, math.ceil(share * up_to[-1]))] for share in (0.5, 0.9))
    return p50, p90


def _of_trial(trial: TrialRecord) -> tuple[float, float] | None:
    summary = trial.summary
    if not summary.step or summary.started is None:
        return None
    completions = summary.step * trial.planned.prompts_per_step * trial.planned.group_size
    fixed_ns = sum(summary.started.phase_card_ns.values()) // summary.started.cards
    fixed_ns += summary.evaluation_wall_ns
    fixed_ns += summary.checkpoint.wall_ns if summary.checkpoint else 0
    first = trial.attempts[0]
    if len(trial.attempts) == 1 and first.outcome == "completed" and first.ended_ns is not None:
        # The process was starting before the trainer's first message, with its cards granted already.
        fixed_ns = max(fixed_ns, first.ended_ns - first.started_ns - summary.wall_ns)
    return summary.wall_ns / NS_PER_SECOND / completions, fixed_ns / NS_PER_SECOND
