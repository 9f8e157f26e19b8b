"""TRL's dictionaries on a console."""

from __future__ import annotations

import math

import pytest

from rl.trainers.logs import ImportedRun, read_bytes

ROW = {
    "loss": 0.0123,
    "grad_norm": 0.5,
    "learning_rate": 1e-06,
    "num_tokens": 1000.0,
    "completions/mean_length": 120.5,
    "completions/clipped_ratio": 0.25,
    "rewards/correct/mean": 0.5,
    "rewards/correct/std": 0.5,
    "reward": 0.75,
    "reward_std": 0.4,
    "frac_reward_zero_std": 0.125,
    "sampling/sampling_logp_difference/mean": 0.01,
    "sampling/sampling_logp_difference/max": 0.3,
    "sampling/importance_sampling_ratio/mean": 1.02,
    "kl": 0.002,
    "entropy": 0.9,
    "clip_ratio/region_mean": 0.03,
    "step_time": 12.5,
    "epoch": 0.01,
}
SUMMARY = "{'train_runtime': 100.0, 'train_steps_per_second': 0.2, 'train_loss': 0.1, 'epoch': 1.0}"


def row(**changes: object) -> str:
    return str(ROW | changes)


def rows(count: int, k: int = 1) -> list[str]:
    """Rows whose token counter grows evenly."""
    return [row(num_tokens=1000.0 * k * i, reward=i / 100) for i in range(1, count + 1)]


def read(*lines: str, **options: int) -> ImportedRun:
    return read_bytes(("\n".join(lines) + "\n").encode(), **options)  # type: ignore[arg-type]


def test_each_metric_becomes_the_curve_of_its_meaning() -> None:
    run = read(row())
    assert run.trainer == "trl"
    assert run.rows[0].curves() == {
        "reward": 0.75,
        "clip_frac": 0.03,
        "kl": 0.002,
        "entropy": 0.9,
        "response_length": 120.5,
        "grad_norm": 0.5,
        "reward_std": 0.4,
        "truncated_frac": 0.25,
        "zero_std_frac": 0.125,
        "lr": 1e-6,
        "loss": 0.0123,
        "sampler_ratio_mean": 1.02,
        "logp_diff_mean": 0.01,
        "logp_diff_max": 0.3,
        "step_seconds": 12.5,
        "reward_correct": 0.5,
    }


def test_names_of_older_versions_are_read() -> None:
    run = read("{'loss': 0.1, 'completion_length': 99.0, 'rewards/correct': 0.5, 'reward': 0.5, 'clip_ratio': 0.02}")
    first = run.rows[0]
    assert (first.response_length, first.clip_frac, first.rewards) == (99.0, 0.02, {"correct": 0.5})


def test_values_may_be_strings() -> None:
    run = read("{'loss': '5.125e-05', 'grad_norm': '0.075', 'learning_rate': '3e-05', 'reward': '0', 'kl': '0.0025'}")
    first = run.rows[0]
    assert (first.loss, first.grad_norm, first.lr, first.reward, first.kl) == (5.125e-05, 0.075, 3e-05, 0.0, 0.0025)


def test_nan_and_inf_are_values_and_none_is_missing() -> None:
    run = read("{'loss': nan, 'grad_norm': inf, 'reward': None, 'kl': -inf, 'entropy': 0.5, 'epoch': 0.5}", row())
    first = run.rows[0]
    assert math.isnan(first.loss or 0.0)
    assert (first.grad_norm, first.kl, first.reward, first.entropy) == (math.inf, -math.inf, None, 0.5)


def test_numpy_scalars_are_numbers() -> None:
    run = read(
        "{'loss': np.float64(0.25), 'reward': tensor(0.5, device='cuda:0'), 'kl': np.float32(nan), 'epoch': 0.5}"
    )
    first = run.rows[0]
    assert (first.loss, first.reward) == (0.25, 0.5)
    assert math.isnan(first.kl or 0.0)


def test_text_that_only_starts_like_a_number_is_no_value() -> None:
    run = read("{'loss': '0.1x', 'reward': 0.5, 'kl': '1_000', 'entropy': '٣', 'epoch': 0.5}")
    assert run.rows[0].curves() == {"reward": 0.5}


def bars(upto: int, total: int = 20, seconds: int = 30, first: int = 0) -> str:
    """A progress bar that was drawn over itself, as a console keeps it."""
    states = (
        f"\r {i * 100 // total:3d}%|##   | {i}/{total} [{i * seconds // 60:02d}:{i * seconds % 60:02d}<01:00, 30s/it]"
        for i in range(first, upto + 1)
    )
    return "".join(states)


