from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model cache for the whole test session and all xdist workers: the tiny model of a task is trained once."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "model-cache"


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns a function that writes a module, makes it importable here and in reward workers, and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(source: str) -> str:
        name = f"user_module_{len(list(tmp_path.glob('user_module_*.py')))}_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return make
