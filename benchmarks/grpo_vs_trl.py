"""Compares this project's trainer with TRL's: the same numbers, and the time and memory of the same work.

    python benchmarks/grpo_vs_trl.py --parity      # losses, gradients and curves on one fixed batch in float64
    python benchmarks/grpo_vs_trl.py --speed       # step time and peak memory, in pairs, fp32 and bf16

Parity: TRL's `GRPOTrainer` is created without its constructor. Its `_generate_and_score_completions` (advantages, old
and reference log-probabilities) and its `_compute_loss` run unchanged; generation, reward functions and the model are
replaced by fixed values.

Speed: SmolLM2-135M, or the model in `--model`; see benchmarks/trl_speed.py. A pair is one process of each trainer, one
after the other, so that both meet the same machine. Compare ratios of one machine, never seconds of two.

Needs the `bench` extra (`pip install -e .[bench]`). Exit codes: 0 done and all quantities agree, 1 a relative
difference above 1e-9, 2 TRL is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import defaultdict, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rl.advantages import advantages  # noqa: E402
from rl.batch import LossBatch, count_denominators  # noqa: E402
from rl.codec import from_json  # noqa: E402
from rl.logprobs import token_logprobs  # noqa: E402
from rl.losses import policy_loss  # noqa: E402
from rl.spec import AlgorithmSpec  # noqa: E402

LIMIT = 1e-9
PROMPTS, GROUP, VOCABULARY, TEMPERATURE = 3, 4, 11, 0.7
KL_COEF = 0.04
QUANTITIES = ("loss", "gradient", "advantages", "clip_low", "clip_high", "entropy", "kl")

# The settings of TRL's GRPOConfig for each case.
TRL_SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo"},
    "cispo, low cap": {"loss_type": "cispo"},
    "grpo, dual clip": {"loss_type": "grpo", "delta": 1.5},
    "dapo, batch std": {"loss_type": "dapo", "scale_rewards": "batch"},
    "dapo, token correction": {"loss_type": "dapo", "vllm_mode": "token_truncate"},
    "grpo, sequence correction": {"loss_type": "grpo", "vllm_mode": "sequence_truncate"},
}
# The settings of this project for each case, on top of the preset in conf/algorithm.
OUR_CHANGES: dict[str, dict[str, Any]] = {
    # A trial sets this constant from its completion limit; a fixed batch has no limit.
    "dr_grpo": {"aggregation_constant": 24},
    "cispo, low cap": {"clip_eps_high": 1.2},
    "grpo, dual clip": {"dual_clip": 1.5},
    "dapo, batch std": {"advantage_scale": "batch_std"},
    "dapo, token correction": {"sampler_correction": "token", "sampler_correction_cap": 1.2},
    "grpo, sequence correction": {"sampler_correction": "sequence", "sampler_correction_cap": 1.2},
}


@dataclasses.dataclass(frozen=True)
class FixedBatch:
    """PROMPTS x GROUP completions of unequal length, with fixed values for all inputs of a loss."""

    prompts: list[list[int]]
    completions: list[list[int]]
    sampler_logprobs: list[list[float]]
    rewards: Tensor
    new_logits: Tensor
    """[completions, prompt + completion tokens, vocabulary], before the temperature. Prompts are padded on the left,
    completions on the right, as TRL does."""
    old_logits: Tensor
    reference_logits: Tensor


def fixed_batch(seed: int = 0) -> FixedBatch:
    """A batch with ratios far enough from 1 for both clips, one group of equal rewards, and 1 to 7 tokens."""
    g = torch.Generator().manual_seed(seed)
    n = PROMPTS * GROUP
    prompt_lengths = [2, 4, 3]
    lengths = [7, 1, 4, 5, 2, 6, 3, 3, 7, 2, 1, 5]
    shape = (n, max(prompt_lengths) + max(lengths), VOCABULARY)
    reference = torch.randn(shape, generator=g, dtype=torch.float64)
    old = reference + 0.3 * torch.randn(shape, generator=g, dtype=torch.float64)
    new = old + 0.3 * torch.randn(shape, generator=g, dtype=torch.float64)
    group_prompts = [torch.randint(1, VOCABULARY, (k,), generator=g).tolist() for k in prompt_lengths]
    return FixedBatch(
        prompts=[p for p in group_prompts for _ in range(GROUP)],
        completions=[torch.randint(1, VOCABULARY, (k,), generator=g).tolist() for k in lengths],
        sampler_logprobs=[(-3 * torch.rand(k, generator=g, dtype=torch.float64)).tolist() for k in lengths],
        rewards=torch.tensor([1.0, 0.0, 0.35, 1.1, *[0.35] * GROUP, 0.0, 0.1, 0.0, 1.0], dtype=torch.float64),
        new_logits=new,
        old_logits=old,
        reference_logits=reference,
    )


def algorithm(case: str) -> AlgorithmSpec:
    """The settings of a case: the preset of conf/algorithm with a KL term, so that the KL is compared too."""
    preset = yaml.safe_load((ROOT / "conf" / "algorithm" / f"{case.split(',')[0]}.yaml").read_text())
    return dataclasses.replace(from_json(AlgorithmSpec, preset), kl_coef=KL_COEF, **OUR_CHANGES.get(case, {}))


# ---------------------------------------------------------------------------------------------------------------------
# This project
# ---------------------------------------------------------------------------------------------------------------------


def our_quantities(case: str, data: FixedBatch) -> dict[str, Tensor]:
    """QUANTITIES of this project, float64. The gradient is that with respect to the logits of all positions."""
    spec = algorithm(case)
    leaf = data.new_logits.clone().requires_grad_()
    lengths = torch.tensor([len(c) for c in data.completions])
    width = int(lengths.max())
    mask = torch.arange(width) < lengths[:, None]
    pad = [c + [0] * (width - len(c)) for c in data.completions]
    sampler = [s + [float("nan")] * (width - len(s)) for s in data.sampler_logprobs]

    def score(logits: Tensor) -> tuple[Tensor, Tensor]:
        # The logits at position t predict the token at t + 1. With an identity matrix as the head, hidden states are
        # logits.
        hidden = logits[:, -width - 1 : -1].flatten(0, 1)
        eye = torch.eye(VOCABULARY, dtype=torch.float64)
        logprobs, entropy = token_logprobs(hidden, eye, None, torch.tensor(pad).flatten(), TEMPERATURE, 5)
        return logprobs.view(-1, width), entropy.view(-1, width)

    logprobs, entropy = score(leaf)
    a = advantages(data.rewards.view(PROMPTS, GROUP), spec)
    batch = LossBatch(
        logprobs=logprobs,
        old_logprobs=score(data.old_logits)[0],
        sampler_logprobs=torch.tensor(sampler, dtype=torch.float64),
        reference_logprobs=score(data.reference_logits)[0],
        entropy=entropy,
        loss_mask=mask,
        advantages=a.flatten(),
    )
    loss, sums = policy_loss(batch, spec, count_denominators(mask))
    loss.backward()
    curves = sums.curves(grad_norm=0.0, lr=0.0, ratio_is_one=False)
    assert curves.clip_low is not None
    assert curves.clip_high is not None
    assert curves.kl is not None
    assert leaf.grad is not None
    means = {
        "clip_low": curves.clip_low.value,
        "clip_high": curves.clip_high.value,
        "entropy": curves.entropy.value,
        "kl": curves.kl.value,
    }
    return {
        "loss": loss.detach(),
        "gradient": leaf.grad,
        "advantages": a.flatten(),
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in means.items()},
    }


# ---------------------------------------------------------------------------------------------------------------------
# TRL
# ---------------------------------------------------------------------------------------------------------------------


class FixedModel(nn.Module):
    """A model that returns fixed logits in the form of TRL's fused head, in float64 (TRL's own head is fp32)."""

    is_gradient_checkpointing = False

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, input_ids: Tensor, labels: Tensor, **_: Any) -> SimpleNamespace:
        logp = (self.logits[:, :-1] / TEMPERATURE).log_softmax(-1)
        return SimpleNamespace(
            log_probs=logp.gather(2, labels[:, 1:, None].clamp(min=0))[..., 0], entropy=-(logp.exp() * logp).sum(-1)
        )


def trl_quantities(case: str, data: FixedBatch) -> dict[str, Tensor]:
    """QUANTITIES of TRL's code. The lower clip fraction of cispo is missing, since TRL does not report it."""
    from accelerate import Accelerator
    from trl.trainer.grpo_trainer import GRPOTrainer

    spec, settings = algorithm(case), TRL_SETTINGS[case]

    class Wide(Accelerator):
        def reduce(self, tensor: Any, *_: Any, **__: Any) -> Any:
            # TRL counts clipped tokens exactly in fp32. A division in fp32 would have a relative error of 1e-8.
            return tensor.double()

    class Frozen(GRPOTrainer):
        def __init__(self) -> None: ...

        def _generate(self, prompts: list) -> tuple:
            sampled = data.sampler_logprobs if self.use_vllm else None
            return data.prompts, data.completions, None, data.completions, sampled, {}, None, None

        def _calculate_rewards(self, *_: Any) -> Tensor:
            return data.rewards[:, None]

    trainer: Any = Frozen()
    leaf = data.new_logits.clone().requires_grad_()
    mode = settings.get("vllm_mode")
    for name, value in {
        "accelerator": Wide(cpu=True),
        "model": FixedModel(data.old_logits),
        "ref_model": FixedModel(data.reference_logits),
        "_tokenizer": SimpleNamespace(pad_token_id=0),
        "beta": KL_COEF,
        "loss_type": settings["loss_type"],
        "importance_sampling_level": settings.get("importance_sampling_level", "token"),
        "epsilon_low": spec.clip_eps_low,
        "epsilon_high": spec.clip_eps_high,
        "max_completion_length": spec.aggregation_constant,
        "scale_rewards": settings.get("scale_rewards", "group"),
        "multi_objective_aggregation": "sum_then_normalize",
        "reward_weights": torch.ones(1, dtype=torch.float64),
        "reward_func_names": ["reward"],
        "num_generations": GROUP,
        "num_iterations": 2,
        "current_gradient_accumulation_steps": 1,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "_entropy_bonus_enabled": False,
        "aux_loss_enabled": False,
        "mask_truncated_completions": False,
        "use_vllm": mode is not None,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": None,
        "vllm_importance_sampling_clip_max": spec.sampler_correction_cap,
        "environment_factories": None,
        "environments": None,
        "tools": None,
        "_is_vlm": False,
        "pad_to_multiple_of": None,
        "log_multimodal": False,
        "_metrics": {"train": defaultdict(list)},
        "_logs": defaultdict(deque, rewards=defaultdict(deque)),
        "_pending_extra_logs": {},
        "_pending_metrics": {},
        "args": SimpleNamespace(
            delta=settings.get("delta"),
            use_bias_correction_kl=False,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
            per_device_train_batch_size=PROMPTS * GROUP,
            report_to=[],
        ),
    }.items():
        setattr(trainer, name, value)
    torch.set_default_dtype(torch.float64)  # TRL converts the sampler's floats to tensors of the default dtype
    try:
        inputs = trainer._generate_and_score_completions([{"prompt": "unused"}] * (PROMPTS * GROUP))
    finally:
        torch.set_default_dtype(torch.float32)
    loss = trainer._compute_loss(FixedModel(leaf), inputs)
    loss.backward()
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    curves = {
        "clip_low": metrics.get("clip_ratio/low_mean"),
        "clip_high": metrics.get("clip_ratio/high_mean", metrics.get("cispo_clip_ratio")),
        "entropy": metrics["entropy"],
        "kl": metrics["kl"],
    }
    assert leaf.grad is not None
    return {
        "loss": loss.detach(),
        "gradient": leaf.grad,
        "advantages": inputs["advantages"],
        **{name: torch.tensor(value, dtype=torch.float64) for name, value in curves.items() if value is not None},
    }


