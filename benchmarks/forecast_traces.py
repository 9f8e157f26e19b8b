"""Simulated runs with known truth, for benchmarks/forecast.py. Shares no code and no formula with cost/forecast.

A run is simulated completion by completion: lengths are drawn, the engine decodes them in waves, the trainer packs or
pads them, hosts drift, stragglers and preemptions happen. The forecast sees only the reported times and token counts of
the first steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Engine:
    """Timing behaviour of one machine with its software. Seconds, unless the name says otherwise."""

    name: str
    cards: int
    wave: int
    """Completions decoded at once per card."""
    wake: float
    token_step: float
    """One decoding step of a wave with few completions."""
    token_step_per_row: float
    train_fixed: float
    train_per_token: float
    padded: bool
    sync: float
    compile_first_step: float
    start: float
    evaluation: float
    checkpoint: float
    jitter: float
    """Spread of each phase around its own time, as a share."""
    host_drift: float
    """Spread of the host's slow changes, as a share."""


ENGINES = (
    Engine("cpu, PyTorch", 1, 64, 0.0, 0.12, 0.002, 1.0, 0.0016, False, 0.1, 3.0, 25.0, 40.0, 2.0, 0.04, 0.015),
    Engine("rtx4090, PyTorch", 1, 64, 0.2, 0.03, 0.00015, 0.4, 0.00025, True, 0.0, 6.0, 45.0, 30.0, 8.0, 0.03, 0.01),
    Engine(
        "h100, fused engine", 1, 256, 1.8, 0.009, 0.00002, 0.5, 0.00012, False, 1.2, 25.0, 90.0, 25.0, 15.0, 0.03, 0.01
    ),
    Engine(
        "a100x8, colocated", 8, 128, 3.0, 0.014, 0.00003, 2.5, 0.0004, False, 3.0, 30.0, 180.0, 60.0, 40.0, 0.05, 0.02
    ),
    Engine(
        "h100x8, colocated", 8, 256, 2.5, 0.010, 0.00002, 1.5, 0.0002, False, 2.0, 40.0, 240.0, 45.0, 30.0, 0.04, 0.015
    ),
)
KINDS = ("stable", "heavy tails", "length drift", "preemptions")


@dataclass(frozen=True)
class Scenario:
    engine: Engine
    kind: str
    seed: int
    prompts: int
    group: int
    steps: int
    mean_length: float
    length_limit: int
    straggler_chance: float = 0.0
    final_length_factor: float = 1.0
    drift_shape: str = "linear"
    preemptions_per_hour: float = 0.0
    checkpoint_every: int = 20
    evaluate_every: int = 50
    recovery: float = 300.0


@dataclass
class Trace:
    """The first attempt's reports, and how long the whole run took."""

    scenario: Scenario
    steps: list[dict[str, float]] = field(default_factory=list)
    """rollout, train, sync seconds and tokens, of each step."""
    start: float = 0.0
    evaluations: list[float] = field(default_factory=list)
    checkpoints: list[float] = field(default_factory=list)
    lost_work: float = 0.0
    recovery: float = 0.0

    @property
    def elapsed(self) -> float:
        inside = sum(s["rollout"] + s["train"] + s["sync"] for s in self.steps)
        return inside + self.start + sum(self.evaluations) + sum(self.checkpoints) + self.lost_work + self.recovery


def scenarios(per_engine_and_kind: int = 15, steps: int = 200) -> Iterator[Scenario]:
    """300 by default: five engines, four kinds."""
    seed = 0
    for engine in ENGINES:
        for kind in KINDS:
            for _ in range(per_engine_and_kind):
                seed += 1
                rng = np.random.default_rng([seed, 7])
                small = engine.cards == 1
                base = Scenario(
                    engine,
                    kind,
                    seed,
                    prompts=int(rng.choice([4, 8, 16] if small else [32, 64])),
                    group=int(rng.choice([4, 8, 16] if small else [8, 16])),
                    steps=steps,
                    mean_length=float(rng.uniform(40, 120) if engine.name.startswith("cpu") else rng.uniform(150, 900)),
                    length_limit=0,
                )
                base = replace(base, length_limit=int(base.mean_length * rng.uniform(2.0, 4.0)))
                if kind == "heavy tails":
                    base = replace(base, straggler_chance=float(rng.uniform(0.02, 0.12)))
                elif kind == "length drift":
                    factor = float(np.exp(rng.normal(0.0, 0.35)))
                    shape = str(rng.choice(["linear", "saturating"]))
                    base = replace(base, final_length_factor=factor, drift_shape=shape)
                elif kind == "preemptions":
                    base = replace(base, preemptions_per_hour=float(rng.uniform(0.05, 0.6)))
                yield base