def test_dictionaries_are_found_behind_progress_bars() -> None:
    first, second = rows(2)
    blank = "\r            \r"
    log = f"{bars(5)}{blank}{first}\n{bars(10, first=5)}{blank}{second}\n{bars(20, first=10)}"
    run = read_bytes(log.encode())
    assert [(r.step, r.rows_are_means_of, r.reward) for r in run.rows] == [(5, 5, 0.01), (10, 5, 0.02)]
    assert run.facts.steps_planned == 20
    assert "from the progress bar" in run.notes_of("step_numbers")[0].text


def test_carriage_returns_may_be_lost() -> None:
    log = (bars(5) + "            " + rows(2)[0] + "\n" + bars(10, first=6) + "   " + rows(2)[1] + "\n").replace(
        "\r", ""
    )
    assert [r.step for r in read_bytes(log.encode()).rows] == [5, 10]


def test_step_seconds_come_from_the_bar_where_nothing_better_is_logged() -> None:
    plain = "{'loss': 0.1, 'reward': 0.5, 'epoch': 0.01}"
    run = read_bytes((bars(5) + "\r" + plain + "\n" + bars(10, first=5) + "\r" + plain + "\n").encode())
    assert [r.step_seconds for r in run.rows] == [30.0, 30.0]
    assert run.notes_of("derived")[0].curve == "step_seconds"
    assert run.elapsed_seconds == 300.0


def test_rows_that_come_long_after_their_bars_are_counted() -> None:
    """Output to a file is held back in blocks: the rows come at once, when the bar is at its end."""
    run = read_bytes((bars(20) + "\n" + "\n".join(rows(4, k=5)) + "\n" + SUMMARY + "\n").encode())
    assert [r.step for r in run.rows] == [5, 10, 15, 20]
    assert "from the trainer's summary" in run.notes_of("step_numbers")[0].text


def test_bars_of_other_work_are_not_steps() -> None:
    other = "".join(f"\rProcessed prompts: {i}%|#| {i}/100 [00:{i % 60:02d}<00:01,  9.9it/s]" for i in range(100))
    run = read_bytes((other + bars(5) + "\r" + rows(1)[0] + "\n").encode())
    assert (run.steps, run.facts.steps_planned) == (5, 20)


def test_steps_of_a_row_follow_from_the_summary() -> None:
    run = read(*rows(4, k=5), SUMMARY)  # 100 s at 0.2 steps a second: 20 steps in 4 rows
    assert [(r.step, r.rows_are_means_of) for r in run.rows] == [(5, 5), (10, 5), (15, 5), (20, 5)]
    assert run.elapsed_seconds == 100.0


def test_steps_of_a_row_follow_from_a_printed_configuration() -> None:
    run = read(
        "GRPOConfig(logging_steps=10, num_generations=8, learning_rate=2e-06, seed=7, num_iterations=2,)", *rows(3)
    )
    assert [r.step for r in run.rows] == [10, 20, 30]
    assert run.facts.known() == {"group_size": 8, "lr": 2e-6, "seed": 7, "updates_per_rollout": 2, "logging_steps": 10}


def test_settings_after_the_first_row_are_those_of_a_completion_and_not_read() -> None:
    run = read(*rows(2), "seed = 3, num_generations=99, learning_rate=1.0", *rows(2))
    assert run.facts.group_size is None
    assert run.facts.seed is None


def test_without_any_hint_rows_are_counted_and_that_is_noted() -> None:
    run = read(*rows(3))
    assert [(r.step, r.rows_are_means_of) for r in run.rows] == [(1, 1), (2, 1), (3, 1)]
    assert "nothing in the log states" in run.notes_of("step_numbers")[0].text


def test_the_caller_may_say_how_many_steps_a_row_covers() -> None:
    run = read(*rows(3), rows_are_means_of=4)
    assert [(r.step, r.rows_are_means_of) for r in run.rows] == [(4, 4), (8, 4), (12, 4)]


def test_a_precise_epoch_shows_missing_rows() -> None:
    epochs = [*(i * 0.001237 for i in range(1, 6)), *(i * 0.001237 for i in range(50, 54))]
    run = read(*(row(epoch=float(f"{epoch:.4g}"), num_tokens=epoch * 1e6) for epoch in epochs))
    assert [r.step for r in run.rows] == [1, 2, 3, 4, 5, 50, 51, 52, 53]
    assert run.notes_of("missing_steps")[0].text == "No rows for steps 6 to 49."


def test_a_log_whose_head_is_missing_starts_at_its_true_step() -> None:
    run = read(*(row(epoch=i * 0.001237, num_tokens=float(i)) for i in range(80, 90)))
    assert [r.step for r in run.rows] == list(range(80, 90))
    assert run.notes_of("missing_steps")[0].text == "No rows for steps 1 to 79."


