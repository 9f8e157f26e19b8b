"""Consoles of slime, OpenRLHF, NeMo-RL, prime-rl, and of programs that print names and numbers."""

from __future__ import annotations

import pytest

from rl.trainers.logs import ImportedRun, LogError, read_bytes


def read(*lines: str, trainer: str = "auto") -> ImportedRun:
    return read_bytes(("\n".join(lines) + "\n").encode(), trainer=trainer)


# ---------------------------------------------------------------------------------------------------------------------
# slime
# ---------------------------------------------------------------------------------------------------------------------

TIME = "[2026-01-02 03:04:05] "
ACTOR = f"(MegatronTrainRayActor pid=7) {TIME}"


def slime_rollout(rollout: int, updates: int = 1) -> list[str]:
    perf = {
        "rollout/response_len/mean": 900.0,
        "rollout/zero_std/count_0.0": 4,
        "rollout/zero_std/count_1.0": 2,
        "rollout/truncated_ratio": 0.1,
        "perf/rollout_time": 50.0,
    }
    train = {
        "train/loss": 0.01,
        "train/pg_clipfrac": 0.0,
        "train/ppo_kl": 0.001,
        "train/kl_loss": 0.004,
        "train/entropy_loss": 0.6,
        "train/train_rollout_logprob_abs_diff": 0.012,
        "train/grad_norm": 0.3,
        "train/lr-pg_0": 1e-06,
        "train/step": 0,
    }
    times = {
        "perf/log_probs_time": 5.0,
        "perf/ref_log_probs_time": 4.0,
        "perf/actor_train_time": 20.0,
        "perf/step_time": 85.0,
    }
    return [
        f"(RolloutManager pid=5) {TIME}rollout_metrics.py:268 - perf {rollout}: {perf}",
        f"{ACTOR}data.py:1 - rollout {rollout}: {{'rollout/raw_reward': 0.375, 'rollout/rewards': 0.0}}",
        *(
            f"{ACTOR}model.py:918 - step {rollout * updates + i}: {train | {'train/pg_clipfrac': i / 100}}"
            for i in range(updates)
        ),
        f"{ACTOR}train_metric_utils.py:401 - perf {rollout}: {times}",
    ]


def test_slime() -> None:
    run = read("  rollout_batch_size .............. 16", *slime_rollout(0, 2), *slime_rollout(1, 2))
    assert run.trainer == "slime"
    assert [row.step for row in run.rows] == [1, 2]
    assert run.rows[1].curves() == {
        "reward": 0.375,
        "clip_frac": 0.01,  # of the last update
        "kl": 0.004,
        "entropy": 0.6,
        "response_length": 900.0,
        "grad_norm": pytest.approx(0.3),
        "approx_kl": pytest.approx(0.001),
        "truncated_frac": 0.1,
        "zero_std_frac": 6 / 16,
        "lr": 1e-6,
        "loss": pytest.approx(0.01),
        "logp_diff_mean": pytest.approx(0.012),
        "step_seconds": 85.0,
        "rollout_seconds": 50.0,
        "logprob_seconds": 9.0,
        "train_seconds": 20.0,
    }
    assert run.facts.updates_per_rollout == 2
    assert run.facts.prompts_per_step == 16


def test_slime_updates_without_the_lines_of_their_rollouts_are_steps() -> None:
    run = read(*(text for rollout in range(2) for text in slime_rollout(rollout, 2) if " step " in text))
    assert [(row.step, row.clip_frac) for row in run.rows] == [(1, 0.0), (2, 0.01), (3, 0.0), (4, 0.01)]


def test_slime_that_starts_again_is_another_attempt() -> None:
    again = [text.replace("50.0", "51.0").replace("0.375", "0.5") for text in slime_rollout(1)]
    run = read(*slime_rollout(0), *slime_rollout(1), *again, *slime_rollout(2))
    assert [(row.attempt, row.step) for row in run.rows] == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert [row.reward for row in run.lineage] == [0.375, 0.5, 0.375]


def test_slime_counts_of_dead_groups_are_no_share_without_the_batch_size() -> None:
    run = read(*slime_rollout(0))
    assert run.rows[0].zero_std_frac is None
    assert "rollout/zero_std/count_0.0" in run.unmapped


def test_slime_names_no_count_where_no_group_is_dead() -> None:
    without = [
        text.replace("'rollout/zero_std/count_0.0': 4, 'rollout/zero_std/count_1.0': 2, ", "")
        for text in slime_rollout(1)
    ]
    run = read("  rollout_batch_size .............. 16", *slime_rollout(0), *without)
    assert [row.zero_std_frac for row in run.rows] == [6 / 16, 0.0]


def test_slime_evaluates_before_its_first_rollout_under_the_number_of_that_rollout() -> None:
    scores = {"eval/aime": 0.1, "eval/aime/response_len/mean": 5.0}
    evaluation = f"(RolloutManager pid=5) {TIME}rollout_metrics.py:247 - eval 0: {scores}"
    run = read(evaluation, *slime_rollout(0), evaluation.replace("0.1", "0.2"))
    assert [(e.step, e.value) for e in run.evaluations if e.name == "eval/aime"] == [(0, 0.1), (1, 0.2)]


