"""The learner: turns scored completions into optimiser updates, and computes the curves of each update.

A rollout batch is split into mini-batches of whole groups, one optimiser update each. A mini-batch is split into
micro-batches by a token budget, and its micro-batches are distributed over the ranks. Losses are shares of sums that
are divided by counts of the whole update, so the split changes the gradient by rounding only.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rl.advantages import advantages, kl_in_reward, zero_variance
from rl.batch import Denominators, LossBatch, count_denominators, make_loss_mask
from rl.curves import SamplerSums, UpdateSums, ratio_is_one
from rl.layout import MicroBatch, Sequences, micro_batches, packing_is_faster
from rl.losses import policy_loss
from rl.phases import PhaseClock
from rl.policy import Policy
from rl.ranks import Ranks, is_sharded, sharded_like, whole
from rl.rollout.engine import Completion
from rl.schedule import lr_factor
from rl.spec import AlgorithmSpec, TrainerSpec, TrialError, UpdateCurves

_OPTIMIZER = "optimizer-"
"""Prefix of the optimiser's parts in `Learner.state_dict`."""


@dataclass(frozen=True)
class Group:
    """The completions of one prompt with their rewards."""

    question_id: str
    prompt: tuple[int, ...]
    """Token ids."""
    completions: tuple[Completion, ...]
    rewards: tuple[float, ...]
    """Per completion: weighted rewards plus overlong penalty, before a KL in the reward is subtracted."""


@dataclass(frozen=True)
class LearnedStep:
    """The result of training on one rollout batch, reduced over all ranks."""

    updates: tuple[UpdateCurves, ...]
    sampler: SamplerSums
    rewards: Float[Tensor, "prompts group"]
    """The rewards that were optimised: those of the groups, minus the KL if `kl_placement` is `reward`."""
    zero_std: tuple[bool, ...]
    """Per group: whether all its optimised rewards are equal."""
    loss_tokens: int
    trained: tuple[bool, ...]
    """Per group: whether it has at least one loss token."""


@dataclass
class _PreparedMicroBatch:
    """A micro-batch with all inputs of the loss except the policy's forward pass. Tensors are [sequences, width]."""

    batch: MicroBatch
    rows: Tensor
    """[sequences]: indices of the completions in the rollout batch, counted over prompts and groups."""
    loss_mask: Tensor
    completion_mask: Tensor
    sampler: Tensor
    """Log-probabilities that the rollout engine reported."""
    old: Tensor | None = None
    """Log-probabilities under the old policy. None: those of the training pass are used, without gradient."""
    reference: Tensor | None = None
    """Log-probabilities under the reference. None: there is no reference."""
    recomputed: Tensor | None = None
    """Log-probabilities before the first update from a pass of its own. None: the ratio is not checked in this step."""


