"""Checks of the native trainer with the real model: what is sampled, trained, synced and saved, on this host.

The components are those of a trial. The checks sample from the base model, make one optimiser step on their own
samples, sync the weights and write a checkpoint into the trial's folder. The model in memory is thrown away afterwards.

Tested in tests/rl/trainers/native/test_preflight.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rl.checks.learning_signal import SampledGroup, check_base_accuracy, check_learning_signal
from rl.checks.loss_mask import check_loss_mask
from rl.checks.result import CheckResult
from rl.checks.template import check_template
from rl.spec import ConfigurationError, QuestionResult, TrialSpec
from rl.tasks.task import Question
from rl.tasks.thinking import CompletionReader

if TYPE_CHECKING:
    from rl.phases import PhaseClock
    from rl.rollout.engine import Completion
    from rl.tasks.rewards import Scores
    from rl.trainers.native.learner import LearnedStep
    from rl.trainers.native.loop import Components

TRAINED_GROUPS = 2
"""Groups of the optimiser step."""
STEP_LR = 1e-3
"""Learning rate of that step: the change of the weights must be visible above the noise of the log-probabilities."""
RATIO_TOLERANCE = 0.01
"""Largest distance of the on-policy ratio from 1. fp32 gives 1e-6, bf16 up to a few 1e-3."""
MOST_NOISE_FP32, MOST_NOISE_BF16 = 0.02, 0.2
"""Largest mean difference of log-probabilities between sampler and learner, in nats per token."""
VISIBLE = 5.0
"""A sync must change the sampler's log-probabilities by this many times the noise floor."""
EVALUATED_AT_ONCE = 16
GROUPS = 8
"""Groups that are sampled for the share that teaches."""


@dataclass(frozen=True)
class _Samples:
    """Completions of the base model."""

    results: tuple[QuestionResult, ...]
    truncated: float
    questions: tuple[Question, ...]
    """Of the groups."""
    groups: tuple[tuple[Completion, ...], ...]
    scored: tuple[SampledGroup, ...]


def check_model(spec: TrialSpec, *, sample_seconds: float, show: Callable[[str], None]) -> Iterator[CheckResult]:
    """All checks, one after the other.

    Args:
        spec: `checkpoint_dir` is a temporary folder.
        sample_seconds: for sampling. Evaluation questions and groups beyond that are left out.
        show: prints what is done now.
    """
    from rl.trainers.native.trainer import build_components, set_openmp_wait_policy

    set_openmp_wait_policy()
    from rl.phases import PhaseClock

    with ExitStack() as cleanup:
        clock = PhaseClock(1)
        show("loading the model and comparing single, padded and packed rows ...")
        try:
            components, _ = build_components(spec, None, clock, cleanup)
        except ConfigurationError as error:
            yield CheckResult("model", "failed", str(error))
            return
        notes = "; ".join(components.notes)
        yield CheckResult("model", "passed", f"{notes[:1].upper()}{notes[1:]}.")
        policy, question = components.policy, components.task.train[0]
        yield check_template(
            question,
            policy.tokenizer,
            spec.model,
            eos_ids=policy.eos_ids,
            pad_id=policy.pad_id,
        )
        show("sampling from the base model ...")
        samples = _sample(spec, components, sample_seconds)
        if samples.results:
            questions = len(components.task.evaluation)
            yield check_base_accuracy(samples.results, samples.truncated, questions)
        yield check_learning_signal(samples.scored, spec.group_size)
        yield check_loss_mask(
            components.prompts[samples.questions[0].question_id],
            [c for group in samples.groups[:1] for c in group],
            eos_ids=policy.eos_ids,
            pad_id=policy.pad_id,
            algorithm=spec.algorithm,
            packing=spec.trainer.packing is not False,
            decode=lambda token: policy.tokenizer.decode([token]),
        )
        show("one optimiser step, a weight sync and a checkpoint ...")
        yield from _check_step(spec, components, clock, samples)
        yield _check_checkpoint(spec, components)


# ---------------------------------------------------------------------------------------------------------------------
# The base model
# ---------------------------------------------------------------------------------------------------------------------


