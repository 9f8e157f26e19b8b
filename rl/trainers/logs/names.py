"""The one table of metric names: what each trainer calls our curves, and where its definition differs from ours.

Names were read from the trainers' source code: TRL 0.14 to 1.9, verl 2024-12 to 2026-01, slime 2025-07 to 2026-08,
OpenRLHF 0.8 to 0.11, prime-rl 2025-07 to 2026-08, NeMo-RL 2025-05 to 2026-08.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from rl.trainers.logs.run import CURVES, PHASES, Facts

TRAINERS: Mapping[str, str] = {
    "trl": "TRL",
    "verl": "verl",
    "slime": "slime",
    "openrlhf": "OpenRLHF",
    "prime-rl": "prime-rl",
    "nemo-rl": "NeMo-RL",
    "generic": "any other",
}
"""Keys are the values of `read_run(trainer=...)`."""


@dataclass(frozen=True)
class Alias:
    """One trainer's name for one of our curves.

    Where a row has several names of one curve, the first in the table is used; phases and `add` names are summed.
    """

    trainer: str
    name: str
    """As in the log; `*` is any text. A leading `train/` may be missing or added."""
    curve: str
    """A name of CURVES, a phase with `_seconds`, or `rewards/*`: the mean of the reward function at the `*`."""
    caveat: str = ""
    """How it differs from our definition."""
    divide_by: float = 1.0
    """Our value is theirs divided by this."""
    add: bool = False
    """Added to the other names of the curve: the curve is their sum."""
    per_prompt: bool = False
    """A count of prompts: divided by the prompts of a step where they are known, else not used."""
    only_if_binary: str = ""
    """Prefix of a `min` and a `max`: used only where these are 0 and 1 in every row."""
    evaluation: bool = False
    """A result on questions outside of training."""


def _of(trainer: str, *rows: tuple[str, ...], add: bool = False, evaluation: bool = False) -> list[Alias]:
    """One alias for each name, curve and, where there is one, caveat."""
    return [
        Alias(trainer, name, curve, "".join(caveat), add=add, evaluation=evaluation) for name, curve, *caveat in rows
    ]


_K1 = "k1, the mean of the log-ratio: signed, and near 0 where k3 is not"
_PG_ONLY = "the policy-gradient part alone"
_MEAN_REWARD = "mean reward of the evaluation, whatever it is called"
_BINARY = "group reward 0 or 1 in full: right for rewards of 0 and 1 only"

ALIASES: tuple[Alias, ...] = (
    *_of(
        "trl",
        ("reward", "reward"),
        ("clip_ratio/region_mean", "clip_frac", "mean over the updates that the row covers; of sequences with GSPO"),
        (
            "clip_ratio",
            "clip_frac",
            "up to 0.16 and with the Liger loss; not to be confused with completions/clipped_ratio",
        ),
        ("cispo_clip_ratio", "clip_frac", "share over CISPO's upper bound with a positive advantage"),
        ("kl", "kl", "k3; absent with beta=0"),
        ("entropy", "entropy", "at the training temperature; absent before 0.20"),
        ("completions/mean_length", "response_length"),
        ("completion_length", "response_length", "up to 0.16"),
        ("grad_norm", "grad_norm", "of the last step of the row, not a mean"),
        ("reward_std", "reward_std", "of the whole batch from about 0.28 on; before: mean of the groups' own"),
        ("completions/clipped_ratio", "truncated_frac", "completions without an EOS token at the end"),
        ("frac_reward_zero_std", "zero_std_frac"),
        ("learning_rate", "lr", "of the last step of the row, not a mean"),
        ("loss", "loss", "rounded to 4 decimals"),
        ("Training Loss", "loss", "notebook table; rounded to 4 decimals"),
        ("sampling/importance_sampling_ratio/mean", "sampler_ratio_mean", "after the correction's cap"),
        ("sampling/sampling_logp_difference/mean", "logp_diff_mean"),
        ("sampling/sampling_logp_difference/max", "logp_diff_max", "mean of maxima where a row covers several steps"),
        ("step_time", "step_seconds", "training step with generation; logging, evaluation and saving are outside"),
        ("rewards/*/mean", "rewards/*"),
        ("rewards/*/std", "", "spread of one reward function"),
        ("rewards/*", "rewards/*", "up to 0.16"),
    ),
    *_of(
        "trl", *((f"eval_{name}", "") for name in ("runtime", "samples_per_second", "steps_per_second", "num_tokens"))
    ),
    *_of("trl", ("eval_reward", "reward"), ("eval_*", ""), evaluation=True),
    *_of(
        "verl",
        ("critic/rewards/mean", "reward", "after the KL penalty, where that is in the reward"),
        ("reward/mean", "reward", "Logic-RL"),
        ("reward/all_correct_ratio", "acc", "Logic-RL"),
        ("actor/pg_clipfrac", "clip_frac", "mean over all updates of the step, the first with a ratio of 1 included"),
        ("actor/kl_loss", "kl", "estimator as configured by kl_loss_type; the coefficient is not in it"),
        ("actor/reward_kl_penalty", "kl", "estimator as configured by kl_penalty (k1 by default)"),
        ("critic/kl", "kl", "older versions; estimator as configured by kl_penalty (k1 by default)"),
        ("actor/entropy", "entropy"),
        ("actor/entropy_loss", "entropy", "older versions: the mean entropy, in spite of its name"),
        ("response_length/mean", "response_length"),
        ("actor/grad_norm", "grad_norm"),
        ("actor/ppo_kl", "approx_kl", _K1),
        ("response_length/clip_ratio", "truncated_frac", "completions as long as the limit, ended by EOS or not"),
        ("actor/lr", "lr"),
        ("actor/pg_loss", "loss", _PG_ONLY),
        ("rollout_corr/rollout_is_mean", "sampler_ratio_mean", "after the correction's cap"),
        ("rollout_corr/k3_kl", "mismatch_kl"),
        ("rollout_corr/kl", "mismatch_kl", _K1),
        ("timing_s/step", "step_seconds", "validation and saving are outside in newer versions"),
        ("perf/time_per_step", "step_seconds"),
        ("timing_s/gen", "rollout_seconds", "with waking, putting to sleep and weight sync of the engine"),
        ("timing/gen", "rollout_seconds", "versions of 2024"),
        ("timing_s/reward", "reward_seconds"),
        ("timing_s/old_log_prob", "logprob_seconds"),
        ("timing_s/ref", "logprob_seconds"),
        ("timing_s/values", "logprob_seconds"),
        ("timing/ref", "logprob_seconds"),
        ("timing/values", "logprob_seconds"),
        ("timing_s/update_actor", "train_seconds"),
        ("timing_s/update_critic", "train_seconds"),
        ("timing/update_actor", "train_seconds"),
        ("timing/update_critic", "train_seconds"),
        ("timing_s/update_weights", "sync_seconds"),
        ("timing_s/testing", "evaluation_seconds"),
        ("timing/testing", "evaluation_seconds"),
        ("timing_s/save_checkpoint", "checkpoint_seconds"),
        ("timing/save_checkpoint", "checkpoint_seconds"),
        ("timing_s/adv", "other_seconds"),
        ("timing/adv", "other_seconds"),
    ),
    Alias("verl", "actor/lr(1e-4)", "lr", "versions of 2024, in units of 1e-4", divide_by=1e4),
    Alias(
        *("verl", "critic/score/mean", "acc"),
        "the score before any KL; correctness only where it is 0 or 1: read as `acc` where smallest and largest are so",
        only_if_binary="critic/score/",
    ),
    Alias(
        *("verl", "val/test_score/*", "acc"),
        "mean score; correctness under the same condition as critic/score/mean",
        only_if_binary="critic/score/",
        evaluation=True,
    ),
    *_of(
        "verl",
        ("val-core/*/acc/mean@*", "acc"),
        ("val-core/*/reward/mean@*", "reward"),
        *((name, "") for name in ("val-core/*", "val-aux/*", "val/*")),
        evaluation=True,
    ),
    *_of(
        "slime",
        ("rollout/raw_reward", "reward", "rollout/rewards is normalised within the group: 0 in the mean"),
        ("train/ois", "ratio_mean", "with TIS or mismatch metrics only"),
        ("train/pg_clipfrac", "clip_frac", "one line per update; the last of the step is taken"),
        ("train/kl_loss", "kl", "estimator as configured by kl_loss_type"),
        ("train/entropy_loss", "entropy", "the mean entropy, in spite of its name"),
        ("rollout/response_len/mean", "response_length", "tokens of the model alone, without those of tools"),
        ("rollout/response_lengths", "response_length"),
        ("train/grad_norm", "grad_norm"),
        ("train/ppo_kl", "approx_kl", _K1),
        ("rollout/truncated_ratio", "truncated_frac"),
        ("rollout/truncated", "truncated_frac"),
        ("train/lr-pg_0", "lr", "of the first parameter group"),
        ("train/loss", "loss"),
        ("train/tis", "sampler_ratio_mean", "before the correction's cap"),
        ("train/train_rollout_logprob_abs_diff", "logp_diff_mean"),
        ("perf/step_time", "step_seconds", "waiting for the rollout, and training"),
        ("perf/rollout_time", "rollout_seconds"),
        ("perf/log_probs_time", "logprob_seconds"),
        ("perf/ref_log_probs_time", "logprob_seconds"),
        ("perf/actor_train_time", "train_seconds"),
        ("perf/update_weights_time", "sync_seconds"),
    ),
    Alias(
        *("slime", "rollout/zero_std/count_*", "zero_std_frac"),
        "groups without spread, counted by their reward; divided by rollout_batch_size where the log states it",
        add=True,
        per_prompt=True,
    ),
    *_of("slime", ("eval/*", "reward", _MEAN_REWARD), evaluation=True),
    *_of(
        "openrlhf",
        ("rollout/reward_mean", "reward"),
        ("reward", "reward"),
        ("ppo_clip_ratio", "clip_frac"),
        ("kl", "kl", "estimator as configured (k1 by default)"),
        ("entropy_loss", "entropy", "the mean entropy, in spite of its name; only with an entropy coefficient"),
        ("rollout/response_length_mean", "response_length"),
        ("response_length", "response_length"),
        ("actor_grad_norm", "grad_norm", "of the last update"),
        ("rollout/reward_std", "reward_std", "of the whole batch"),
        ("group_reward_std", "reward_std", "mean of the groups' own"),
        ("ppo_kl", "approx_kl", _K1),
        ("rollout/truncated_rate", "truncated_frac"),
        ("actor_lr", "lr"),
        ("policy_loss", "loss", _PG_ONLY),
        ("vllm_kl", "mismatch_kl", _K1),
        ("timing/step_total", "step_seconds"),
        ("timing/generation", "rollout_seconds", "of another step, in part, where training is asynchronous"),
        ("timing/make_experience", "logprob_seconds", "rewards and log-probabilities"),
        ("timing/ppo_train", "train_seconds"),
        ("timing/broadcast", "sync_seconds"),
    ),
    *_of("openrlhf", ("eval_*_pass1", "reward", _MEAN_REWARD), ("eval_*", ""), ("eval/*", ""), evaluation=True),
    *_of(
        "prime-rl",
        ("train/agg/effective/*/reward/mean", "reward", "completions that were trained on"),
        ("reward/mean", "reward", "until early 2026"),
        ("reward/reward", "reward", "2025"),
        ("Reward", "reward", "console of the orchestrator"),
        (
            "is_masked/mean",
            "clip_frac",
            "tokens outside of the trust region, which is set in probabilities, not in ratios",
        ),
        ("entropy/all/mean", "entropy"),
        ("entropy/mean", "entropy", "until early 2026"),
        ("Entropy", "entropy", "console of the trainer"),
        ("train/agg/effective/*/num_output_tokens/mean", "response_length", "all turns of a completion"),
        ("completion_len/mean", "response_length", "until early 2026"),
        ("optim/grad_norm", "grad_norm"),
        ("Grad. Norm", "grad_norm", "console of the trainer"),
        ("train/agg/effective/*/is_truncated/mean", "truncated_frac"),
        ("is_truncated/mean", "truncated_frac", "until early 2026"),
        ("Truncation", "truncated_frac", "console of the orchestrator, in percent"),
        ("optim/lr", "lr"),
        ("LR", "lr", "console of the trainer"),
        ("loss/mean", "loss"),
        ("Loss", "loss", "console of the trainer"),
        ("mismatch_kl/all/mean", "mismatch_kl"),
        ("mismatch_kl/mean", "mismatch_kl", "until early 2026"),
        ("Mismatch KL", "mismatch_kl", "console of the trainer"),
        ("off_policy/mean", "staleness"),
        ("time/step", "step_seconds", "trainer and orchestrator each have one; the first in the file is taken"),
        ("Time", "step_seconds", "console of the trainer"),
        ("time/generate_completions", "rollout_seconds", "orchestrator, until early 2026"),
        (
            "time/wait_for_batch",
            "rollout_seconds",
            "what the trainer waits for completions, which overlap with training",
        ),
        ("time/forward_backward", "train_seconds"),
        ("time/broadcast_weights", "sync_seconds"),
        ("time/save_ckpt", "checkpoint_seconds"),
    ),
    *_of(
        "prime-rl",
        ("train/agg/all/*/solved_none", "zero_std_frac", _BINARY),
        ("train/agg/all/*/solved_all", "zero_std_frac", _BINARY),
        ("batch/solve_none", "zero_std_frac", _BINARY),
        ("batch/solve_all", "zero_std_frac", _BINARY),
        ("reward/solve_none", "zero_std_frac", _BINARY),
        ("reward/solve_all", "zero_std_frac", _BINARY),
        add=True,
    ),
    *_of(
        "prime-rl",
        ("eval/*/effective/*/avg@*", "reward", _MEAN_REWARD),
        ("eval/*/avg@*", "reward", _MEAN_REWARD),
        ("val_reward/mean", "reward", _MEAN_REWARD),
        ("eval/*", ""),
        ("val_reward/*", ""),
        evaluation=True,
    ),
    *_of(
        "nemo-rl",
        ("reward", "reward"),
        ("Avg Reward", "reward", "console"),
        ("Avg Total Reward", "reward", "console, with dynamic sampling: before filtering"),
        ("probs_ratio", "ratio_mean", "summed over the updates of a step: 2 with two updates"),
        ("kl_penalty", "kl", "0 where no reference is used; summed over the updates of a step"),
        ("approx_entropy", "entropy", "estimated from the sampled tokens; summed over the updates of a step"),
        ("mean_gen_tokens_per_sample", "response_length", "all turns of a completion"),
        ("Mean Generation Length", "response_length", "console"),
        ("grad_norm", "grad_norm", "summed over the updates of a step"),
        ("truncation_rate", "truncated_frac"),
        ("lr", "lr"),
        ("loss", "loss", "summed over the updates of a step"),
        ("Loss", "loss", "console"),
        ("sampling_importance_ratio", "sampler_ratio_mean", "before any cap"),
        ("gen_kl_error", "mismatch_kl"),
        ("Generation KL Error", "mismatch_kl", "console"),
        ("timing/train/total_step_time", "step_seconds", "with validation and checkpoint"),
        ("Total step time", "step_seconds", "console, with validation and checkpoint"),
        ("timing/train/generation", "rollout_seconds"),
        ("timing/train/exposed_generation", "rollout_seconds", "what training waits for, where it is asynchronous"),
        ("timing/train/reward_calculation", "reward_seconds"),
        ("timing/train/logprob_inference_prep", "logprob_seconds"),
        ("timing/train/policy_and_reference_logprobs", "logprob_seconds"),
        ("timing/train/training_prep", "train_seconds"),
        ("timing/train/policy_training", "train_seconds"),
        ("timing/train/prepare_for_generation/total", "sync_seconds", "with waking the engine"),
        ("timing/train/weight_sync", "sync_seconds"),
        ("timing/train/checkpointing", "checkpoint_seconds"),
        ("timing/train/data_processing", "other_seconds"),
    ),
    *(
        Alias(
            "nemo-rl", f"baseline_reward/{name}", "zero_std_frac", f"in percent; {_BINARY}", divide_by=100.0, add=True
        )
        for name in ("pct_0", "pct_1")
    ),
    *_of(
        "nemo-rl",
        ("validation/accuracy", "reward", _MEAN_REWARD),
        ("validation/avg_length", "response_length"),
        ("validation/*", ""),
        evaluation=True,
    ),
    *_of(
        "generic",
        *((name, "reward") for name in ("reward_mean", "mean_reward", "avg_reward", "average_reward", "rewards_mean")),
        *((name, "acc") for name in ("accuracy", "correct", "correctness", "solve_rate", "acc_mean", "mean_acc")),
        *((name, "ratio_mean") for name in ("mean_ratio", "importance_ratio", "ratio")),
        *((name, "clip_frac") for name in ("clip_fraction", "clipfrac", "pg_clipfrac")),
        *(
            (name, "kl", "estimator unknown")
            for name in ("kl_div", "kl_ref", "ref_kl", "kl_mean", "mean_kl", "kl_loss")
        ),
        *((name, "entropy") for name in ("mean_entropy", "entropy_mean", "policy_entropy")),
        *(
            (name, "response_length", "may count the prompt")
            for name in (
                *("completion_length", "mean_length", "avg_response_len", "avg_response_length", "response_len"),
                *("mean_response_length", "response_length_mean", "seq_len_mean", "mean_completion_length"),
            )
        ),
        *((name, "grad_norm") for name in ("gradient_norm", "grad_norm_mean")),
        *((name, "reward_std") for name in ("std_reward", "rewards_std")),
        *((f"reward_{name}", "") for name in ("error_frac", "min", "max", "median")),
        ("reward_*", "rewards/*"),
        *((name, "approx_kl") for name in ("ppo_kl", "kl_old", "policy_kl")),
        *((name, "truncated_frac") for name in ("truncated_ratio", "truncation_rate", "truncated_rate")),
        *((name, "zero_std_frac") for name in ("frac_reward_zero_std", "zero_std_ratio", "dead_group_frac")),
        *((name, "lr") for name in ("learning_rate",)),
        *((name, "loss") for name in ("actor_loss", "policy_loss", "pg_loss", "train_loss", "training_loss")),
        *((name, "step_seconds") for name in ("step_time", "time_per_step", "step_time_s", "t_step", "sec_per_step")),
        *((name, "rollout_seconds") for name in ("t_rollout", "rollout_time", "generation_time", "gen_time", "t_gen")),
        *((name, "reward_seconds") for name in ("t_reward", "reward_time")),
        *((name, "train_seconds") for name in ("t_train", "train_time", "update_time", "t_update")),
        *((name, "sync_seconds") for name in ("t_sync", "sync_time")),
    ),
    *_of("generic", ("eval_acc", "acc"), ("eval_accuracy", "acc"), ("eval/acc", "acc"), evaluation=True),
    *_of("generic", ("eval_reward", "reward"), ("eval/reward", "reward"), evaluation=True),
    *_of("generic", *((f"{p}*", "") for p in ("eval_", "eval/", "val_", "val/", "test_", "test/")), evaluation=True),
)
"""Order matters: of several names for one curve, the first that a row has is used."""

NOT_METRICS = frozenset(
    {
        *("step", "Step", "_step", "global_step", "train/global_step", "training/global_step", "train/step"),
        *("rollout/step", "iteration", "epoch", "Epoch", "training/epoch", "num_tokens", "total_flos"),
        *("time", "timestamp", "_timestamp", "_runtime"),
    }
)
"""Counters and clocks. They are no curves, and they differ in rows that are the same otherwise."""

PREFERENCE_TRAINING = ("rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "reward_chosen")
"""Names that only logs of DPO and of reward models have."""

RL_CURVES = frozenset(CURVES) - {"loss", "lr", "grad_norm", "entropy", "step_seconds"}
"""Curves that supervised fine-tuning does not log."""


@dataclass
class Mapped:
    """One row's values as our curves."""

    curves: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    evaluations: list[tuple[str, float, str | None]] = field(default_factory=list)
    """Name, value, curve."""
    unmapped: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Names:
    """The names of one trainer, ready to look up."""

    trainer: str

    def map(self, values: Mapping[str, float], facts: Facts, binary: frozenset[str] = frozenset()) -> Mapped:
        """The values of one row as our curves. `binary`: prefixes whose min and max are 0 and 1 in every row."""
        mapped = Mapped()
        taken: dict[str, int] = {}
        for name, value in values.items():
            if name in NOT_METRICS:
                continue
            index, alias, part = _find(self.trainer, name)
            if alias is None or not alias.curve:
                if alias is not None and alias.evaluation:
                    mapped.evaluations.append((name, value, _evaluated(self.trainer, name)))
                elif alias is None:
                    mapped.unmapped.add(name)
                continue
            usable = not alias.only_if_binary or alias.only_if_binary in binary
            if alias.evaluation:
                mapped.evaluations.append((name, value, alias.curve if usable else "reward"))
                continue
            if not usable or (alias.per_prompt and not facts.prompts_per_step):
                mapped.unmapped.add(name)
                continue
            value /= alias.divide_by
            if alias.per_prompt and facts.prompts_per_step:
                value /= facts.prompts_per_step
            phase = alias.curve.removesuffix("_seconds")
            if alias.curve == "rewards/*":
                mapped.rewards.setdefault(part, value)
            elif alias.curve not in CURVES and phase in PHASES:
                mapped.phases[phase] = mapped.phases.get(phase, 0.0) + value
            elif alias.add:
                mapped.curves[alias.curve] = mapped.curves.get(alias.curve, 0.0) + value
            elif alias.curve not in taken or index < taken[alias.curve]:
                taken[alias.curve] = index
                mapped.curves[alias.curve] = value
        return mapped

    def is_training(self, name: str) -> bool:
        """Whether the table knows the name as a metric of training."""
        alias = None if name in NOT_METRICS else _find(self.trainer, name)[1]
        return alias is not None and bool(alias.curve) and not alias.evaluation

    def is_evaluation(self, name: str) -> bool:
        """Whether the table knows the name as a result on questions outside of training."""
        alias = None if name in NOT_METRICS else _find(self.trainer, name)[1]
        return alias is not None and alias.evaluation