# ---------------------------------------------------------------------------------------------------------------------
# OpenRLHF
# ---------------------------------------------------------------------------------------------------------------------

OPENRLHF = {
    "policy_loss": -0.02,
    "entropy_loss": 0.45,
    "actor_lr": 5e-07,
    "ppo_clip_ratio": 0.004,
    "ppo_kl": 0.0002,
    "kl": 0.01,
    "reward": 0.4,
    "response_length": 700.0,
    "actor_grad_norm": 0.9,
    "vllm_kl": 0.003,
    "timing/make_experience": 12.0,
    "timing/ppo_train": 30.0,
    "timing/broadcast": 2.0,
    "rollout/reward_mean": 0.41,
    "rollout/reward_std": 0.49,
    "rollout/response_length_mean": 705.0,
    "rollout/truncated_rate": 0.02,
    "timing/generation": 40.0,
    "timing/step_total": 84.0,
}


def test_openrlhf() -> None:
    lines = [
        f"(PPOTrainer pid=3) INFO 01-02 03:04:05 ppo_trainer.py:547] ✨ Global step {step}: {OPENRLHF}"
        for step in (1, 2)
    ]
    scores = {"eval_aime_pass1": 0.3, "eval_aime_pass8": 0.6}
    evaluation = f"INFO ✨ Evaluation completed in 0:00:10, global_step 2, eval_metrics: {scores}"
    run = read(*lines, evaluation)
    assert run.trainer == "openrlhf"
    assert run.rows[0].curves() == {
        "reward": 0.41,
        "clip_frac": 0.004,
        "kl": 0.01,
        "entropy": 0.45,
        "response_length": 705.0,
        "grad_norm": 0.9,
        "reward_std": 0.49,
        "approx_kl": 0.0002,
        "truncated_frac": 0.02,
        "lr": 5e-7,
        "loss": -0.02,
        "mismatch_kl": 0.003,
        "step_seconds": 84.0,
        "rollout_seconds": 40.0,
        "logprob_seconds": 12.0,
        "train_seconds": 30.0,
        "sync_seconds": 2.0,
    }
    assert [(e.step, e.name, e.curve) for e in run.evaluations] == [
        (2, "eval_aime_pass1", "reward"),
        (2, "eval_aime_pass8", None),
    ]


def test_openrlhf_with_samples_in_the_dictionary() -> None:
    sample = ["Question {x}: what's 'step:1 - a:2'?\n{'loss': 9}", 1.0]
    run = read(*(f"✨ Global step {step}: {OPENRLHF | {'generated_samples': sample}}" for step in (1, 2, 3)))
    assert [(row.step, row.loss) for row in run.rows] == [(1, -0.02), (2, -0.02), (3, -0.02)]


# ---------------------------------------------------------------------------------------------------------------------
# NeMo-RL
# ---------------------------------------------------------------------------------------------------------------------


def nemo_step(step: int, total: int = 100, reward: float = 0.3) -> list[str]:
    return [
        "",
        f"{'=' * 25} Step {step}/{total} {'=' * 25}",
        "▶ Preparing batch...",
        "📊 Training Results:",
        "  • Loss: 0.0120",
        "  • Generation KL Error: 0.0008",
        f"  • Avg Reward: {reward:.4f}",
        "  • Mean Generation Length: 512.2500",
        "⏱️  Timing:",
        "  • Total step time: 40.00s",
        "  • generation: 20.00s (50.0%)",
        "  • policy_training: 12.00s (30.0%)",
        "  • policy_and_reference_logprobs: 5.00s (12.5%)",
        "  • prepare_for_generation/total: 2.00s (5.0%)",
        "🔍 Performance Metrics:",
        "  • Mean Total Tokens per Sample: 800.00",
    ]


def test_nemo_rl() -> None:
    validation = [
        "▶ Starting validation at step 2...",
        "📊 Validation Results:",
        "    • Accuracy: 0.5000",
        "    • Average response length: 300.0 tokens",
        "    • Samples processed: 64",
        "  ⏱️  Validation Timing:",
        "    • Total validation time: 9.00s",
    ]
    run = read(*nemo_step(1), *nemo_step(2)[:3], *validation, *nemo_step(2)[3:])
    assert run.trainer == "nemo-rl"
    assert [row.step for row in run.rows] == [1, 2]
    assert run.rows[1].curves() == {
        "reward": 0.3,
        "response_length": 512.25,
        "loss": 0.012,
        "mismatch_kl": 0.0008,
        "step_seconds": 40.0,
        "rollout_seconds": 20.0,
        "logprob_seconds": 5.0,
        "train_seconds": 12.0,
        "sync_seconds": 2.0,
    }
    assert [(e.step, e.name, e.value) for e in run.evaluations if e.curve == "reward"] == [
        (2, "validation/accuracy", 0.5)
    ]
    assert run.facts.steps_planned == 100


