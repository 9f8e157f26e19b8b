"""Trains the real learner on fixed rollout batches in real rank processes; faults can be injected into one rank."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from rl.batch import Denominators, count_denominators
from rl.codec import to_json
from rl.parallel.processes import RankProcesses
from rl.parallel.rank import join, leave
from rl.parallel.shard import shard
from rl.phases import PhaseClock
from rl.ranks import ProcessGroup, SingleRank, whole
from rl.spec import AlgorithmSpec, TrainerSpec
from rl.trainers.native import learner as module
from rl.trainers.native.learner import Learner
from tests.rl.random_llama import random_llama_policy
from tests.rl.trainers.native.small_learner import STEADY, VOCABULARY, make_groups

STEPS = 5
# Token means, so that a mean of the ranks' means differs from the mean over all tokens. The clip of the norm is active.
ALGORITHM = AlgorithmSpec(name="dapo", aggregation="token_mean", kl_coef=0.1, max_grad_norm=0.05, **STEADY)


@dataclasses.dataclass(frozen=True)
class Run:
    sharding: str = "none"
    dtype: str = "float64"
    fault: str = ""
    """Of rank 1: `dropped` or `twice`, its gradient; `mean_of_means`: every rank divides by its own counts."""
    groups: int = 5
    micro_batch_tokens: int = 40


class InjectedRank:
    """A rank of a process group that trains fresh policies."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def join(self, store: str) -> None:
        if self.size > 1:
            join(self.rank, self.size, Path(store), "cpu")

    def train(self, run: Run) -> dict[str, Any]:
        """The update (parameters after the last step minus before), the curves, and the gathered optimiser state."""
        torch.set_num_threads(1)  # of this thread
        dtype = getattr(torch, run.dtype)
        policy = random_llama_policy(VOCABULARY, dtype=dtype)
        reference = random_llama_policy(VOCABULARY, seed=1, dtype=dtype).frozen_copy()
        before = [p.detach().clone() for _, p in policy.parameters()]
        if run.sharding == "full":
            shard(policy)
        trainer = TrainerSpec(precision="fp32", micro_batch_tokens=run.micro_batch_tokens, packing=False)
        ranks = ProcessGroup() if self.size > 1 else SingleRank()
        total = STEPS * ALGORITHM.updates_per_rollout
        learner = Learner(policy, reference, ALGORITHM, trainer, 0.7, total, ranks)
        policy_loss, denominators = module.policy_loss, Learner._denominators
        if run.fault in ("dropped", "twice") and self.rank == 1:
            factor = 0.0 if run.fault == "dropped" else 2.0

            def faulty_loss(*args: Any) -> Any:
                loss, sums = policy_loss(*args)
                return loss * factor, sums

            module.policy_loss = faulty_loss
        if run.fault == "mean_of_means":

            def own_counts(self: Learner, mini: Any) -> Denominators:
                own = sum((count_denominators(m.loss_mask) for m in mini), Denominators(0, 0))
                denominators(self, mini)
                return Denominators(own.tokens * ranks.size, own.sequences * ranks.size)

            Learner._denominators = own_counts
        try:
            curves = []
            for step in range(STEPS):
                done = learner.learn(make_groups(run.groups, seed=step), PhaseClock(cards=1), check_ratio=step == 0)
                curves.append([to_json(u) for u in done.updates] + [done.sampler.sums.tolist(), done.loss_tokens])
        finally:
            module.policy_loss, Learner._denominators = policy_loss, denominators
        update = [whole(p.detach()) - b for (_, p), b in zip(policy.parameters(), before, strict=True)]
        moments = [t for part in learner.state_dict().values() for t in part.values()]
        return {
            "update": torch.cat([u.double().flatten() for u in update]).tolist(),
            "curves": json.loads(json.dumps(curves)),
            "moments": torch.cat([m.double().flatten() for m in moments]).tolist(),
        }


class InjectedRanks:
    """Processes of `size` ranks, with rank 0 in this process."""

    def __init__(self, size: int, folder: Path) -> None:
        self.own = InjectedRank(0, size)
        self.processes = RankProcesses(size, InjectedRank, {"OMP_NUM_THREADS": "1"})
        store = str(folder / f"store-{size}")
        self.processes.run("join", [(store,)] * size, lambda: self.own.join(store), 120.0)

    def train(self, run: Run) -> list[dict[str, Any]]:
        return self.processes.run("train", [(run,)] * self.own.size, lambda: self.own.train(run), 120.0)

    def close(self) -> None:
        self.processes.close()
        leave()