def recognised(names: Iterable[str]) -> str:
    """The trainer that has most of these names; `generic` where none has a name that `generic` has not."""
    seen = [name for name in names if name not in NOT_METRICS]
    generic = {name for name in seen if _find("generic", name)[1]}
    best, most = "generic", (len(generic), 0)
    for trainer in TRAINERS:
        known = {name for name in seen if _find(trainer, name)[1]}
        own = len(known - generic)
        if own and (len(known), own) > most:
            best, most = trainer, (len(known), own)
    return best


def binary_prefixes(rows: Sequence[Mapping[str, float]]) -> frozenset[str]:
    """Prefixes of `min` and `max` that are 0 and 1 in every row that has them."""
    found: set[str] = set()
    for prefix in {alias.only_if_binary for alias in ALIASES if alias.only_if_binary}:
        extremes = [
            (row[f"{prefix}min"], row[f"{prefix}max"])
            for row in rows
            if f"{prefix}min" in row and f"{prefix}max" in row
        ]
        only_both = all(low in (0.0, 1.0) and high in (0.0, 1.0) for low, high in extremes)
        if extremes and only_both and any(low != high for low, high in extremes):
            found.add(prefix)
    return frozenset(found)


def tidy(name: str) -> str:
    """A metric name without the spaces that tables put around slashes."""
    return re.sub(r"\s*/\s*", "/", name.strip().strip("\"'"))


