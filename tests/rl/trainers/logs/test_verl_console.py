"""verl's console, in the spellings of 2024 and of today."""

from __future__ import annotations

import pprint

import pytest

from rl.trainers.logs import ImportedRun, read_bytes

TODAY = {
    "actor/entropy": 0.4,
    "actor/kl_loss": 0.002,
    "actor/pg_clipfrac": 0.01,
    "actor/ppo_kl": -0.0003,
    "actor/pg_loss": 0.05,
    "actor/grad_norm": 0.7,
    "actor/lr": 1e-06,
    "training/global_step": 1,
    "training/epoch": 0,
    "critic/score/mean": 0.5,
    "critic/score/max": 1.0,
    "critic/score/min": 0.0,
    "critic/rewards/mean": 0.45,
    "response_length/mean": 210.5,
    "response_length/clip_ratio": 0.05,
    "timing_s/gen": 20.0,
    "timing_s/reward": 1.0,
    "timing_s/old_log_prob": 3.0,
    "timing_s/ref": 2.0,
    "timing_s/update_actor": 8.0,
    "timing_s/step": 35.0,
    "perf/throughput": 812.5,
}
OF_2024 = {
    "timing/gen": 21.5,
    "timing/ref": 6.25,
    "critic/kl": 0.004,
    "timing/adv": 0.125,
    "timing/update_critic": 14.5,
    "critic/grad_norm": 77.0,
    "critic/lr(1e-4)": 0.1,
    "timing/update_actor": 19.25,
    "actor/entropy_loss": 0.625,
    "actor/pg_loss": -0.03,
    "actor/pg_clipfrac": 0.002,
    "actor/ppo_kl": 0.001,
    "actor/grad_norm": 2.75,
    "actor/lr(1e-4)": 0.01,
    "critic/score/mean": 0.05,
    "critic/rewards/mean": 0.04,
    "response_length/mean": 255.5,
}


def line(step: int, values: dict[str, float], number: str = "{}", **more: float) -> str:
    parts = [
        f"{name}:{number.format(value)}"
        for name, value in (values | {k.replace("__", "/"): v for k, v in more.items()}).items()
    ]
    return f"step:{step} - " + " - ".join(parts)


def read(*lines: str) -> ImportedRun:
    return read_bytes(("\n".join(lines) + "\n").encode())


def test_each_metric_becomes_the_curve_of_its_meaning() -> None:
    run = read(line(1, TODAY), line(2, TODAY))
    assert (run.trainer, run.format) == ("verl", "verl's console")
    assert run.rows[0].curves() == {
        "reward": 0.45,
        "acc": 0.5,
        "clip_frac": 0.01,
        "kl": 0.002,
        "entropy": 0.4,
        "response_length": 210.5,
        "grad_norm": 0.7,
        "approx_kl": -0.0003,
        "truncated_frac": 0.05,
        "lr": 1e-6,
        "loss": 0.05,
        "step_seconds": 35.0,
        "rollout_seconds": 20.0,
        "reward_seconds": 1.0,
        "logprob_seconds": 5.0,
        "train_seconds": 8.0,
    }


def test_the_spelling_of_2024_is_read_and_its_counter_starts_with_0() -> None:
    run = read(line(0, OF_2024), line(1, OF_2024))
    first = run.rows[0]
    assert [row.step for row in run.rows] == [1, 2]
    assert (first.lr, first.kl, first.entropy, first.grad_norm) == (1e-6, 0.004, 0.625, 2.75)
    assert first.phase_seconds == {"rollout": 21.5, "logprob": 6.25, "train": 33.75, "other": 0.125}
    assert first.step_seconds == pytest.approx(61.625)
    assert run.notes_of("step_numbers")
    assert run.notes_of("derived")[0].curve == "step_seconds"


def test_the_score_is_correctness_only_where_it_is_0_or_1() -> None:
    shaped = TODAY | {"critic/score/max": 1.2}
    assert read(line(1, TODAY), line(2, shaped)).rows[0].acc is None
    assert read(line(1, TODAY)).rows[0].acc == 0.5


