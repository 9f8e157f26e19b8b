"""Checkpoints are complete or not there, at whatever instant the writing process dies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rl import checkpoint
from rl.spec import ConfigurationError


def write(folder: Path, step: int, keep: int = 1, value: float = 0.0) -> Path:
    tensors = {"model": {"w": torch.full((3,), value)}, "optimizer": {}}
    path = checkpoint.write(folder, step, tensors, {"step": step, "value": value})[0]
    checkpoint.prune(folder, keep)
    return path


def test_read_returns_what_was_written(tmp_path: Path) -> None:
    path, size = checkpoint.write(
        tmp_path,
        7,
        {"model": {"a.b": torch.arange(4.0).view(2, 2).T, "c": torch.tensor(3, dtype=torch.int64)}},
        {"step": 7, "data": {"epoch": 1, "deferred": ["x"]}},
    )
    loaded = checkpoint.read(path)
    assert loaded.state == {"step": 7, "data": {"epoch": 1, "deferred": ["x"]}}
    assert torch.equal(loaded.tensors["model"]["a.b"], torch.arange(4.0).view(2, 2).T)
    assert loaded.tensors["model"]["c"] == 3
    assert size == sum(p.stat().st_size for p in path.iterdir() if p.name != checkpoint.MARKER)


def test_checkpoint_consists_of_safetensors_and_json(tmp_path: Path) -> None:
    assert {p.suffix for p in write(tmp_path, 1).iterdir()} == {".safetensors", ".json"}


def test_checkpoints_are_ordered_by_step_not_by_name(tmp_path: Path) -> None:
    assert checkpoint.complete_checkpoints(tmp_path / "none") == []
    paths = [write(tmp_path, step, keep=9) for step in (9, 10, 1_000_000, 11)]
    assert checkpoint.complete_checkpoints(tmp_path)[-1] == paths[2]


def test_second_checkpoint_of_a_step_overwrites_nothing(tmp_path: Path) -> None:
    first, second = (write(tmp_path, 3, keep=2, value=v) for v in (1.0, 2.0))
    assert first != second
    assert [checkpoint.read(p).state["value"] for p in checkpoint.complete_checkpoints(tmp_path)] == [1.0, 2.0]
    assert checkpoint.complete_checkpoints(tmp_path)[-1] == second


@pytest.mark.parametrize("keep", [1, 2])
def test_prune_keeps_the_newest_checkpoints(tmp_path: Path, keep: int) -> None:
    paths = [write(tmp_path, step, keep) for step in range(1, 5)]
    assert [p.exists() for p in paths] == [False] * (4 - keep) + [True] * keep


class Killed(BaseException):
    """Stands for the death of the process."""


@pytest.mark.parametrize("call", ["save", "fsync", "rename"])
def test_death_at_any_write_sync_or_rename_leaves_the_previous_checkpoint_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    import safetensors.torch

    owner, name = {"save": (safetensors.torch, "save_file"), "fsync": (os, "fsync"), "rename": (os, "rename")}[call]
    real: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def dies(at: int) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise Killed
            return real(*args, **kwargs)

        return wrapped

    for at in range(1, 50):
        folder, calls = tmp_path / str(at), 0
        previous = write(folder, 1, value=1.0)
        calls = 0
        monkeypatch.setattr(owner, name, dies(at))
        try:
            write(folder, 2, value=2.0)
        except Killed:
            *_, found = checkpoint.complete_checkpoints(folder)
            assert checkpoint.read(found).state["value"] == (1.0 if found == previous else 2.0)
            monkeypatch.setattr(owner, name, real)
            assert checkpoint.read(write(folder, 2, value=3.0)).state["value"] == 3.0
            assert not [p for p in folder.iterdir() if p.name.endswith(".tmp")]
        else:
            monkeypatch.setattr(owner, name, real)
            assert at > 2
            return
    pytest.fail("no write of a checkpoint was completed")


def test_damaged_checkpoint_is_not_complete_and_cannot_be_read(tmp_path: Path) -> None:
    good, bad = write(tmp_path, 1, keep=9), write(tmp_path, 2, keep=9)
    (bad / "model.safetensors").write_bytes(b"short")
    assert checkpoint.complete_checkpoints(tmp_path) == [good]
    with pytest.raises(ConfigurationError, match="not a complete checkpoint"):
        checkpoint.read(bad)


def test_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    marker = json.loads((path / checkpoint.MARKER).read_text())
    (path / checkpoint.MARKER).write_text(json.dumps({**marker, "format": 99}))
    with pytest.raises(ConfigurationError, match="format 99"):
        checkpoint.read(path)
