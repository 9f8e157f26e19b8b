from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl.spec import TaskSpec


@pytest.fixture
def task_file(tmp_path: Path) -> Callable[..., TaskSpec]:
    """Returns a function that makes a task from the rows of its JSONL file."""

    def make(rows: list[dict[str, Any]], **settings: Any) -> TaskSpec:
        path = tmp_path / "task.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return TaskSpec("file", "mine", path=str(path), **settings)

    return make
