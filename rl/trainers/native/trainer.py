"""The native GRPO trainer: builds the components of one attempt, runs the loop, and releases the components.

It runs in one process, on one card or on the CPU. Importing this module is light; torch and transformers are imported
when the trainer runs.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.spec import Command, ConfigurationError, Event, OutOfMemoryError, TrainerSpec, TrialSpec

if TYPE_CHECKING:
    import torch

    from rl.phases import PhaseClock
    from rl.trainers.native.loop import Components


class NativeTrainer:
    """Implements `rl.spec.Trainer`."""

    def run(self, spec: TrialSpec, checkpoint: Path | None) -> Generator[Event, Command | None, None]:
        """See `rl.spec.Trainer.run`."""
        check(spec)
        set_openmp_wait_policy()
        from rl.phases import PhaseClock, wait_for_cuda
        from rl.trainers.native.loop import Loop

        with ExitStack() as cleanup:
            clock = PhaseClock(spec.cards, wait_for_card=wait_for_cuda)
            try:
                components, state = build_components(spec, checkpoint, clock, cleanup)
                yield from Loop(spec, components, state, checkpoint).run()
            except MemoryError as error:
                raise _out_of_memory(spec, "host", error) from error
            except RuntimeError as error:
                # torch.OutOfMemoryError is a RuntimeError. A failed CPU allocation is a plain RuntimeError.
                if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
                    raise _out_of_memory(spec, "card", error) from error
                raise


def check(spec: TrialSpec) -> None:
    """Refuse a trial that the native trainer cannot run, before anything is loaded.

    Raises:
        ConfigurationError: one line per problem.
    """
    from rl.algorithms import algorithm_problems
    from rl.rollout.engine import check_sampling

    problems = algorithm_problems(spec)
    if spec.cards != 1:
        problems.append(
            f"cards={spec.cards}: the native trainer runs on one card; run this stage with search.cards_per_trial=1, "
            "or plan it with dry_run=true"
        )
    if spec.steps < 1:
        problems.append(f"steps={spec.steps} must be at least 1: a trial without steps trains nothing")
    for name in ("micro_batch_tokens", "logprob_chunk_tokens", "keep_checkpoints"):
        if getattr(spec.trainer, name) < 1:
            problems.append(f"trainer.{name}={getattr(spec.trainer, name)} must be at least 1")
    if spec.evaluation.samples_per_question < 1:
        problems.append(f"evaluation.samples_per_question={spec.evaluation.samples_per_question} must be at least 1")
    if problems:
        raise ConfigurationError("\n".join(problems))
    check_sampling(spec.rollout)


def build_components(
    spec: TrialSpec, checkpoint: Path | None, clock: PhaseClock, cleanup: ExitStack
) -> tuple[Components, Mapping[str, Any] | None]:
    """(components, state). With a checkpoint, both are those of the checkpoint; otherwise the state is None.

    `cleanup` gets the callbacks that release the components.
    """
    import torch

    from rl import checkpoint as checkpoints
    from rl.checks.probe import probe_engine, probe_model
    from rl.checks.trial_inputs import check_context, check_embedding, encode_prompts, read_tokenizer
    from rl.models import prepare
    from rl.policy import load_policy
    from rl.ranks import SingleRank
    from rl.rollout import create_engine
    from rl.seeds import derived_seed
    from rl.tasks import PromptSampler, load_task
    from rl.tasks.rewards import Scorer
    from rl.trainers.native.learner import Learner
    from rl.trainers.native.loop import Components

    loaded = None
    if checkpoint is not None:
        with clock.phase("recovery"):
            loaded = checkpoints.read(checkpoint)
    with clock.phase("startup"):
        device = _device(spec)
        torch.set_num_threads(spec.trainer.threads or os.cpu_count() or 1)
        _set_determinism(spec.trainer.deterministic)
        torch.manual_seed(derived_seed(spec.seed, "weights"))
        task = load_task(spec.task)
        scorer = cleanup.enter_context(Scorer(spec.task, task.user_scorer))
        folder = prepare(spec.model, spec.task, Path(spec.cache_dir))
        read_tokenizer(folder)  # refuses missing or unreadable files before the weights are read
        trainer, notes = _with_precision(spec.trainer, device, loaded.state if loaded else None)
        policy = load_policy(folder, spec.model, trainer, device)
        encoded = encode_prompts(spec, policy.tokenizer, task)
        task, prompts = encoded.task, encoded.prompts
        notes += encoded.notes
        sampler = PromptSampler(task.train, spec.prompts_per_step, spec.seed)
        network: Any = policy.model
        check_context(spec, prompts, getattr(network.config, "max_position_embeddings", None))
        check_embedding(len(policy.tokenizer), network.get_input_embeddings().weight.shape[0])
        longest = max(map(len, prompts.values())) + spec.rollout.max_completion_tokens
        report = probe_model(policy, spec.model, trainer, longest)
        notes += report.notes
        trainer = dataclasses.replace(trainer, packing=trainer.packing if report.packing else False)
        needs_reference_copy = spec.algorithm.kl_coef > 0 and not spec.model.lora_rank
        learner = Learner(
            policy=policy,
            reference=policy.frozen_copy() if needs_reference_copy else None,
            algorithm=spec.algorithm,
            trainer=trainer,
            temperature=spec.rollout.temperature,
            total_updates=spec.steps * spec.algorithm.updates_per_rollout,
            ranks=SingleRank(),
        )
    state = None
    if loaded is not None:
        with clock.phase("recovery"):
            state = loaded.state
            if state["step"] > spec.steps:
                raise ConfigurationError(
                    f"{checkpoint} was written after step {state['step']}, but this trial has steps={spec.steps}: "
                    "nothing would be trained. Give a checkpoint of this trial, or more steps"
                )
            policy.load_parameters(loaded.tensors["model"])
            learner.load_state_dict(loaded.tensors, state["updates_done"], state["base_lr"])
            sampler.load_state_dict(state["data"])
            torch.set_rng_state(loaded.tensors["rng"]["torch"])
    with clock.phase("startup"):
        engine = create_engine(spec.rollout, policy, state["policy_version"] if state else 0)
        cleanup.callback(engine.close)
        notes += (probe_engine(engine, policy, spec.rollout, longest),)
    return Components(policy, learner, engine, task, prompts, sampler, scorer, clock, notes), state


def _with_precision(
    trainer: TrainerSpec, device: torch.device, state: Mapping[str, Any] | None
) -> tuple[TrainerSpec, tuple[str, ...]]:
    """(the settings with a chosen precision, sentences that give the reason). A resumed attempt keeps its precision."""
    from rl.precision import choose_precision

    if trainer.precision != "auto":
        return trainer, ()
    if state is not None and "precision" in state:
        precision, reason = state["precision"], "the checkpoint was trained with it"
    else:
        choice = choose_precision(device)
        precision, reason = choice.precision, choice.reason
    return dataclasses.replace(trainer, precision=precision), (f"precision {precision}: {reason}",)


def _device(spec: TrialSpec) -> torch.device:
    import torch

    if spec.trainer.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError("trainer.device=cuda, but torch finds no CUDA card on this machine; use cpu or auto")
    if spec.trainer.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _set_determinism(on: bool) -> None:
    import torch

    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.benchmark = False


def set_openmp_wait_policy() -> None:
    """Make idle OpenMP threads sleep instead of spin. Has no effect once torch is loaded, so nothing is set then.

    On a CPU that is shared with other processes, a spinning thread uses up its time slice while the thread that it
    waits for does not run. Sampling was measured to be ten times slower that way.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _out_of_memory(spec: TrialSpec, where: str, error: BaseException) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"out of {where} memory: {error}. trainer.micro_batch_tokens={spec.trainer.micro_batch_tokens} and "
        f"rollout.max_batch_completions={spec.rollout.max_batch_completions} can be halved without changing the result"
    )
