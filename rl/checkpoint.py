"""Checkpoints on disk: folders of safetensors and JSON files. Nothing in them is unpickled.

A checkpoint is written under a temporary name, synced to disk and renamed; its marker file is written last. A folder
without a complete marker is not a checkpoint, so a process that dies while writing leaves the previous one in place.

`write` removes nothing. The caller removes older checkpoints with `prune`, after the driver has recorded the new one:
until then a resume may need the older one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.spec import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "complete.json"
"""Name of the marker file. It lists the checkpoint's files with their sizes."""
_STATE = "state.json"
_NAME = re.compile(r"step-(\d+)-(\d+)")
FORMAT = 1


@dataclass(frozen=True)
class CheckpointContents:
    """The contents of a checkpoint, as `read` returns them."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """By file name without suffix, then by tensor name."""
    state: Mapping[str, Any]
    """JSON types."""


def write(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> tuple[Path, int]:
    """Write a checkpoint as a new sub-folder of `folder`. Returns (its path, its size in bytes without the marker).

    Args:
        tensors: one safetensors file per key, with the tensors by name.
        state: JSON types, without NaN and infinities.

    A second checkpoint of the same step gets a new name: no complete checkpoint is ever overwritten.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob(".step-*.tmp"):
        shutil.rmtree(left_over)
    taken = [int(m[2]) for p in folder.iterdir() if (m := _NAME.fullmatch(p.name)) and int(m[1]) == step]
    final = folder / f"step-{step:06d}-{max(taken, default=0) + 1:02d}"
    temporary = folder / f".{final.name}.tmp"
    temporary.mkdir()
    for name, group in tensors.items():
        save_file({k: t.detach().cpu().contiguous() for k, t in group.items()}, temporary / f"{name}.safetensors")
    (temporary / _STATE).write_text(json.dumps(state, indent=1, allow_nan=False))
    sizes = {p.name: p.stat().st_size for p in sorted(temporary.iterdir())}
    for name in sizes:
        _sync(temporary / name)
    _sync(temporary)
    os.rename(temporary, final)
    _sync(folder)
    _write_marker(final, {"format": FORMAT, "step": step, "files": sizes})
    return final, sum(sizes.values())


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` complete checkpoints of `folder`."""
    for old in complete_checkpoints(folder)[:-keep]:
        # The marker first: a checkpoint that is half removed must not look complete.
        (old / MARKER).unlink()
        shutil.rmtree(old)


def complete_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, oldest first: by step, then by number within the step."""
    if not folder.is_dir():
        return []
    named = [(int(m[1]), int(m[2]), p) for p in folder.iterdir() if (m := _NAME.fullmatch(p.name))]
    return [p for _, _, p in sorted(named) if is_complete(p)]


def is_complete(path: Path) -> bool:
    """Whether the marker file exists and every file that it lists has the listed size."""
    try:
        files = json.loads((path / MARKER).read_text())["files"]
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def read(path: Path) -> CheckpointContents:
    """Read the checkpoint at `path`.

    Raises:
        ConfigurationError: `path` is not a complete checkpoint, or its format is not `FORMAT`.
    """
    from safetensors.torch import load_file

    if not is_complete(path):
        raise ConfigurationError(
            f"{path} is not a complete checkpoint (a folder step-* with {MARKER} and all files that it lists); resume "
            "from one that is, or start without a checkpoint"
        )
    found = json.loads((path / MARKER).read_text())["format"]
    if found != FORMAT:
        raise ConfigurationError(f"{path} is a checkpoint of format {found}; this version reads format {FORMAT}")
    tensors = {p.stem: load_file(p) for p in sorted(path.glob("*.safetensors"))}
    return CheckpointContents(tensors, json.loads((path / _STATE).read_text()))


def _write_marker(final: Path, content: Mapping[str, Any]) -> None:
    temporary = final / f".{MARKER}.tmp"
    temporary.write_text(json.dumps(content))
    _sync(temporary)
    os.rename(temporary, final / MARKER)
    _sync(final)


def _sync(path: Path) -> None:
    """Flush the content of a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