def _sample(spec: TrialSpec, components: Components, seconds: float) -> _Samples:
    """Evaluate as a trial does, for half of the time; then sample groups of training questions."""
    started = time.monotonic()
    results: list[QuestionResult] = []
    truncated: list[bool] = []
    n, evaluation = spec.evaluation.samples_per_question, components.task.evaluation
    for start in range(0, len(evaluation), EVALUATED_AT_ONCE):
        if start and time.monotonic() - started > seconds / 2:
            break
        part = evaluation[start : start + EVALUATED_AT_ONCE]
        sampled = _generate(spec, components, part, n, spec.evaluation.temperature)
        acc = _scores(components, part, sampled).acc
        truncated += [c.truncated for group in sampled for c in group]
        results += [QuestionResult(q.question_id, int(sum(acc[i * n : (i + 1) * n])), n) for i, q in enumerate(part)]
    questions: list[Question] = []
    groups: list[tuple[Completion, ...]] = []
    scored: list[SampledGroup] = []
    for start in range(0, min(GROUPS, len(components.task.train)), 2):
        if start >= TRAINED_GROUPS and time.monotonic() - started > seconds:
            break
        part = components.task.train[start : start + 2]
        sampled = _generate(spec, components, part, spec.group_size, spec.rollout.temperature)
        scores = _scores(components, part, sampled)
        for i, group in enumerate(sampled):
            span = slice(i * spec.group_size, (i + 1) * spec.group_size)
            scored.append(SampledGroup(tuple(scores.raw["correct"][span]), tuple(scores.reward[span])))
            groups.append(tuple(group))
        questions += part
    share = sum(truncated) / len(truncated) if truncated else 0.0
    return _Samples(tuple(results), share, tuple(questions), tuple(groups), tuple(scored))


def _generate(
    spec: TrialSpec, components: Components, questions: Sequence[Question], n: int, temperature: float
) -> list[list[Completion]]:
    from rl.rollout.engine import Sampling
    from rl.seeds import derived_seed

    sampling = Sampling(n, temperature, spec.rollout.max_completion_tokens, derived_seed(spec.seed, "preflight"))
    return components.engine.generate([components.prompts[q.question_id] for q in questions], sampling)


def _scores(components: Components, questions: Sequence[Question], sampled: Sequence[Sequence[Completion]]) -> Scores:
    reader = CompletionReader(components.policy.tokenizer)
    texts = [
        reader.text(components.prompts[q.question_id], completion.ids)
        for q, group in zip(questions, sampled, strict=True)
        for completion in group
    ]
    answers = [q.answer for q, group in zip(questions, sampled, strict=True) for _ in group]
    return components.scorer.score(texts, answers)


# ---------------------------------------------------------------------------------------------------------------------
# One step
# ---------------------------------------------------------------------------------------------------------------------


def _check_step(spec: TrialSpec, components: Components, clock: PhaseClock, samples: _Samples) -> Iterator[CheckResult]:
    """Train on two groups with alternating rewards, then sync the weights."""
    from rl.trainers.native.learner import Group

    rewards = tuple(float(i % 2) for i in range(spec.group_size))
    questions = samples.questions[:TRAINED_GROUPS]
    groups = [
        Group(q.question_id, components.prompts[q.question_id], samples.groups[i], rewards)
        for i, q in enumerate(questions)
    ]
    components.learner.base_lr = STEP_LR
    learned = components.learner.learn(groups, clock, check_ratio=True)
    noise, largest = _noise(learned)
    most = MOST_NOISE_BF16 if components.policy.autocast else MOST_NOISE_FP32
    yield _on_policy(learned)
    yield _noise_floor(components.engine.name, noise, largest, most)
    yield _sync(spec, components, questions, noise, most)


def _on_policy(learned: LearnedStep) -> CheckResult:
    update = learned.updates[0]
    ratio = update.ratio.value
    distance = max(abs((update.ratio_min or 0.0) - 1), abs((update.ratio_max or 0.0) - 1))
    seen = (
        f"The first update was computed against a pass of its own over {update.ratio.count:g} tokens: mean ratio "
        f"{ratio:.6f}, largest distance from 1 {distance:.1e}; gradient norm {update.grad_norm:.3g}."
    )
    if ratio is None or abs(ratio - 1) > RATIO_TOLERANCE:
        return CheckResult(
            "on-policy ratio", "failed", seen, "The policy differs from itself: use trainer.packing=false."
        )
    if update.grad_norm == 0:
        return CheckResult("on-policy ratio", "failed", seen, "Rewards differ and the gradient is 0: report this.")
    return CheckResult("on-policy ratio", "passed", seen)