def test_nemo_rl_counts_steps_within_an_epoch() -> None:
    epoch = "=" * 25 + " Epoch {}/2 " + "=" * 25
    run = read(epoch.format(1), *nemo_step(1, 2), *nemo_step(2, 2), epoch.format(2), *nemo_step(1, 2), *nemo_step(2, 2))
    assert [(row.step, row.attempt) for row in run.rows] == [(1, 1), (2, 1), (3, 1), (4, 1)]


# ---------------------------------------------------------------------------------------------------------------------
# prime-rl
# ---------------------------------------------------------------------------------------------------------------------


def test_prime_rl() -> None:
    lines: list[str] = []
    for step in (1, 2):
        lines.append(
            f"03:04:05 SUCCESS [ORCH] Step {step} | 1m 2s | Reward 0.4100 | Trainable 60/64 (93.8%) | Turns 1.0"
            " | Branches 1.0 | Max Off-Policy 1 | Error 0.0% | Cancelled 0.0% | Truncation 12.5%"
        )
        lines.append("03:04:06   DEBUG Micro Step 1/4 | Loss 9.9 | Entropy 9.9")
        lines.append(
            f"03:04:07 SUCCESS Step {step} | 42.5s | Loss 0.0021 | Entropy 0.3500 | Mismatch KL 0.0007"
            " | Grad. Norm 0.0800 | LR 1.00e-06 | Throughput 9000 tokens/s | MFU 31.0% | Peak Mem. 60.1 GiB"
        )
    run = read(
        *lines, "SUCCESS Evaluated aime (Step 2) | Policy v2 | 30.0s | Reward 0.2500 | Turns 1.0 | Truncation 3.0%"
    )
    assert run.trainer == "prime-rl"
    assert [row.step for row in run.rows] == [1, 2]
    assert run.rows[0].curves() == {
        "reward": 0.41,
        "entropy": 0.35,
        "grad_norm": 0.08,
        "truncated_frac": 0.125,
        "lr": 1e-6,
        "loss": 0.0021,
        "mismatch_kl": 0.0007,
        "step_seconds": 42.5,
    }
    assert [(e.step, e.value, e.curve) for e in run.evaluations] == [(2, 0.25, "reward")]


def test_prime_rl_of_2025() -> None:
    run = read(
        "SUCCESS Step 1 | Time: 12.30s | Reward: 0.3123 | Throughput: 900.0 tokens/s | Seq. Length: 312.2 tokens",
        "SUCCESS Step 1 | Time: 3.24s | Loss: 0.0012 | Entropy: 0.3123 | Mismatch KL: 0.0004 | Grad. Norm: 0.0812"
        " | LR: 1.00e-06",
        "",
    )
    assert run.rows[0].curves() == {
        "reward": 0.3123,
        "entropy": 0.3123,
        "grad_norm": 0.0812,
        "lr": 1e-6,
        "loss": 0.0012,
        "mismatch_kl": 0.0004,
        "step_seconds": 3.24,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Any program
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Epoch:[1/1]({}/50), Reward: 0.5, KL_ref: 0.02, Avg Response Len: 88.5, Actor Loss: 0.1, Learning Rate: 1e-6",
        "step {} | reward: 0.5 | kl: 0.02 | response_length: 88.5 | loss: 0.1 | lr: 1e-06",
        "INFO [iter {}/50] mean_reward=0.5 kl_div=0.02 response_length=88.5 loss=0.1 lr=1e-6",
        "global_step: {}, accuracy 3, reward: 0.5, kl: 0.02, response_length: 88.5, loss: 0.1, lr: 1e-6",
    ],
)
def test_lines_of_names_and_numbers(text: str) -> None:
    run = read(*(text.format(step) for step in range(1, 4)), "done at step 3, saved 2 files")
    assert [row.step for row in run.rows] == [1, 2, 3]
    assert run.rows[2].curves() == {"reward": 0.5, "kl": 0.02, "response_length": 88.5, "loss": 0.1, "lr": 1e-6}


def test_the_number_of_planned_steps_is_read_from_the_counter() -> None:
    run = read("Epoch:[1/1](1/50), Reward: 0.5, KL_ref: 0.02, Loss: 0.1")
    assert run.facts.steps_planned == 50


def test_percentages_are_shares() -> None:
    run = read("step 1 | reward: 0.5 | clip_frac: 2.5% | truncated_frac: 12.5%")
    assert (run.rows[0].clip_frac, run.rows[0].truncated_frac) == (0.025, 0.125)


def test_a_trainer_that_is_named_must_be_that_of_the_log() -> None:
    with pytest.raises(LogError, match="has no step of verl; it looks like OpenRLHF: --trainer openrlhf"):
        read(f"Global step 1: {OPENRLHF}", trainer="verl")
    assert read(f"Global step 1: {OPENRLHF}", trainer="openrlhf").rows
