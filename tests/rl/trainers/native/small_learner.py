"""Runs the real learner on a small Llama in float64 and on fixed rollout batches, in one process or on gloo ranks.

`OMP_NUM_THREADS=1 python -m tests.rl.trainers.native.small_learner FOLDER` runs every case on 1, 2, 3 and 4 gloo ranks.
Each rank writes its results to FOLDER.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from rl.codec import to_json
from rl.phases import PhaseClock
from rl.policy import Policy
from rl.ranks import ProcessGroup, Ranks, SingleRank
from rl.rollout.engine import Completion
from rl.spec import AlgorithmSpec, TrainerSpec
from rl.trainers.native.learner import Group, Learner
from tests.rl.random_llama import random_llama_policy

MAX_RANKS = 4
VOCABULARY = 17
EOS = 1


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings for one training run on fixed rollout batches."""

    algorithm: AlgorithmSpec
    groups: int = 5
    """Number of groups in a rollout batch."""
    micro_batch_tokens: int = 40
    packing: bool = False


# A large epsilon: with Adam's default, a gradient that is zero up to rounding errors would become a full step.
STEADY: dict[str, Any] = {"lr": 1e-3, "adam_eps": 1e-2}

# One case for each way in which numbers are reduced over ranks: every aggregation, a std over prompts, a KL in the
# reward, masked completions, and batches so small that some ranks have no micro-batch.
CASES = {
    "grpo": Case(AlgorithmSpec(name="grpo", kl_coef=0.1, **STEADY)),
    "dapo_packed": Case(
        AlgorithmSpec(name="dapo", aggregation="token_mean", clip_eps_high=0.28, mask_truncated=True, **STEADY),
        packing=True,
    ),
    "dr_grpo_batch_std": Case(
        AlgorithmSpec(
            name="dr_grpo", aggregation="constant", aggregation_constant=6, advantage_scale="batch_std", **STEADY
        )
    ),
    "gspo_kl_in_reward": Case(
        AlgorithmSpec(
            name="gspo",
            ratio_level="sequence",
            kl_coef=0.3,
            kl_placement="reward",
            kl_estimator="k1",
            updates_per_rollout=3,
            **STEADY,
        )
    ),
    "cispo_corrected": Case(
        AlgorithmSpec(
            name="cispo",
            surrogate="cispo",
            clip_eps_low=0.0,
            clip_eps_high=5.0,
            aggregation="token_mean",
            sampler_correction="sequence",
            **STEADY,
        )
    ),
    "one_group_for_all": Case(AlgorithmSpec(name="grpo", updates_per_rollout=1, **STEADY), groups=1),
    "one_micro_batch": Case(AlgorithmSpec(name="grpo", **STEADY), groups=2, micro_batch_tokens=10_000),
}


def make_policy(seed: int = 0) -> Policy:
    """A new float64 policy with seeded weights."""
    return random_llama_policy(VOCABULARY, seed=seed, dtype=torch.float64)


def make_groups(groups: int, size: int = 4, seed: int = 0) -> list[Group]:
    """Groups of unequal lengths. Some completions are truncated, and one has a NaN sampler log-probability."""
    r = random.Random(seed)
    made = []
    for g in range(groups):
        completions = []
        for k in range(size):
            length = r.choice([1, 2, 3, 5, 8])
            truncated = r.random() < 0.25
            ids = [r.randrange(2, VOCABULARY) for _ in range(length)]
            if not truncated:
                ids[-1] = EOS
            logprobs = [-3 * r.random() for _ in range(length)]
            if (g, k) == (0, 1):
                logprobs[0] = float("nan")
            completions.append(Completion(tuple(ids), tuple(logprobs), "length" if truncated else "stop", 0))
        made.append(
            Group(
                question_id=str(g),
                prompt=tuple(r.randrange(2, VOCABULARY) for _ in range(r.choice([2, 4, 7]))),
                completions=tuple(completions),
                rewards=tuple(r.choice([0.0, 0.1, 0.35, 1.0]) for _ in range(size)),
            )
        )
    return made


def learn(case: Case, ranks: Ranks | None = None, steps: int = 2) -> dict[str, Any]:
    """Train for `steps` steps. Returns the final parameters and all reported values, as JSON types."""
    policy = make_policy()
    reference = make_policy(seed=1).frozen_copy() if case.algorithm.kl_coef else None
    trainer = TrainerSpec(precision="fp32", micro_batch_tokens=case.micro_batch_tokens, packing=case.packing)
    total = steps * case.algorithm.updates_per_rollout
    learner = Learner(policy, reference, case.algorithm, trainer, 0.7, total, ranks or SingleRank())
    reported = []
    for step in range(steps):
        done = learner.learn(make_groups(case.groups, seed=step), PhaseClock(cards=1))
        reported.append(
            {
                "updates": [to_json(u) for u in done.updates],
                "sampler": [*done.sampler.sums.tolist(), *done.sampler.maxima.tolist()],
                "rewards": done.rewards.tolist(),
                "zero_std": list(done.zero_std),
                "trained": list(done.trained),
                "loss_tokens": done.loss_tokens,
            }
        )
    parameters = torch.cat([p.detach().flatten() for _, p in policy.parameters()])
    return {"parameters": parameters.tolist(), "reported": reported}


def run_rank(rank: int, folder: Path) -> None:
    """Run all cases as rank `rank` of each process group that has it; write `SIZE-CASE-RANK.json` for each case."""
    import torch.distributed as dist

    for size in range(rank + 1, MAX_RANKS + 1):
        dist.init_process_group("gloo", init_method=f"file://{folder}/store-{size}", rank=rank, world_size=size)
        for name, case in CASES.items():
            (folder / f"{size}-{name}-{rank}.json").write_text(json.dumps(learn(case, ProcessGroup())))
        dist.destroy_process_group()


def main(folder: Path) -> int:
    """Fork MAX_RANKS processes, after the slow imports and before torch has started a thread. Returns the exit code."""
    import transformers.models.llama.modeling_llama  # noqa: F401

    pids = {}
    for rank in range(MAX_RANKS):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run_rank(rank, folder)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        pids[pid] = rank
    while pids:
        pid, status = os.wait()
        rank = pids.pop(pid)
        if status:
            for other in pids:  # they would wait for the failed rank
                os.kill(other, signal.SIGKILL)
            print(f"rank {rank} failed")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