# ---------------------------------------------------------------------------------------------------------------------
# Comparison
# ---------------------------------------------------------------------------------------------------------------------


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference, divided by the largest magnitude of the two; 0 if both are zero."""
    largest = max(ours.abs().max().item(), theirs.abs().max().item())
    return (ours - theirs).abs().max().item() / largest if largest else 0.0


def compare(case: str, data: FixedBatch) -> dict[str, float]:
    """Relative difference of every quantity that TRL reports, for one case."""
    ours, theirs = our_quantities(case, data), trl_quantities(case, data)
    return {name: relative_difference(ours[name], theirs[name]) for name in QUANTITIES if name in theirs}


def _speed(chosen: argparse.Namespace) -> int:
    from benchmarks.trl_speed import print_comparison
    from rl.models import smollm2

    model = chosen.model or str(smollm2.prepare(chosen.cache, lambda line: print(line, file=sys.stderr)))
    print_comparison(
        model,
        chosen.precisions,
        chosen.pairs,
        prompts=chosen.prompts,
        group=chosen.group,
        tokens=chosen.tokens,
        steps=chosen.steps,
        micro_batch_tokens=chosen.micro_batch_tokens,
    )
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare this project's trainer with TRL's.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--parity", action="store_true", help="print the relative differences in float64")
    what.add_argument("--speed", action="store_true", help="print step time and peak memory of both trainers")
    parser.add_argument("--model", help="speed: a folder with a model (default: SmolLM2-135M)")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), help="speed: folder of converted models")
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--pairs", type=int, default=3, help="speed: measurements of each trainer (default 3)")
    parser.add_argument("--steps", type=int, default=2, help="speed: steps counted per measurement (default 2)")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8, help="speed: completions per prompt")
    parser.add_argument("--tokens", type=int, default=64, help="speed: tokens per completion")
    parser.add_argument("--micro-batch-tokens", type=int, default=4096, help="speed: this project's micro-batches")
    chosen = parser.parse_args(arguments)
    try:
        import trl
    except ImportError:
        print("TRL is not installed; install the bench extra: pip install -e .[bench]", file=sys.stderr)
        return 2
    if chosen.speed:
        return _speed(chosen)
    data = fixed_batch()
    print(f"TRL {trl.__version__}, float64, {PROMPTS} x {GROUP} completions, largest relative difference")
    print("(-: TRL does not report this metric)")
    print("  ".join(["algorithm".ljust(26), *(q.rjust(10) for q in QUANTITIES)]))
    worst = 0.0
    for case in TRL_SETTINGS:
        found = compare(case, data)
        worst = max(worst, *found.values())
        cells = [f"{found[q]:10.1e}" if q in found else "-".rjust(10) for q in QUANTITIES]
        print("  ".join([case.ljust(26), *cells]))
    print(f"largest: {worst:.1e}, limit {LIMIT:.0e}: {'agrees' if worst <= LIMIT else 'DIFFERS'}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
