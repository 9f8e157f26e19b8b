"""Models are made once, whole or not at all; what is not a model is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl.models import prepare
from rl.models.cache import made_once
from rl.spec import ConfigurationError, ModelSpec, TaskSpec

SUMS = TaskSpec("reasoning_gym", "chain_sum", params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def test_a_folder_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "weights").write_text("w")

    for _ in range(2):
        assert (made_once(tmp_path / "cache" / "m", make) / "weights").read_text() == "w"
    assert len(calls) == 1
    assert calls[0] != tmp_path / "cache" / "m"


def test_making_that_dies_leaves_nothing_that_looks_made(tmp_path: Path) -> None:
    def dies(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "m", dies)
    assert not (tmp_path / "m").exists()
    made_once(tmp_path / "m", lambda folder: (folder / "other").touch())
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["other"]


def test_two_processes_that_start_together_make_it_once(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[2])\n"
        "from rl.models.cache import made_once\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "def make(folder):\n"
        "    with (root / 'made').open('a') as log: log.write('x')\n"
        "    (folder / 'weights').write_text('w' * 1000)\n"
        "assert len((made_once(root / 'm', make) / 'weights').read_text()) == 1000\n"
    )
    here = str(Path(__file__).resolve().parents[3])
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), here]) for _ in range(2)]
    assert [p.wait(timeout=60) for p in both] == [0, 0]
    assert (tmp_path / "made").read_text() == "x"


def test_the_tiny_model_is_right_about_three_times_of_ten_and_was_not_taught_the_evaluation(model_cache: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl.models import tiny
    from rl.tasks import load_task

    folder = prepare(ModelSpec("tiny"), SUMS, model_cache)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    task = load_task(SUMS)
    for questions in (task.train, task.evaluation):
        pairs = [(q.prompt, q.answer) for q in questions]
        _, sampled = tiny._accuracy(model, tiny._encode(tokenizer, pairs))
        assert 0.2 <= sampled <= 0.4
        assert all(tokenizer.decode(tokenizer(p)["input_ids"]) == p for p, _ in pairs)
    assert 100_000 > model.num_parameters() > 50_000


def test_another_set_of_questions_is_another_tiny_model() -> None:
    import dataclasses

    from rl.models.tiny import folder_name

    assert folder_name(SUMS) != folder_name(dataclasses.replace(SUMS, data_seed=1))
    assert folder_name(SUMS) == folder_name(dataclasses.replace(SUMS, format_pattern="x", reward_workers=3))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "model.path is empty"),
        ("/nowhere/at/all", "is not a folder"),
        ("./nowhere", "is not a folder"),
        ("EMPTY", "no config.json"),
    ],
)
def test_a_path_that_holds_no_model_is_refused(tmp_path: Path, path: str | None, message: str) -> None:
    path = str(tmp_path) if path == "EMPTY" else path
    with pytest.raises(ConfigurationError, match=message):
        prepare(ModelSpec("hf", path=path), SUMS, tmp_path / "cache")


def test_a_local_folder_is_used_where_it_lies(model_cache: Path, tmp_path: Path) -> None:
    folder = prepare(ModelSpec("tiny"), SUMS, model_cache)
    assert prepare(ModelSpec("hf", path=str(folder)), SUMS, tmp_path) == folder
