"""Curves as sums, counts and extremes that add up over micro-batches and ranks; means are taken once, at the end.

`UpdateSums`, `SamplerSums` and `RolloutSums` each have two flat float64 tensors: `sums`, to be all-reduced with SUM,
and `maxima`, to be all-reduced with MAX (minima are stored negated). The caller does the reduction.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from rl.batch import LossBatch
from rl.estimators import sampler_weights
from rl.spec import AlgorithmSpec, Curves, Mean, UpdateCurves

S = TypeVar("S", bound="_Sums")


@dataclass(frozen=True)
class _Sums:
    sums: Float64[Tensor, " quantities"]
    maxima: Float64[Tensor, " extremes"]

    def __add__(self: S, other: S) -> S:
        return type(self)(self.sums + other.sums, torch.maximum(self.maxima, other.maxima))


@dataclass(frozen=True)
class UpdateSums(_Sums):
    """The sums behind `rl.spec.UpdateCurves`, over any part of the tokens of one optimiser update."""

    NAMES: ClassVar[tuple[str, ...]] = (
        *("tokens", "ratio_count", "ratio", "clip_low", "clip_high", "approx_kl", "entropy", "loss"),
        *("kl_count", "kl"),
    )

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> UpdateSums:
        """The sums of a rank or micro-batch without tokens; the neutral element of `+`."""
        return cls(
            torch.zeros(len(cls.NAMES), dtype=torch.float64, device=device),
            torch.full((2,), -torch.inf, dtype=torch.float64, device=device),
        )

    @classmethod
    def of(
        cls, batch: LossBatch, *, loss: Tensor, ratio: Tensor, ratio_mask: Tensor, clip_low: Tensor, clip_high: Tensor
    ) -> UpdateSums:
        """The sums of one micro-batch.

        `ratio`, `ratio_mask`, `clip_low` and `clip_high` are [sequences, tokens], or [sequences, 1] where the ratio is
        one per sequence. `loss` is this micro-batch's share of the update's loss.
        """
        mask = batch.loss_mask
        log_ratio = torch.where(mask, (batch.logprobs.detach() - batch.old_logprobs).double(), 0.0)
        kl_count, kl = torch.zeros_like(loss), torch.zeros_like(loss)
        if batch.reference_logprobs is not None:
            d = torch.where(mask, (batch.reference_logprobs - batch.logprobs.detach()).double(), 0.0)
            kl_count, kl = mask.sum(), _k3(d).sum()
        ratio = torch.where(ratio_mask, ratio.double(), 0.0)
        parts = (
            *(mask.sum(), ratio_mask.sum(), ratio.sum(), (clip_low & ratio_mask).sum(), (clip_high & ratio_mask).sum()),
            *(_k3(log_ratio).sum(), torch.where(mask, batch.entropy.detach().double(), 0.0).sum(), loss, kl_count, kl),
        )
        return cls(_stack(parts), torch.stack([_max(-ratio, ratio_mask), _max(ratio, ratio_mask)]))

    def with_ratio_of(self, other: UpdateSums) -> UpdateSums:
        """These sums with `ratio`, its extremes and `approx_kl` of sums over the same tokens."""
        sums = self.sums.clone()
        for name in ("ratio_count", "ratio", "approx_kl"):
            sums[self.NAMES.index(name)] = other.sums[self.NAMES.index(name)]
        return UpdateSums(sums, other.maxima)

    def curves(self, *, grad_norm: float, lr: float, ratio_is_one: bool) -> UpdateCurves:
        """The curves of the update. Call this on sums that are already added over all micro-batches and ranks.

        With `ratio_is_one` (see the function of that name) the clip counts are None, which means undefined.
        """
        v = dict(zip(self.NAMES, self.sums.tolist(), strict=True))
        low, high = self.maxima.tolist()
        return UpdateCurves(
            ratio=Mean(v["ratio"], v["ratio_count"]),
            ratio_min=-low if v["ratio_count"] else None,
            ratio_max=high if v["ratio_count"] else None,
            clip_low=None if ratio_is_one else Mean(v["clip_low"], v["ratio_count"]),
            clip_high=None if ratio_is_one else Mean(v["clip_high"], v["ratio_count"]),
            approx_kl=Mean(v["approx_kl"], v["tokens"]),
            kl=Mean(v["kl"], v["kl_count"]) if v["kl_count"] else None,
            entropy=Mean(v["entropy"], v["tokens"]),
            grad_norm=grad_norm,
            loss=v["loss"],
            lr=lr,
        )


def ratio_is_one(spec: AlgorithmSpec, update_index: int) -> bool:
    """Whether pi / pi_old must be 1 in this update of a step (0-based), so that its clip is undefined.

    With `old_logprobs=learner`, pi_old is the policy at the start of the step, so the first update compares the policy
    with itself, however stale the samples are. That two passes of the policy are equal is measured in some steps
    (`Learner.learn`). With `old_logprobs=sampler` the ratio is measured in every update.
    """
    return spec.old_logprobs == "learner" and update_index == 0


@dataclass(frozen=True)
class SamplerSums(_Sums):
    """Sums of the differences between the log-probabilities of learner and rollout engine, over completion tokens."""

    NAMES: ClassVar[tuple[str, ...]] = (
        *("tokens", "ratio", "logp_diff", "mismatch_kl", "nonfinite"),
        *("weight_count", "weight", "weight_squared"),
    )

    @classmethod
    def empty(cls, device: torch.device | str = "cpu") -> SamplerSums:
        """The sums of a rank without completions; the neutral element of `+`."""
        return cls(
            torch.zeros(len(cls.NAMES), dtype=torch.float64, device=device),
            torch.full((1,), -torch.inf, dtype=torch.float64, device=device),
        )

    @classmethod
    def of(
        cls,
        old_logprobs: Float[Tensor, "sequences tokens"],
        sampler_logprobs: Float[Tensor, "sequences tokens"],
        completion_mask: Tensor,
        spec: AlgorithmSpec,
    ) -> SamplerSums:
        """The sums of some completions. Non-finite sampler log-probabilities are counted, and left out of all else."""
        finite = completion_mask & torch.isfinite(sampler_logprobs)
        d = torch.where(finite, (old_logprobs - sampler_logprobs).double(), 0.0)
        one = torch.ones((), dtype=torch.float64, device=d.device)
        weight_count, weight, weight_squared = one * 0, one * 0, one * 0
        if spec.sampler_correction != "none":
            w = sampler_weights(old_logprobs.double(), sampler_logprobs.double(), finite, spec)
            defined = finite if spec.sampler_correction == "token" else finite.any(dim=-1, keepdim=True)
            w = torch.where(defined, w, 0.0)
            weight_count, weight, weight_squared = defined.sum(), w.sum(), w.square().sum()
        parts = (
            *(finite.sum(), torch.where(finite, d.exp(), 0.0).sum(), d.abs().sum(), _k3(d).sum()),
            *((completion_mask & ~finite).sum(), weight_count, weight, weight_squared),
        )
        return cls(_stack(parts), _max(d.abs(), finite)[None])


@dataclass(frozen=True)
class RolloutSums(_Sums):
    """Sums over completions and their rewards. Only sums with the same `reward_names` can be added."""

    reward_names: tuple[str, ...]

    NAMES: ClassVar[tuple[str, ...]] = ("completions", "reward", "acc", "errors", "length", "truncated")
    GROUP_NAMES: ClassVar[tuple[str, ...]] = ("groups", "zero_std", "phantom_credit")

    def __add__(self, other: RolloutSums) -> RolloutSums:
        if self.reward_names != other.reward_names:
            raise ValueError(f"cannot add sums of different rewards: {self.reward_names} and {other.reward_names}")
        return RolloutSums(self.sums + other.sums, torch.maximum(self.maxima, other.maxima), self.reward_names)

    @classmethod
    def of(
        cls,
        *,
        reward: Sequence[float],
        correct: Sequence[float],
        rewards: Mapping[str, Sequence[float]],
        errors: Sequence[bool],
        lengths: Sequence[int],
        truncated: Sequence[bool],
        zero_std: Sequence[bool],
        phantom_credit: Sequence[bool],
    ) -> RolloutSums:
        """The sums of some completions (possibly none) and of some groups.

        Args:
            reward: per completion, the reward that was optimised.
            correct: per completion, raw correctness.
            rewards: per reward function and completion, the raw, unweighted reward.
            errors: per completion, whether its scorer raised or timed out.
            lengths: per completion, its tokens.
            truncated: per completion, whether it reached the limit without an end-of-sequence token.
            zero_std: per group, whether all its rewards are equal. Where the completions of a group are spread over
                several `RolloutSums`, only one of them counts the group.
            phantom_credit: per group, whether its completions are equally correct and differ in reward. It has the same
                groups as `zero_std`.

        Raises:
            ValueError: the values per completion differ in number, or those per group.
        """
        names = tuple(sorted(rewards))
        per_completion: list[Sequence[Any]] = [
            reward,
            correct,
            errors,
            lengths,
            truncated,
            *(rewards[n] for n in names),
        ]
        if len({len(values) for values in per_completion}) != 1:
            raise ValueError(f"values per completion have different lengths: {[len(v) for v in per_completion]}")
        if len(zero_std) != len(phantom_credit):
            raise ValueError(f"{len(zero_std)} values of zero_std and {len(phantom_credit)} of phantom_credit")
        per_group = (len(zero_std), sum(zero_std), sum(phantom_credit))
        totals = [len(reward), *(sum(float(x) for x in v) for v in per_completion), *per_group]
        extremes = [-min(lengths), max(lengths)] if lengths else [-torch.inf, -torch.inf]
        return cls(torch.tensor(totals, dtype=torch.float64), torch.tensor(extremes, dtype=torch.float64), names)


def step_curves(rollout: RolloutSums, sampler: SamplerSums, updates: Sequence[UpdateCurves]) -> Curves:
    """The curves of one step. Call this on sums that are already added over all ranks."""
    names = (*rollout.NAMES, *(f"rewards/{n}" for n in rollout.reward_names), *rollout.GROUP_NAMES)
    r = dict(zip(names, rollout.sums.tolist(), strict=True))
    s = dict(zip(sampler.NAMES, sampler.sums.tolist(), strict=True))
    shortest, longest = rollout.maxima.tolist()
    n = r["completions"]
    ess = s["weight"] ** 2 / (s["weight_count"] * s["weight_squared"]) if s["weight_squared"] else None
    return Curves(
        reward=Mean(r["reward"], n),
        acc=Mean(r["acc"], n),
        rewards={name: Mean(r[f"rewards/{name}"], n) for name in rollout.reward_names},
        reward_errors=Mean(r["errors"], n),
        response_length=Mean(r["length"], n),
        response_length_min=int(-shortest) if n else 0,
        response_length_max=int(longest) if n else 0,
        truncated=Mean(r["truncated"], n),
        zero_std=Mean(r["zero_std"], r["groups"]),
        updates=tuple(updates),
        sampler_ratio=Mean(s["ratio"], s["tokens"]),
        logp_diff=Mean(s["logp_diff"], s["tokens"]),
        logp_diff_max=max(sampler.maxima.item(), 0.0),
        mismatch_kl=Mean(s["mismatch_kl"], s["tokens"]),
        sampler_ess=ess,
        phantom_credit=Mean(r["phantom_credit"], r["groups"]),
        nonfinite_logprobs=int(s["nonfinite"]),
    )


def _k3(d: Tensor) -> Tensor:
    """exp(d) - d - 1: Schulman's k3 of KL(p || q) from samples of p, with d = log q - log p. `expm1` keeps it >= 0."""
    return torch.expm1(d) - d


def _max(values: Tensor, mask: Tensor) -> Tensor:
    """The largest value under the mask; -inf if the mask is empty. Works for tensors without elements."""
    flat = torch.where(mask, values.double(), -torch.inf).flatten()
    return torch.cat([flat, flat.new_full((1,), -torch.inf)]).max()


def _stack(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([p.double() for p in parts])