def simulate(scenario: Scenario) -> Trace:
    """Run one scenario to its last step."""
    engine, rng = scenario.engine, np.random.default_rng([scenario.seed, 11])
    trace = Trace(scenario, start=engine.start * float(rng.lognormal(0.0, 0.1)))
    trace.evaluations.append(_event(engine.evaluation, rng))
    host = 0.0
    for step in range(1, scenario.steps + 1):
        # The host's speed is a slow mean-reverting walk.
        host = 0.95 * host + engine.host_drift * float(np.sqrt(1 - 0.95**2) * rng.standard_normal())
        trace.steps.append(_step(scenario, step, host, rng))
        if step % scenario.checkpoint_every == 0 or step == scenario.steps:
            trace.checkpoints.append(_event(engine.checkpoint, rng))
        if step % scenario.evaluate_every == 0 or step == scenario.steps:
            trace.evaluations.append(_event(engine.evaluation, rng))
    if scenario.preemptions_per_hour:
        _preempt(trace, rng)
    return trace


def _event(seconds: float, rng: np.random.Generator) -> float:
    return seconds * float(rng.lognormal(0.0, 0.08))


def _mean_length(scenario: Scenario, step: int) -> float:
    done = step / 200.0
    shape = done if scenario.drift_shape == "linear" else (1.0 - np.exp(-4.0 * done)) / (1.0 - np.exp(-4.0))
    return scenario.mean_length * (1.0 + (scenario.final_length_factor - 1.0) * float(shape))


def _step(scenario: Scenario, step: int, host: float, rng: np.random.Generator) -> dict[str, float]:
    engine = scenario.engine
    mean = _mean_length(scenario, step)
    # Prompts differ in difficulty, and completions of one prompt differ among themselves.
    by_prompt = rng.gamma(8.0, mean / 8.0, size=(scenario.prompts, 1))
    lengths = np.ceil(rng.gamma(6.0, by_prompt / 6.0, size=(scenario.prompts, scenario.group)))
    lengths = np.clip(lengths, 1, scenario.length_limit).reshape(-1)
    shares = np.array_split(lengths, engine.cards)
    rollout = engine.wake + max(_decode(engine, share) for share in shares)
    work = max(len(s) * float(s.max()) if engine.padded else float(s.sum()) for s in shares)
    train = engine.train_fixed + engine.train_per_token * work
    jitter = rng.lognormal(0.0, engine.jitter, size=3)
    speed = float(np.exp(host))
    times = {
        "rollout": rollout * speed * jitter[0],
        "train": train * speed * jitter[1],
        "sync": engine.sync * jitter[2],
    }
    if step == 1:
        times["train"] += engine.compile_first_step
    if rng.random() < scenario.straggler_chance:
        times["rollout"] *= 1.0 + min(6.0, float(rng.pareto(1.8)))
    return {**{k: float(v) for k, v in times.items()}, "tokens": float(lengths.sum())}


def _decode(engine: Engine, lengths: np.ndarray) -> float:
    """Seconds until every completion of one card is finished: waves of rows that leave as they end."""
    total = 0.0
    for at in range(0, len(lengths), engine.wave):
        ends = np.sort(lengths[at : at + engine.wave])
        still = len(ends) - np.arange(len(ends))
        spans = np.diff(np.concatenate([[0.0], ends]))
        total += float((spans * (engine.token_step + engine.token_step_per_row * still)).sum())
    return total


def _preempt(trace: Trace, rng: np.random.Generator) -> None:
    """Walk through the run; a preemption throws away the work since the last checkpoint."""
    scenario = trace.scenario
    rate = scenario.preemptions_per_hour / 3600.0
    until_next = float(rng.exponential(1.0 / rate))
    since_checkpoint = 0.0
    for i, step in enumerate(trace.steps, start=1):
        seconds = step["rollout"] + step["train"] + step["sync"]
        remaining = since_checkpoint + seconds
        # Work is done again until it survives to the end of this step.
        todo = seconds
        while until_next < todo:
            trace.lost_work += since_checkpoint + until_next
            trace.recovery += scenario.recovery * float(rng.lognormal(0.0, 0.3))
            todo = remaining
            since_checkpoint = 0.0
            until_next = float(rng.exponential(1.0 / rate))
        until_next -= todo
        since_checkpoint = 0.0 if i % scenario.checkpoint_every == 0 else remaining
