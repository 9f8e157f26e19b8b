"""Models on disk: turns a `ModelSpec` into a folder of safetensors and a tokenizer that `transformers` can load.

Models that are converted or trained here are stored in a cache and made once. Weights are never unpickled. Nothing is
downloaded, except for `kind: hf` with a hub id.

Tested in tests/rl/models/test_hub.py, tests/rl/models/test_smollm2.py and tests/rl/models/test_tiny.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl.models import hub, smollm2, tiny
from rl.models.cache import made_once
from rl.spec import ModelSpec, TaskSpec


def prepare(
    model: ModelSpec, task: TaskSpec, cache_dir: Path, report_progress: Callable[[str], None] = lambda line: None
) -> Path:
    """The folder to load `model` from. Makes it in `cache_dir` first where the kind of model needs that.

    `task` is used by `kind: tiny` only, which is trained on the questions of the task. `report_progress` is called with
    lines of text while a model is downloaded or made.

    Raises:
        ConfigurationError: a missing path or package, or a folder without safetensors.
    """
    if model.kind == "smollm2_135m":
        return smollm2.prepare(cache_dir, report_progress)
    if model.kind == "tiny":
        folder = cache_dir / tiny.folder_name(task)
        return made_once(folder, lambda temporary: tiny.make(task, temporary, report_progress))
    return hub.find(model, report_progress)


def is_prepared(model: ModelSpec, task: TaskSpec, cache_dir: Path) -> bool:
    """Whether `prepare` would find the model without downloading, converting or training anything."""
    if model.kind == "smollm2_135m":
        return smollm2.folder(cache_dir).is_dir()
    if model.kind == "tiny":
        return (cache_dir / tiny.folder_name(task)).is_dir()
    return bool(model.path) and Path(model.path).expanduser().is_dir()


def describe(model: ModelSpec, task: TaskSpec, cache_dir: Path) -> Path | None:
    """A folder with the configuration and the tokenizer of `model`, perhaps without weights; makes no model.

    None: the model is made by `prepare` and is not in the cache yet.

    Raises:
        ConfigurationError: a missing path, or a hub id that cannot be downloaded.
    """
    if model.kind == "hf":
        return hub.describe(model)
    folder = smollm2.folder(cache_dir) if model.kind == "smollm2_135m" else cache_dir / tiny.folder_name(task)
    return folder if folder.is_dir() else None