def test_an_epoch_with_two_decimals_counts_nothing() -> None:
    run = read(*(row(epoch=epoch, num_tokens=i * 1e3) for i, epoch in enumerate((0.01, 0.02, 0.04, 0.05, 0.06), 1)))
    assert [r.step for r in run.rows] == [1, 2, 3, 4, 5]


def test_a_jump_of_the_token_counter_stops_the_inference_from_the_summary() -> None:
    kept = [text for i, text in enumerate(rows(20)) if i < 6 or i > 15]
    run = read(*kept, SUMMARY)
    assert run.rows_are_means_of == 1
    assert "num_tokens jumps" in run.notes_of("missing_steps")[0].text


def test_a_resumed_run_goes_on_from_its_checkpoint() -> None:
    run = read(*rows(6), "Traceback (most recent call last):", *rows(8)[4:])
    assert [(r.attempt, r.step) for r in run.rows] == [*((1, s) for s in range(1, 7)), *((2, s) for s in range(5, 9))]
    assert [(r.attempt, r.step) for r in run.lineage] == [
        *((1, s) for s in range(1, 5)),
        *((2, s) for s in range(5, 9)),
    ]
    assert run.notes_of("restarted")[0].text == "The step counter starts again once: step 5 (line 8)."


def test_a_resumed_run_with_a_progress_bar_has_the_steps_of_the_bar() -> None:
    texts = rows(6, k=5)
    first = "".join(f"{bars(5 * i, total=30, first=5 * i - 5)}\r{texts[i - 1]}\n" for i in (1, 2, 3, 4))
    second = "".join(f"{bars(5 * i, total=30, first=5 * i - 5)}\r{texts[i - 1]}\n" for i in (3, 4, 5, 6))
    run = read_bytes((first + "Traceback\n" + second).encode())
    assert [(r.attempt, r.step) for r in run.rows] == [
        (1, 5),
        (1, 10),
        (1, 15),
        (1, 20),
        (2, 15),
        (2, 20),
        (2, 25),
        (2, 30),
    ]
    assert run.steps == 30
    assert not run.notes_of("missing_steps")


def test_an_attempt_that_ends_after_0_steps_is_noted() -> None:
    run = read(*rows(3), SUMMARY, SUMMARY)
    assert run.notes_of("no_steps")[0].text == "The trainer reports once that it completed after 0 steps."
    assert len(run.rows) == 3


def test_an_evaluation_belongs_to_the_step_before_it() -> None:
    evaluation = "{'eval_loss': 0.1, 'eval_reward': 0.4, 'eval_completions/mean_length': 88.0, 'eval_runtime': 9.0}"
    run = read(evaluation, *rows(2), evaluation, *rows(3)[2:])
    assert [(e.step, e.curve, e.value) for e in run.evaluations if e.curve in ("reward", "response_length")] == [
        (0, "reward", 0.4),
        (0, "response_length", 88.0),
        (2, "reward", 0.4),
        (2, "response_length", 88.0),
    ]
    assert len(run.rows) == 3
    assert not any("runtime" in e.name for e in run.evaluations)


def test_a_row_that_a_terminal_wrapped_is_put_together() -> None:
    text = row()
    run = read_bytes("\n".join(text[i : i + 80] for i in range(0, len(text), 80)).encode())
    assert run.rows[0].curves() == read(text).rows[0].curves()


def test_a_row_that_was_cut_by_another_is_skipped_and_counted() -> None:
    run = read(rows(3)[0], rows(3)[1][:60], rows(3)[2])
    assert [r.reward for r in run.rows] == [0.01, 0.03]
    assert run.notes_of("skipped")[0].text == "1 dictionaries could not be read (first: line 2)."


def test_a_file_that_ends_inside_a_row_is_noted() -> None:
    run = read_bytes("\n".join([*rows(2), rows(3)[2][:70]]).encode())
    assert len(run.rows) == 2
    assert run.notes_of("cut")[0].text == "The file ends inside the row of line 3."


def test_rows_of_a_warm_up_without_reward_are_left_out() -> None:
    warm_up = [str({"loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-5, "epoch": i / 10}) for i in range(1, 4)]
    run = read(*warm_up, *rows(2))
    assert len(run.rows) == 2
    assert "3 rows without a reward" in run.notes_of("skipped")[0].text


@pytest.mark.parametrize("prefix", ["[rank0]: ", "0: ", "2025-01-02T03:04:05Z ", "(GRPOTrainer pid=77) ", "INFO:root:"])
def test_prefixes_of_launchers_do_not_matter(prefix: str) -> None:
    assert [r.reward for r in read(*(prefix + text for text in rows(2))).rows] == [0.01, 0.02]