class Learner:
    """Trains a policy with AdamW, and counts optimiser updates.

    `base_lr`, the learning rate before the schedule, may be set between updates.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Policy | None,
        algorithm: AlgorithmSpec,
        trainer: TrainerSpec,
        temperature: float,
        total_updates: int,
        ranks: Ranks,
    ) -> None:
        """
        Args:
            reference: the frozen policy for the KL. None: with LoRA the policy without its adapters is the reference;
                without LoRA there is none.
            temperature: sampling temperature, at which log-probabilities are computed.
            total_updates: length of the learning-rate schedule in optimiser updates.
        """
        self.policy = policy
        self.base_lr = algorithm.lr
        self.updates_done = 0
        self._reference = reference
        self._algorithm = algorithm
        self._trainer = trainer
        self._temperature = temperature
        self._total_updates = total_updates
        self._ranks = ranks
        self._sharded = any(is_sharded(p) for _, p in policy.parameters())
        self.optimizer = _adamw(policy, algorithm)

    def learn(self, groups: Sequence[Group], clock: PhaseClock, check_ratio: bool = False) -> LearnedStep:
        """Train on a rollout batch: `updates_per_rollout` updates, or one per group if there are fewer groups.

        With `check_ratio` the curves `ratio` and `approx_kl` of the first update compare its log-probabilities with
        those of another pass, over padded rows and half as large micro-batches. Without it, and always in the loss,
        they are compared with themselves. So a model with random passes, or one that computes packed rows wrongly, has
        a ratio away from 1 in a checked step.

        All ranks get the whole batch in the same order, and compute all advantages. The micro-batches of each update
        are distributed over the ranks. So the completions of an update, and those of a standard deviation, do not
        depend on the number of ranks. The result is the same on every rank.

        Raises:
            TrialError: the gradient is not finite. The weights are those before the update.
        """
        minis = [self._prepare(groups, part) for part in _parts(len(groups), self._algorithm.updates_per_rollout)]
        with clock.phase("logprob"), torch.no_grad():
            self._recompute(minis)
            # Old log-probabilities that are in the micro-batches already come from a pass of their own.
            if check_ratio and minis and all(micro.old is None for micro in minis[0]):
                self._recompute_in_another_split(groups, minis[0])
            rewards = self._rewards(groups, [m for mini in minis for m in mini])
            advantage = advantages(rewards, self._algorithm).flatten().to(self.policy.device)
        sampler = SamplerSums.empty(self.policy.device)
        curves = []
        for index, mini in enumerate(minis):
            with clock.phase("train"):
                update, seen = self._update(mini, advantage, index)
            curves.append(update)
            sampler = sampler + seen
        # In the schedule a step always counts as `updates_per_rollout` updates, even if it made fewer.
        self.updates_done += self._algorithm.updates_per_rollout - len(minis)
        self._ranks.sum_(sampler.sums)
        self._ranks.max_(sampler.maxima)
        tokens = self._loss_tokens_per_group(minis, len(groups), rewards.shape[1])
        return LearnedStep(
            updates=tuple(curves),
            sampler=sampler,
            rewards=rewards,
            zero_std=tuple(zero_variance(rewards).tolist()),
            loss_tokens=sum(tokens),
            trained=tuple(n > 0 for n in tokens),
        )

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The optimiser's state: one part per kind (moments, step counts), each with tensors by parameter name.

        Sharded tensors are gathered, so all ranks must call this at the same time.
        Parts are separate because storing a part copies it: one part for all would need twice the model's memory.
        """
        parts: dict[str, dict[str, Tensor]] = {}
        for name, parameter in self.policy.parameters():
            for kind, value in self.optimizer.state[parameter].items():
                parts.setdefault(f"{_OPTIMIZER}{kind}", {})[name] = whole(value)
        return parts

    def load_state_dict(self, parts: Mapping[str, Mapping[str, Tensor]], updates_done: int, base_lr: float) -> None:
        """Continue from the parts that `state_dict` returned. Other parts are ignored.

        A parameter without state in `parts` was never updated.
        """
        self.updates_done, self.base_lr = updates_done, base_lr
        parameters = dict(self.policy.parameters())
        for part, tensors in parts.items():
            if part.startswith(_OPTIMIZER):
                for name, value in tensors.items():
                    kind, parameter = part.removeprefix(_OPTIMIZER), parameters[name]
                    is_moment = value.shape == parameter.shape
                    self.optimizer.state[parameter][kind] = (
                        sharded_like(value, parameter) if is_moment else value.to(parameter.device)
                    )

    def _prepare(self, groups: Sequence[Group], part: range) -> list[_PreparedMicroBatch]:
        """The micro-batches of this rank of the groups in `part`; possibly none.

        With sharded weights all ranks run the same number of passes. A rank with fewer micro-batches then gets some of
        another rank's, without loss tokens.
        """
        chosen = [groups[i] for i in part]
        flat = [c for g in chosen for c in g.completions]
        first = part.start * len(groups[0].completions) if part else 0
        sequences = [Sequences(g.prompt, tuple(c.ids for c in g.completions)) for g in chosen]
        tokens, packing = self._trainer.micro_batch_tokens, self._trainer.packing
        if packing == "auto":
            packing = packing_is_faster(sequences, tokens, self.policy.pair_cost)
        laid_out = micro_batches(sequences, tokens, packing, self.policy.pad_id)
        micros = []
        own = laid_out[self._ranks.rank :: self._ranks.size]
        missing = len(laid_out[:: self._ranks.size]) - len(own) if self._sharded else 0
        for batch, is_own in [*((b, True) for b in own), *((b, False) for b in laid_out[:1] * missing)]:
            mask = batch.completion_mask()
            sampler = torch.zeros(mask.shape)
            sampler[mask] = torch.tensor([x for s in batch.sequences for x in flat[s].logprobs])
            truncated = torch.tensor([flat[s].truncated for s in batch.sequences])
            loss_mask = make_loss_mask(mask, truncated, self._algorithm, sampler)
            if not is_own:
                loss_mask, mask = torch.zeros_like(loss_mask), torch.zeros_like(mask)
            rows = torch.tensor(batch.sequences) + first
            device = self.policy.device
            micros.append(
                _PreparedMicroBatch(
                    batch.to(device), rows.to(device), loss_mask.to(device), mask.to(device), sampler.to(device)
                )
            )
        return micros

    def _recompute(self, minis: Sequence[Sequence[_PreparedMicroBatch]]) -> None:
        """Set the log-probabilities of the policy before the first update, and those of the reference, where needed.

        The first mini-batch gets no old log-probabilities unless the reward needs them, since its training pass
        computes the same numbers.
        """
        algorithm = self._algorithm
        for index, mini in enumerate(minis):
            for micro in mini:
                if algorithm.old_logprobs == "sampler":
                    micro.old = micro.sampler
                elif index > 0 or _kl_in_reward(algorithm):
                    micro.old = self.policy.forward(micro.batch, self._temperature)[0]
                if self._reference is not None:
                    micro.reference = self._reference.forward(micro.batch, self._temperature)[0]
                elif algorithm.kl_coef > 0:
                    with self.policy.reference_weights():
                        micro.reference = self.policy.forward(micro.batch, self._temperature)[0]

    def _recompute_in_another_split(self, groups: Sequence[Group], mini: Sequence[_PreparedMicroBatch]) -> None:
        """Set `recomputed` of the micro-batches of the first update, from padded rows in smaller micro-batches."""
        size = len(groups[0].completions)
        numbers = [row for micro in mini for row in micro.rows.tolist()]
        rows = [Sequences(groups[i // size].prompt, (groups[i // size].completions[i % size].ids,)) for i in numbers]
        tokens = max(1, self._trainer.micro_batch_tokens // 2)
        found: dict[int, Tensor] = {}
        batches = micro_batches(rows, tokens, packing=False, pad_id=self.policy.pad_id)
        if self._sharded:  # all ranks run the same number of passes
            most = torch.tensor([float(len(batches))], device=self.policy.device)
            self._ranks.max_(most)
            batches += batches[:1] * (int(most) - len(batches))
        for batch in batches:
            logprobs, _ = self.policy.forward(batch, self._temperature)
            for row, sequence in enumerate(batch.sequences):
                found[numbers[sequence]] = logprobs[row]
        for micro in mini:
            micro.recomputed = torch.zeros_like(micro.sampler, dtype=next(iter(found.values())).dtype)
            for row, number in enumerate(micro.rows.tolist()):
                width = min(micro.recomputed.shape[1], len(found[number]))
                micro.recomputed[row, :width] = found[number][:width]

    def _rewards(
        self, groups: Sequence[Group], micros: Sequence[_PreparedMicroBatch]
    ) -> Float[Tensor, "prompts group"]:
        """The rewards to optimise, float64: those of `groups`, minus the KL if it belongs to the reward."""
        rewards = torch.tensor([g.rewards for g in groups], dtype=torch.float64)
        if not _kl_in_reward(self._algorithm):
            return rewards
        penalty = torch.zeros(rewards.numel(), dtype=torch.float64, device=self.policy.device)
        for m in micros:
            assert m.old is not None
            assert m.reference is not None
            penalty[m.rows] = kl_in_reward(m.old, m.reference, m.loss_mask, self._algorithm)
        self._ranks.sum_(penalty)
        return rewards - penalty.cpu().view(rewards.shape)

    def _update(
        self, mini: Sequence[_PreparedMicroBatch], advantage: Tensor, index: int
    ) -> tuple[UpdateCurves, SamplerSums]:
        """One optimiser update; `index` counts within the step. Every rank calls the same reductions.

        Returns (the curves of the update over all ranks, the sampler sums of this rank).
        """
        device, algorithm = self.policy.device, self._algorithm
        denominators = self._denominators(mini)
        sums, sampler = UpdateSums.empty(device), SamplerSums.empty(device)
        for micro in mini:
            logprobs, entropy = self.policy.forward(micro.batch, self._temperature)
            batch = LossBatch(
                logprobs=logprobs,
                old_logprobs=logprobs.detach() if micro.old is None else micro.old,
                sampler_logprobs=micro.sampler,
                reference_logprobs=micro.reference,
                entropy=entropy,
                loss_mask=micro.loss_mask,
                advantages=advantage[micro.rows],
            )
            loss, part = policy_loss(batch, algorithm, denominators)
            loss.backward()
            if micro.recomputed is not None:
                part = part.with_ratio_of(_measured_sums(batch, micro.recomputed, algorithm, denominators))
            sums = sums + part
            if algorithm.old_logprobs == "learner":
                sampler = sampler + self._against_sampler(batch.old_logprobs, micro)
            elif index == 0:  # after the first update the policy is no longer the one that sampled
                sampler = sampler + self._against_sampler(logprobs.detach(), micro)
        self._ranks.sum_(sums.sums)
        self._ranks.max_(sums.maxima)
        lr = self.base_lr * lr_factor(algorithm, self.updates_done, self._total_updates)
        grad_norm = self._step_optimizer(lr, denominators)
        self.updates_done += 1
        return sums.curves(grad_norm=grad_norm, lr=lr, ratio_is_one=ratio_is_one(algorithm, index)), sampler

    def _denominators(self, mini: Sequence[_PreparedMicroBatch]) -> Denominators:
        """The counts of the update over all ranks."""
        own = sum((count_denominators(m.loss_mask) for m in mini), Denominators(0, 0))
        counts = torch.tensor([own.tokens, own.sequences], dtype=torch.float64, device=self.policy.device)
        self._ranks.sum_(counts)
        return Denominators(int(counts[0]), int(counts[1]))

    def _loss_tokens_per_group(
        self, minis: Sequence[Sequence[_PreparedMicroBatch]], groups: int, size: int
    ) -> list[int]:
        """Loss tokens of each of the `groups` groups of `size` completions, over all ranks."""
        counts = torch.zeros(groups, dtype=torch.float64, device=self.policy.device)
        for mini in minis:
            for m in mini:
                counts.index_add_(0, m.rows // size, m.loss_mask.sum(dim=1).double())
        self._ranks.sum_(counts)
        return [int(n) for n in counts.tolist()]

    def _against_sampler(self, logprobs: Tensor, micro: _PreparedMicroBatch) -> SamplerSums:
        return SamplerSums.of(logprobs, micro.sampler, micro.completion_mask, self._algorithm)

    def _step_optimizer(self, lr: float, denominators: Denominators) -> float:
        """Sum the gradients over ranks, clip them, and step. Returns the gradient norm before clipping.

        An update without loss tokens does not change the weights.
        """
        parameters = [p for _, p in self.policy.parameters()]
        if self._ranks.size > 1 and not self._sharded:  # FSDP has summed them in the backward pass
            for p in parameters:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                self._ranks.sum_(p.grad)
        norm = float(whole(torch.nn.utils.clip_grad_norm_(parameters, self._algorithm.max_grad_norm)))
        if not torch.isfinite(torch.tensor(norm)):
            raise TrialError(
                f"the gradient norm of optimiser update {self.updates_done} is {norm}: training has diverged. Try an "
                f"algorithm.lr below {lr:g} first, or a smaller algorithm.max_grad_norm"
            )
        if denominators.tokens:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def _adamw(policy: Policy, algorithm: AlgorithmSpec) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices, without it on norms and biases."""
    named = policy.parameters()
    matrices = [p for _, p in named if p.ndim >= 2]
    others = [p for _, p in named if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": algorithm.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=algorithm.lr,
        betas=(algorithm.adam_beta1, algorithm.adam_beta2),
        eps=algorithm.adam_eps,
        fused=True,
    )


@torch.no_grad()
def _measured_sums(
    batch: LossBatch, recomputed: Tensor, algorithm: AlgorithmSpec, denominators: Denominators
) -> UpdateSums:
    """The sums of `batch` with other old log-probabilities, for the curves only."""
    return policy_loss(dataclasses.replace(batch, old_logprobs=recomputed), algorithm, denominators)[1]


def _kl_in_reward(algorithm: AlgorithmSpec) -> bool:
    return algorithm.kl_placement == "reward" and algorithm.kl_coef > 0


def _parts(groups: int, updates: int) -> list[range]:
    """Index ranges that split `groups` groups into `updates` parts of nearly equal size, none of them empty."""
    updates = min(updates, groups)
    bounds = [groups * i // updates for i in range(updates + 1)] if updates else [0]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
