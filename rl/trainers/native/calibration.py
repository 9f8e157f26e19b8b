"""Measure what a step of the native trainer takes on this machine, in seconds instead of in a trial.

    python -m rl.trainers.native.calibration < SPEC.json

reads a `TrialSpec` and prints a `Calibration`. The parts are those of a trial: the same model, engine and learner. Only
the completions are shorter, so the measurement takes a few seconds after the model is loaded. It trains on its own
samples and throws the weights away.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rl.spec import ConfigurationError, TrialSpec

if TYPE_CHECKING:
    from rl.phases import PhaseClock
    from rl.rollout.engine import Completion
    from rl.trainers.native.loop import Components

DECODED_TOKENS = 8
"""Length of a completion in the measurement."""
TRAINED_PROMPTS = 2


@dataclass(frozen=True)
class Calibration:
    """Seconds of the parts of a trial."""

    startup_seconds: float
    """Imports, model, task, engine."""
    prompt_seconds: float
    """Computing the prompts of one batch before the first token."""
    turn_seconds: float
    """Decoding one token for a batch, the part that does not depend on the rows."""
    row_seconds: float
    """Decoding one token of one completion, beyond `turn_seconds`."""
    train_step_seconds: float
    """Training of one step, the part that does not depend on the completions: optimiser updates, prompts."""
    train_token_seconds: float
    """Training on one completion token: log-probabilities, forward, backward, and its share of the update."""
    parameters: int


def calibrate(spec: TrialSpec, started: float) -> Calibration:
    """Measure with the spec's model, task, engine and learner.

    Args:
        started: `time.perf_counter()` when the process began, for `startup_seconds`.

    Raises:
        ConfigurationError: the trial cannot run, or the model writes no completion.
    """
    from rl.trainers.native.trainer import build_components, set_openmp_wait_policy

    set_openmp_wait_policy()
    from rl.phases import PhaseClock

    with ExitStack() as cleanup:
        clock = PhaseClock(spec.cards)
        components, _ = build_components(spec, None, clock, cleanup)
        startup = time.perf_counter() - started
        prompts = _prompts(components, max(TRAINED_PROMPTS, spec.prompts_per_step))
        sample = _sampler(spec, components)
        sample(prompts[:1], 2)  # the first call allocates and compiles
        few, many = prompts[:1], prompts
        short_few, long_few = (_seconds(lambda n=n: sample(few, n)) for n in (2, 2 + DECODED_TOKENS))
        short_many, long_many = (_seconds(lambda n=n: sample(many, n)) for n in (2, 2 + DECODED_TOKENS))
        per_turn_few = max(0.0, (long_few - short_few) / DECODED_TOKENS)
        per_turn_many = max(0.0, (long_many - short_many) / DECODED_TOKENS)
        rows = (len(many) - len(few)) * spec.group_size
        row = max(0.0, (per_turn_many - per_turn_few) / rows) if rows else 0.0
        turn = max(0.0, per_turn_many - row * len(many) * spec.group_size)
        step, token = _training(spec, components, clock, prompts[:TRAINED_PROMPTS], sample)
        return Calibration(
            startup,
            max(0.0, short_many - 2 * per_turn_many),
            turn,
            row,
            step,
            token,
            sum(p.numel() for p in components.policy.model.parameters()),
        )


_Sample = Callable[[Sequence[tuple[int, ...]], int], "list[list[Completion]]"]


def _prompts(components: Components, count: int) -> list[tuple[int, ...]]:
    known = list(components.prompts.values())
    return [known[i % len(known)] for i in range(count)]


def _sampler(spec: TrialSpec, components: Components) -> _Sample:
    from rl.rollout.engine import Sampling

    def sample(prompts: Sequence[tuple[int, ...]], tokens: int) -> list[list[Completion]]:
        return components.engine.generate(
            prompts, Sampling(n=spec.group_size, temperature=1.0, max_tokens=tokens, seed=spec.seed)
        )

    return sample


def _training(
    spec: TrialSpec, components: Components, clock: PhaseClock, prompts: Sequence[tuple[int, ...]], sample: _Sample
) -> tuple[float, float]:
    """(seconds per step, seconds per completion token), from completions of two lengths."""
    from rl.trainers.native.learner import Group

    def seconds(tokens: int) -> tuple[float, int]:
        sampled = [[_padded(c, tokens) for c in group] for group in sample(prompts, 2)]
        rewards = tuple(float(i % 2) for i in range(spec.group_size))
        groups = [Group(str(i), prompts[i], tuple(group), rewards) for i, group in enumerate(sampled)]
        trained = sum(len(c.ids) for g in groups for c in g.completions)
        return _seconds(lambda: components.learner.learn(groups, clock)), trained

    seconds(2)  # optimiser states are allocated in the first update
    limit = max(4, spec.rollout.max_completion_tokens)
    (short, few), (long, many) = seconds(2), seconds(min(limit, 64))
    token = max(0.0, (long - short) / (many - few))
    return max(0.0, short - token * few), token


def _padded(completion: Completion, tokens: int) -> Completion:
    """A completion of this many tokens: its own, repeated."""
    times = -(-tokens // len(completion.ids))
    ids, logprobs = (completion.ids * times)[:tokens], (completion.logprobs * times)[:tokens]
    return replace(completion, ids=ids, logprobs=logprobs)


def _seconds(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def main() -> int:
    """Read a spec, print a calibration. 2: the trial cannot run."""
    import msgspec

    from rl.codec import from_json, to_json

    started = time.perf_counter()
    spec = from_json(TrialSpec, msgspec.json.decode(sys.stdin.buffer.read()))
    try:
        found = calibrate(spec, started)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.write(msgspec.json.encode(to_json(found)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