_OUR_NAME = -1
"""Instead of an index in the table: the name of a curve of ours, which is used before any other."""


@cache
def _exact(trainer: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, alias in enumerate(ALIASES):
        if alias.trainer == trainer and "*" not in alias.name:
            found.setdefault(_key(trainer, alias.name), index)
    if trainer == "generic":
        found |= dict.fromkeys((*CURVES, *(f"{phase}_seconds" for phase in PHASES)), _OUR_NAME)
    return found


@cache
def _patterns(trainer: str) -> list[tuple[re.Pattern[str], int]]:
    return [
        (re.compile(re.escape(_key(trainer, alias.name)).replace(r"\*", "(.+?)")), index)
        for index, alias in enumerate(ALIASES)
        if alias.trainer == trainer and "*" in alias.name
    ]


def _key(trainer: str, name: str) -> str:
    """Only `generic` names are compared without regard to case and separators."""
    return re.sub(r"[\s.\-]+", "_", name.strip().lower()) if trainer == "generic" else name


@lru_cache(maxsize=20_000)
def _find(trainer: str, name: str) -> tuple[int, Alias | None, str]:
    """Index in the table (smaller is better), alias, and the text at the `*`; None where the name is not known."""
    name = tidy(name)
    for candidate in (name, name.removeprefix("train/"), f"train/{name}"):
        key = _key(trainer, candidate)
        if (index := _exact(trainer).get(key)) is not None:
            return index, Alias(trainer, key, key) if index == _OUR_NAME else ALIASES[index], ""
        for pattern, index in _patterns(trainer):
            if found := pattern.fullmatch(key):
                return index, ALIASES[index], found[1]
    return len(ALIASES), None, ""


def _evaluated(trainer: str, name: str) -> str | None:
    """The curve that an evaluation is of, from the name after its prefix."""
    rest = re.sub(r"^(?:eval|val|test|validation)[_/]", "", name)
    alias = _find(trainer, rest)[1]
    return alias.curve if alias is not None and alias.curve in CURVES else None
