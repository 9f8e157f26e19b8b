"""The native GRPO trainer: puts the parts of one attempt together, runs the loop, takes the parts down again.

One process on one card (or on the CPU). Importing it is light; torch and transformers load when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.spec import Command, ConfigurationError, Event, OutOfMemoryError, TrialSpec

if TYPE_CHECKING:
    import torch

    from rl.loop import Parts
    from rl.phases import PhaseClock
    from rl.policy import Policy
    from rl.tasks import Task


class NativeTrainer:
    """See `rl.spec.Trainer`."""

    def run(self, spec: TrialSpec, checkpoint: Path | None) -> Generator[Event, Command | None, None]:
        check(spec)
        _prefer_sleeping_threads()
        from rl.loop import Loop
        from rl.phases import PhaseClock

        with ExitStack() as cleanup:
            clock = PhaseClock(spec.cards)
            try:
                parts, state = _build(spec, checkpoint, clock, cleanup)
                yield from Loop(spec, parts, state, checkpoint).run()
            except MemoryError as error:
                raise _out_of_memory(spec, "host", error) from error
            except RuntimeError as error:
                # torch.OutOfMemoryError is a RuntimeError; a CPU allocation that fails has no class of its own.
                if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
                    raise _out_of_memory(spec, "card", error) from error
                raise


def check(spec: TrialSpec) -> None:
    """Refuse a trial that cannot run here, before anything is loaded.

    Raises:
        ConfigurationError: all problems in one message.
    """
    from rl.algorithms import algorithm_problems
    from rl.rollout.engine import check_sampling

    problems = algorithm_problems(spec)
    if spec.cards != 1:
        problems.append(
            f"cards={spec.cards}: the native trainer drives one card; run this stage with 1 card, "
            "or plan it with dry_run=true"
        )
    if spec.steps < 1:
        problems.append(f"steps={spec.steps} must be at least 1: a trial that trains nothing is an error")
    for name in ("micro_batch_tokens", "logprob_chunk_tokens", "keep_checkpoints"):
        if getattr(spec.trainer, name) < 1:
            problems.append(f"trainer.{name}={getattr(spec.trainer, name)} must be at least 1")
    if spec.evaluation.samples_per_question < 1:
        problems.append(f"evaluation.samples_per_question={spec.evaluation.samples_per_question} must be at least 1")
    if problems:
        raise ConfigurationError("\n".join(problems))
    check_sampling(spec.rollout)


def _build(
    spec: TrialSpec, checkpoint: Path | None, clock: PhaseClock, cleanup: ExitStack
) -> tuple[Parts, Mapping[str, Any] | None]:
    """The parts, in the state of the checkpoint if there is one; and that state."""
    import torch

    from rl import checkpoint as checkpoints
    from rl.learner import Learner
    from rl.loop import Parts
    from rl.models import prepare
    from rl.policy import load_policy
    from rl.ranks import Alone
    from rl.rollout.engine import create_engine, derived_seed
    from rl.tasks import PromptSampler, load_task
    from rl.tasks.rewards import Scorer

    with clock.phase("startup"):
        device = _device(spec)
        torch.set_num_threads(spec.trainer.threads or os.cpu_count() or 1)
        _set_determinism(spec.trainer.deterministic)
        torch.manual_seed(derived_seed(spec.seed, "weights"))
        task = load_task(spec.task)
        sampler = PromptSampler(task.train, spec.prompts_per_step, spec.seed)
        scorer = cleanup.enter_context(Scorer(spec.task, task.user_scorer))
        folder = prepare(spec.model, spec.task, Path(spec.cache_dir))
        policy = load_policy(folder, spec.model, spec.trainer, device)
        prompts = _encode(spec, policy, task)
        keeps_reference = spec.algorithm.kl_coef > 0 and not spec.model.lora_rank
        learner = Learner(
            policy=policy,
            reference=policy.frozen_copy() if keeps_reference else None,
            algorithm=spec.algorithm,
            trainer=spec.trainer,
            temperature=spec.rollout.temperature,
            total_updates=spec.steps * spec.algorithm.updates_per_rollout,
            ranks=Alone(),
        )
    state = None
    if checkpoint is not None:
        with clock.phase("recovery"):
            loaded = checkpoints.read(checkpoint)
            state = loaded.state
            if state["step"] > spec.steps:
                raise ConfigurationError(
                    f"{checkpoint} has {state['step']} steps done and this trial has steps={spec.steps}: nothing would "
                    "be trained; give a checkpoint of this trial, or more steps"
                )
            policy.restore(loaded.tensors["model"])
            learner.restore(loaded.tensors, state["updates_done"], state["base_lr"])
            sampler.restore(state["data"])
            torch.set_rng_state(loaded.tensors["rng"]["torch"])
    with clock.phase("startup"):
        engine = create_engine(spec.rollout, policy, state["policy_version"] if state else 0)
        cleanup.callback(engine.close)
    return Parts(policy, learner, engine, task, prompts, sampler, scorer, clock), state


def _encode(spec: TrialSpec, policy: Policy, task: Task) -> dict[str, tuple[int, ...]]:
    """Token ids of every question.

    Raises:
        ConfigurationError: prompts that are empty or too long; says how many, and what would fit the longest.
    """
    from rl.tasks.prompts import encode_prompt

    questions = (*task.train, *task.evaluation)
    prompts = {q.question_id: tuple(encode_prompt(q, policy.tokenizer, spec.model.chat_template)) for q in questions}
    lengths = {i: len(ids) for i, ids in prompts.items()}
    longest, limit = max(lengths.values()), spec.rollout.max_prompt_tokens
    if longest > limit:
        over = sum(n > limit for n in lengths.values())
        raise ConfigurationError(
            f"{over} of {len(lengths)} prompts are longer than rollout.max_prompt_tokens={limit}; the longest has "
            f"{longest} tokens. Prompts are never cut: set rollout.max_prompt_tokens={longest}, or leave them out"
        )
    if min(lengths.values()) < 1:
        raise ConfigurationError(f"task {spec.task.name!r} has an empty prompt: the model needs a token to go on from")
    room = getattr(policy.model.config, "max_position_embeddings", None)
    if room is not None and longest + spec.rollout.max_completion_tokens > room:
        raise ConfigurationError(
            f"the longest prompt ({longest} tokens) and rollout.max_completion_tokens="
            f"{spec.rollout.max_completion_tokens} do not fit the model's {room} positions; "
            f"at most {room - longest} completion tokens would"
        )
    return prompts


def _device(spec: TrialSpec) -> torch.device:
    import torch

    if spec.trainer.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("trainer.device=cuda, and torch sees no CUDA card here; use cpu or auto")
    if spec.trainer.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _set_determinism(on: bool) -> None:
    import torch

    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.benchmark = False


def _prefer_sleeping_threads() -> None:
    """Have OpenMP's idle threads sleep instead of spin, if torch is not loaded yet: the runtime reads it only once.

    On a CPU shared with other processes a spinning thread uses up its time slice while the thread that it waits for is
    not running; sampling was measured to take ten times as long then.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _out_of_memory(spec: TrialSpec, where: str, error: BaseException) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"out of {where} memory: {error}. trainer.micro_batch_tokens={spec.trainer.micro_batch_tokens} and "
        f"rollout.max_batch_completions={spec.rollout.max_batch_completions} may be halved without changing the result"
    )
