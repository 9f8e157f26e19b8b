"""Every file of conf/task gives a task that loads, offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.tasks import load_task
from sweeps.config.build import compose
from sweeps.config.overrides import CONF_DIR
from sweeps.config.types import ConfigError

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"
TASKS = sorted(p.stem for p in (CONF_DIR / "task").glob("*.yaml") if not p.stem.startswith("_"))


@pytest.fixture
def hub_gsm8k(tmp_path: Path) -> Path:
    """GSM8K in the layout of the hub: one folder per subset, and shards."""
    import pyarrow
    import pyarrow.parquet

    for subset in ("main", "socratic"):
        (tmp_path / subset).mkdir()
        for split, rows in (("train", 400), ("test", 300)):
            questions = [f"{split}: what is {i} + 1?" for i in range(rows)]
            answers = [f"{i} + 1 = <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1:,}" for i in range(rows)]
            table = pyarrow.table({"question": questions, "answer": answers})
            pyarrow.parquet.write_table(table, tmp_path / subset / f"{split}-00000-of-00001.parquet")
    return tmp_path


@pytest.mark.parametrize("name", TASKS)
def test_every_task_file_loads_offline(name: str, hub_gsm8k: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hub_gsm8k / "squares_task.py").write_text(
        "def f():\n    return [{'question': str(i), 'answer': i} for i in range(99)]"
    )
    monkeypatch.syspath_prepend(str(hub_gsm8k))
    extra = {"gsm8k": [f"task.path={hub_gsm8k}"], "module": ["task.name=squares_task:f"]}.get(name, [])
    cfg = compose(["+stage=smoke", f"task={name}", *extra])
    task = load_task(cfg.task)
    assert len(task.evaluation) == cfg.task.eval_questions
    assert task.train


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not in ../shared/data")
def test_gsm8k_loads_from_a_folder_with_train_and_test() -> None:
    task = load_task(compose(["+stage=smoke", "task=gsm8k", f"task.path={GSM8K}"]).task)
    assert (len(task.train), len(task.evaluation)) == (7473, 256)


def test_subset_of_a_task_without_files_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.subset=main is used by tasks from files only"):
        compose(["+stage=smoke", "task.subset=main"])
