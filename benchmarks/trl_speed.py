"""Step time and peak memory of this project's trainer and of TRL's, for the same work. Run by grpo_vs_trl.py --speed.

Both sides sample with transformers from the same weights and train with one update per step: the same number of
prompts, completions and tokens, AdamW, no KL term, no gradient checkpointing. No completion ends early, so every step
has the same number of tokens. Each measurement is a process of its own, which prints one line of JSON. The first step
is not counted: it loads kernels and allocates the optimiser's state.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

Side = Literal["ours", "trl"]
LEARNING_RATE = 1e-6
PROMPT = "Add the two numbers and answer with the sum only. What is {a} plus {b}?"


@dataclass(frozen=True)
class Work:
    """What both sides do in each step."""

    model: str
    """A folder with weights and a tokenizer."""
    precision: Literal["fp32", "bf16"]
    prompts: int
    group: int
    tokens: int
    """Tokens of every completion."""
    steps: int
    """Steps that are counted."""
    micro_batch_tokens: int


@dataclass(frozen=True)
class Measured:
    """Seconds of each counted step, and the largest memory of the process, or of the card."""

    seconds: list[float]
    peak_gib: float


def measure_ours(work: Work) -> Measured:
    import torch

    from rl.phases import PhaseClock, wait_for_cuda
    from rl.policy import load_policy
    from rl.ranks import SingleRank
    from rl.rollout.engine import Sampling
    from rl.rollout.transformers_engine import TransformersEngine
    from rl.spec import AlgorithmSpec, ModelSpec, RolloutSpec, TrainerSpec
    from rl.trainers.native.learner import Group, Learner

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = TrainerSpec(precision=work.precision, micro_batch_tokens=work.micro_batch_tokens)
    policy = load_policy(Path(work.model), ModelSpec("hf", path=work.model), trainer, device)
    prompts = [policy.tokenizer(text)["input_ids"] for text in _texts(work)]
    # Without end-of-sequence tokens every completion has the same length.
    policy = _without_end(policy)
    engine = TransformersEngine(RolloutSpec("transformers"), policy, 0)
    algorithm = AlgorithmSpec("grpo", lr=LEARNING_RATE, updates_per_rollout=1)
    learner = Learner(policy, None, algorithm, trainer, 1.0, work.steps + 1, SingleRank())
    clock = PhaseClock(cards=1, wait_for_card=wait_for_cuda)
    rewards = tuple(float(i % 2) for i in range(work.group))
    seconds = []
    for step in range(work.steps + 1):
        start = time.perf_counter()
        with clock.phase("rollout"):
            sampled = engine.generate(
                prompts, Sampling(n=work.group, temperature=1.0, max_tokens=work.tokens, seed=step)
            )
        groups = [
            Group(str(i), tuple(prompt), tuple(group), rewards)
            for i, (prompt, group) in enumerate(zip(prompts, sampled, strict=True))
        ]
        learner.learn(groups, clock)
        with clock.phase("sync"):
            engine.sync(policy, step + 1)
        seconds.append(time.perf_counter() - start)
    return Measured(seconds[1:], _peak_gib())


def _without_end(policy: Any) -> Any:
    import dataclasses

    return dataclasses.replace(policy, eos_ids=frozenset({-1}))


def measure_trl(work: Work) -> Measured:
    import tempfile

    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    starts, seconds = [], []

    class Times(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            starts.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - starts[-1])

    def reward(completions: list[Any], **_: Any) -> list[float | None]:
        return [float(i % 2) for i in range(len(completions))]

    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "output_dir": folder,
            "use_cpu": not torch.cuda.is_available(),
            "bf16": work.precision == "bf16",
            "model_init_kwargs": {"dtype": "float32"},
            "per_device_train_batch_size": work.prompts * work.group,
            "gradient_accumulation_steps": 1,
            "num_generations": work.group,
            "max_completion_length": work.tokens,
            "generation_kwargs": {"min_new_tokens": work.tokens},
            "temperature": 1.0,
            "beta": 0.0,
            "loss_type": "grpo",
            "learning_rate": LEARNING_RATE,
            "lr_scheduler_type": "constant",
            "gradient_checkpointing": False,
            "max_steps": work.steps + 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
        }
        trainer = GRPOTrainer(
            model=work.model,
            args=GRPOConfig(**settings),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": _texts(work) * (work.steps + 1)}),
            callbacks=[Times()],
        )
        trainer.train()
    return Measured(seconds[1:], _peak_gib())


def _texts(work: Work) -> list[str]:
    return [PROMPT.format(a=10 + i, b=20 + i) for i in range(work.prompts)]


def _peak_gib() -> float:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # ru_maxrss is in KiB on Linux


def measure(side: Side, work: Work) -> Measured:
    """Measure one side in a process of its own.

    Raises:
        RuntimeError: the process failed; the message has the end of its output.
    """
    done = subprocess.run(
        [sys.executable, __file__, side, json.dumps(asdict(work))],
        capture_output=True,
        text=True,
        env={"OMP_WAIT_POLICY": "PASSIVE", "TRL_EXPERIMENTAL_SILENCE": "1", **os.environ},
    )
    if done.returncode:
        raise RuntimeError(f"measuring {side} failed:\n{done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def compare(work: Work, pairs: int) -> None:
    """Measure both sides `pairs` times, one after the other, and print medians and their ratio."""
    found: dict[Side, list[Measured]] = {"ours": [], "trl": []}
    for _ in range(pairs):
        for side in found:
            found[side].append(measure(side, work))
    seconds = {side: statistics.median(s for m in runs for s in m.seconds) for side, runs in found.items()}
    memory = {side: statistics.median(m.peak_gib for m in runs) for side, runs in found.items()}
    ratios = [statistics.median(a.seconds) / statistics.median(b.seconds) for a, b in zip(*found.values(), strict=True)]
    print(
        f"{work.precision:>9}  {seconds['ours']:8.2f} s  {seconds['trl']:8.2f} s  {statistics.median(ratios):6.2f}  "
        f"{memory['ours']:8.2f} GiB  {memory['trl']:8.2f} GiB  {memory['ours'] / memory['trl']:6.2f}",
        flush=True,
    )


def print_comparison(model: str, precisions: list[str], pairs: int, **sizes: int) -> None:
    """Print a table with one row per precision."""
    work = Work(model=model, precision="fp32", **sizes)
    print(
        f"{work.prompts} prompts x {work.group} completions x {work.tokens} tokens, {pairs} pairs of {work.steps} steps"
    )
    print("precision  ours, step  TRL, step   ratio   ours, peak     TRL, peak   ratio")
    for precision in precisions:
        compare(Work(**{**asdict(work), "precision": precision}), pairs)


if __name__ == "__main__":
    result = {"ours": measure_ours, "trl": measure_trl}[sys.argv[1]](Work(**json.loads(sys.argv[2])))
    print(json.dumps(asdict(result)))