def _noise(learned: LearnedStep) -> tuple[float, float]:
    """(mean, largest) absolute difference of log-probabilities between sampler and learner, in nats."""
    sums = dict(zip(learned.sampler.NAMES, learned.sampler.sums.tolist(), strict=True))
    return sums["logp_diff"] / max(sums["tokens"], 1), learned.sampler.maxima.item()


def _noise_floor(engine: str, noise: float, largest: float, most: float) -> CheckResult:
    name = "sampler against learner"
    seen = (
        f"Log-probabilities of rollout engine {engine} and the learner with the same weights differ by {noise:.1e} "
        f"nats per token (largest {largest:.1e}). This is the noise floor of logp_diff_mean on this host."
    )
    if noise > most:
        return CheckResult(name, "failed", seen, "Use rollout=transformers, and rollout.temperature as in training.")
    return CheckResult(name, "passed", seen)


def _sync(
    spec: TrialSpec, components: Components, questions: Sequence[Question], noise: float, most: float
) -> CheckResult:
    """The sampler must keep its weights until a sync, and have the learner's afterwards."""
    name, engine = "weight sync", components.engine
    before = _generate(spec, components, questions, 2, spec.rollout.temperature)
    stale = _difference(spec, components, questions, before)
    engine.sync(components.policy, engine.policy_version + 1)
    after = _generate(spec, components, questions, 2, spec.rollout.temperature)
    synced = _difference(spec, components, questions, after)
    seen = (
        f"After an optimiser step sampler and learner differ by {stale:.1e} nats per token, and after the sync by "
        f"{synced:.1e}; policy version {engine.policy_version}."
    )
    if synced > most:
        return CheckResult(
            name, "failed", seen, "The sync does not give the sampler the learner's weights: report this."
        )
    if stale <= VISIBLE * max(noise, synced):
        return CheckResult(name, "warned", seen, "The step was too small to be seen above the noise.")
    return CheckResult(name, "passed", seen)


def _difference(
    spec: TrialSpec, components: Components, questions: Sequence[Question], sampled: Sequence[Sequence[Completion]]
) -> float:
    """Mean absolute difference of the sampler's log-probabilities from the learner's, in nats per token."""
    import torch

    from rl.layout import Sequences, micro_batches

    rows = [
        Sequences(components.prompts[q.question_id], tuple(c.ids for c in group))
        for q, group in zip(questions, sampled, strict=True)
    ]
    flat = [c for group in sampled for c in group]
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in micro_batches(rows, spec.trainer.micro_batch_tokens, False, components.policy.pad_id):
            logprobs, _ = components.policy.forward(batch, spec.rollout.temperature)
            for row, number in enumerate(batch.sequences):
                theirs = torch.tensor(flat[number].logprobs)
                total += float((logprobs[row, : len(theirs)].cpu() - theirs).abs().sum())
                tokens += len(theirs)
    return total / tokens


def _check_checkpoint(spec: TrialSpec, components: Components) -> CheckResult:
    """Write weights and optimiser state, read them back, and compare every tensor."""
    from rl import checkpoint as checkpoints

    tensors = {"model": dict(components.policy.parameters()), **components.learner.state_dict()}
    started = time.monotonic()
    path, size = checkpoints.write(Path(spec.checkpoint_dir), 1, tensors=tensors, state={"step": 1})
    contents = checkpoints.read(path)
    seconds = time.monotonic() - started
    different = [
        f"{part}/{name}"
        for part, named in tensors.items()
        for name, tensor in named.items()
        if not contents.tensors[part][name].equal(tensor.detach().cpu())
    ]
    seen = f"{size / 1e6:,.0f} MB of weights and optimiser state written and read back in {seconds:.1f} s"
    if different:
        return CheckResult("checkpoint", "failed", f"{seen}; {different[0]} differs.", "Check the disk.")
    return CheckResult("checkpoint", "passed", f"{seen}; every tensor is equal bit for bit.")
