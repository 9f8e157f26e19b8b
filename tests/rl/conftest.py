from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for made models in the whole test session: the tiny model of a task is warmed once."""
    return tmp_path_factory.getbasetemp() / "model-cache"