def test_colours_ray_prefixes_and_numpy_scalars() -> None:
    prefix = "\x1b[36m(TaskRunner pid=4711)\x1b[0m "
    run = read(prefix + line(1, TODAY, "np.float64({})"), prefix + line(2, TODAY, "np.float64({})"))
    assert [row.entropy for row in run.rows] == [0.4, 0.4]


def test_colours_whose_escape_character_was_lost() -> None:
    run = read("[36m(TaskRunner pid=1, ip=10.0.0.7)[0m " + line(1, TODAY))
    assert run.rows[0].reward == 0.45


def test_lines_of_other_processes_between_and_behind_do_not_matter() -> None:
    run = read(
        "(WorkerDict pid=9) step: loading weights",
        "(TaskRunner pid=1) " + line(1, TODAY),
        "(WorkerDict pid=9) Warning: something:1.0",
        "(WorkerDict pid=8) critic/rewards/mean:99",
        "(TaskRunner pid=1) " + line(2, TODAY),
    )
    assert [(row.step, row.reward) for row in run.rows] == [(1, 0.45), (2, 0.45)]


@pytest.mark.parametrize("width", [40, 79, 80, 132])
@pytest.mark.parametrize("prefix", ["", "(TaskRunner pid=1) "])
def test_rows_that_a_terminal_wrapped_are_put_together(width: int, prefix: str) -> None:
    def wrapped(text: str) -> list[str]:
        pieces = [text[i : i + width] for i in range(0, len(text), width)]
        return [prefix + piece for piece in pieces]

    run = read(*wrapped(line(1, TODAY)), *wrapped(line(2, TODAY)), prefix + "validation generation end")
    assert run.rows[0].curves() == read(line(1, TODAY)).rows[0].curves()
    assert run.rows[1].curves() == run.rows[0].curves()


@pytest.mark.parametrize("at", [" - ", "- "])
def test_rows_that_were_wrapped_at_spaces_are_put_together(at: str) -> None:
    head, tail = line(1, TODAY).split(" - actor/lr", 1)
    run = read(head + at.rstrip(), "actor/lr" + tail) if at == " - " else read(head, at + "actor/lr" + tail)
    assert run.rows[0].curves() == read(line(1, TODAY)).rows[0].curves()


def test_text_after_a_row_is_not_taken_into_it() -> None:
    run = read(line(1, TODAY), "42", "The answer is: 42", "step by step:", line(2, TODAY))
    assert run.rows[0].curves() == run.rows[1].curves()
    assert len(run.rows) == 2


def test_step_within_another_name_is_not_a_row() -> None:
    run = read(line(1, {"training/global_step": 7, **TODAY}))
    assert [row.step for row in run.rows] == [1]


def test_a_file_that_ends_inside_a_number_loses_that_number_only() -> None:
    whole = line(3, TODAY)
    cut = whole[: whole.index("actor/grad_norm:") + len("actor/grad_norm:0")]
    run = read_bytes("\n".join([line(1, TODAY), line(2, TODAY), cut]).encode())
    assert run.rows[2].grad_norm is None
    assert run.rows[2].loss == 0.05
    assert run.notes_of("cut")[0].text == "Line 3 ends early; its last number is left out."


def test_a_file_that_ends_inside_a_name_loses_nothing_but_that() -> None:
    cut = line(2, TODAY)[:60]
    run = read_bytes("\n".join([line(1, TODAY), cut]).encode())
    assert run.rows[1].entropy == 0.4
    assert run.notes_of("cut")[0].text == "The file ends inside line 2."


def test_a_row_that_another_process_cut_through_loses_the_number_at_the_cut() -> None:
    whole = line(2, TODAY)
    cut = whole.index("actor/grad_norm:") + len("actor/grad_norm:0")
    run = read(line(1, TODAY), whole[:cut] + "(WorkerDict pid=3) hello", whole[cut:], line(3, TODAY), line(4, TODAY))
    assert run.rows[1].grad_norm is None
    assert run.rows[1].loss == 0.05
    assert run.notes_of("skipped")


