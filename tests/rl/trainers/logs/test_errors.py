"""Files that are no log of a GRPO run: one kind of error, one message each."""

from __future__ import annotations

import gzip
import json

import pytest

from rl.trainers.logs import LogError, read_bytes, read_run


def message(data: bytes | str) -> str:
    with pytest.raises(LogError) as raised:
        read_bytes(data.encode() if isinstance(data, str) else data, "x.log")
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    "data", [b"", b" \n\r\n\t", b"\0" * 100, gzip.compress(b""), gzip.compress(b"\n\n"), b"\xef\xbb\xbf"]
)
def test_an_empty_file(data: bytes) -> None:
    assert message(data) == "x.log is empty"


def test_a_compressed_file_of_which_nothing_is_left() -> None:
    assert message(b"\x1f\x8b\x08\x00broken") == "x.log: nothing of it can be decompressed"


def test_a_file_in_which_nothing_fits_says_what_was_looked_for_and_what_it_has() -> None:
    text = message("Dear diary,\ntoday I trained nothing.\n" + "x" * 300 + "\nfourth line")
    assert text.startswith("x.log is not the log of a GRPO run that can be read. Looked for: JSON lines")
    for trainer in ("verl", "slime", "OpenRLHF", "NeMo-RL", "prime-rl", "TRL", "CSV"):
        assert trainer in text
    assert "First lines: Dear diary, | today I trained nothing. | xxx" in text
    assert "fourth line" not in text
    assert len(text) < 1000


def test_a_log_without_a_step() -> None:
    text = message("{'actor_rollout_ref': {'rollout': {'n': 8}}}\nTotal training steps: 100\nCUDA out of memory\n")
    assert text.startswith("x.log has no step: the run ended before its first one.")


def test_a_run_that_completed_after_0_steps() -> None:
    text = message("{'train_runtime': 0.02, 'train_steps_per_second': 0.0, 'train_loss': 0.0, 'epoch': 3.0}\n")
    assert text == "x.log: the trainer reports that it completed after 0 steps; there is nothing to import"


def test_a_log_of_supervised_fine_tuning() -> None:
    rows = [
        {"loss": 2.0 / i, "grad_norm": 1.0, "learning_rate": 1e-5, "mean_token_accuracy": 0.5, "epoch": 0.1 * i}
        for i in (1, 2, 3)
    ]
    text = message("\n".join(map(str, rows)))
    assert text.startswith(
        "x.log is a log of training without a reward (supervised fine-tuning, for example), not of GRPO"
    )
    assert "mean_token_accuracy" in text


def test_a_log_of_preference_training() -> None:
    row = {
        "loss": 0.6,
        "rewards/chosen": 0.1,
        "rewards/rejected": -0.1,
        "rewards/accuracies": 0.5,
        "rewards/margins": 0.2,
    }
    text = message(str(row))
    assert text.startswith("x.log is a log of preference training (DPO or a reward model), not of GRPO")


def test_numbers_of_something_else() -> None:
    text = message("step,temperature,pressure\n1,20.5,1013\n2,21.5,1012\n")
    assert text.startswith("x.log has 2 rows (CSV), but no curve of GRPO in them: it has ")
    assert "temperature" in text


def test_options_that_do_not_exist() -> None:
    with pytest.raises(
        LogError, match="trainer 'trlx' is not known; there are: auto, trl, verl, slime, openrlhf, prime"
    ):
        read_run("x.log", "trlx")
    with pytest.raises(LogError, match="rows_are_means_of is 0; a row covers at least 1 step"):
        read_run("x.log", rows_are_means_of=0)


def test_a_whole_file_of_one_long_line() -> None:
    assert message("x" * 2_000_000).startswith("x.log is not the log")


def test_json_that_is_no_log() -> None:
    assert message(json.dumps({"name": "x", "values": [1, 2]})).startswith("x.log is not the log")
    assert message(json.dumps([1, 2, 3])).startswith("x.log is not the log")
    assert message("[" * 100_000).startswith("x.log is not the log")
    assert message('{"a":' * 5_000 + "1" + "}" * 5_000).startswith("x.log")


def test_rows_of_which_no_curve_can_be_taken() -> None:
    text = message("perf 0: {'rollout/zero_std/count_0.0': 4, 'rollout/response_len/max': 9.0}\n")
    assert text.startswith("x.log has 1 rows (slime's console), but no curve of GRPO in them")