def test_bytes_that_are_not_text_cost_only_the_value_they_are_in() -> None:
    damaged = line(2, TODAY).encode().replace(b"actor/grad_norm:0.7", b"actor/grad_norm:0\x00\xff7")
    run = read_bytes(b"\n".join([line(1, TODAY).encode(), damaged, b"\x80\x81\x82", line(3, TODAY).encode(), b""]))
    assert [row.grad_norm for row in run.rows] == [0.7, None, 0.7]
    assert [row.reward for row in run.rows] == [0.45, 0.45, 0.45]
    assert run.notes_of("skipped")[0].text == "2 lines with bytes that are not text (first: line 2)."


def test_validation_rows_and_values_in_rows_are_evaluations() -> None:
    run = read(
        "step:0 - val-core/gsm8k/acc/mean@1:0.25 - val-core/gsm8k/reward/mean@1:0.3 - val-aux/num_turns/mean:2.0",
        line(1, TODAY),
        line(2, TODAY | {"val-core/gsm8k/acc/mean@1": 0.5}),
    )
    assert [row.step for row in run.rows] == [1, 2]
    assert [(e.step, e.curve, e.value) for e in run.evaluations] == [
        (0, "acc", 0.25),
        (0, "reward", 0.3),
        (0, None, 2.0),
        (2, "acc", 0.5),
    ]


def test_printed_validations_are_those_before_and_after_training() -> None:
    scores = {
        "test_score/gsm8k": 0.01,
        "test_score/a_very_long_name_of_another_data_source": 0.02,
        "test_score/math": 0.03,
    }
    before = pprint.pformat(f"Initial validation metrics: {scores}").split("\n")
    after = pprint.pformat("Final validation metrics: {'test_score/gsm8k': 0.5}").split("\n")
    run = read(*before, line(0, OF_2024), line(1, OF_2024), *after, *after)
    assert len(before) > 1
    assert [(e.step, e.name, e.value) for e in run.evaluations] == [
        *((0, f"val/{name}", value) for name, value in scores.items()),
        (2, "val/test_score/gsm8k", 0.5),
    ]


def test_the_printed_configuration_gives_the_facts() -> None:
    run = read(
        "(main_task pid=1) {'actor_rollout_ref': {'actor': {'optim': {'lr': 3e-06},",
        "(main_task pid=1)                                  'ppo_epochs': 1,",
        "(WorkerDict pid=2) something else {'x': 1}",
        "(main_task pid=1)                                  'ppo_mini_batch_size': 64},",
        "(main_task pid=1)                        'model': {'path': 'org/model-7b'},",
        "(main_task pid=1)                        'rollout': {'n': 8}},",
        "(main_task pid=1)  'critic': {'optim': {'lr': 1e-05}},",
        "(main_task pid=1)  'data': {'max_response_length': 512, 'train_batch_size': 256},",
        "(main_task pid=1)  'trainer': {'n_gpus_per_node': 8, 'nnodes': 2}}",
        "(main_task pid=1) Total training steps: 120",
        "(main_task pid=1) " + line(1, TODAY),
    )
    assert run.facts.known() == {
        "model": "org/model-7b",
        "group_size": 8,
        "prompts_per_step": 256,
        "lr": 3e-6,
        "updates_per_rollout": 4,
        "max_completion_tokens": 512,
        "cards": 16,
        "steps_planned": 120,
    }
    assert run.notes_of("stopped_early")[0].text == "The log ends at step 1 of 120."


def test_overrides_on_the_command_line_give_facts_too() -> None:
    run = read(
        "python -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.n=4 \\",
        "  actor_rollout_ref.actor.optim.lr=1e-6 trainer.nnodes=1 trainer.n_gpus_per_node=4",
        line(1, TODAY),
    )
    assert (run.facts.prompts_per_step, run.facts.group_size, run.facts.lr, run.facts.cards) == (64, 4, 1e-6, 4)


def test_the_rate_of_a_critic_is_not_that_of_the_policy() -> None:
    run = read("critic.optim.lr=1e-5", line(1, TODAY | {"actor/lr": 2e-06}))
    assert run.facts.lr == 2e-6


def test_groups_of_one_are_noted_as_not_being_grpo() -> None:
    run = read("actor_rollout_ref.rollout.n=1 algorithm.adv_estimator=gae", line(1, TODAY))
    texts = [note.text for note in run.notes_of("meaning")]
    assert any(text.startswith("Groups have one completion") for text in texts)
    assert "Advantages come from gae, not from groups." in texts
