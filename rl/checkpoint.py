"""Checkpoints on disk: folders of safetensors and JSON, whole or not there at all. Nothing in them is unpickled.

A checkpoint is written under a temporary name, synced and renamed; its marker comes last. Older ones are removed by
`prune`, for the writer to call once whoever resumes has heard of the new one: until then the old one may be the only
checkpoint that they know. Knows nothing of what it stores.
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
_STATE = "state.json"
_NAME = re.compile(r"step-(\d+)-(\d+)")
FORMAT = 1


@dataclass(frozen=True)
class Loaded:
    tensors: Mapping[str, Mapping[str, Tensor]]
    """By file name without its ending, then by tensor name."""
    state: Mapping[str, Any]


def write(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> tuple[Path, int]:
    """Write a checkpoint into `folder`; (its path, its size in bytes).

    A second checkpoint of the same step gets a name of its own; nothing that is whole is ever overwritten.
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
    """Remove all but the newest `keep` whole checkpoints."""
    for old in whole(folder)[:-keep]:
        # The marker first: what is half removed must not look whole.
        (old / MARKER).unlink()
        shutil.rmtree(old)


def whole(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, oldest first."""
    if not folder.is_dir():
        return []
    named = [(int(m[1]), int(m[2]), p) for p in folder.iterdir() if (m := _NAME.fullmatch(p.name))]
    return [p for _, _, p in sorted(named) if is_whole(p)]


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`, None if there is none."""
    found = whole(folder)
    return found[-1] if found else None


def is_whole(path: Path) -> bool:
    """Whether the marker is there and every file it names has its size."""
    try:
        files = json.loads((path / MARKER).read_text())["files"]
        return all((path / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def read(path: Path) -> Loaded:
    """Read a whole checkpoint.

    Raises:
        ConfigurationError: there is none at `path`, it is not whole, or it is of another format.
    """
    from safetensors.torch import load_file

    if not is_whole(path):
        raise ConfigurationError(
            f"{path} is not a whole checkpoint (a folder step-* with {MARKER}); give one that is, or start afresh"
        )
    found = json.loads((path / MARKER).read_text())["format"]
    if found != FORMAT:
        raise ConfigurationError(f"{path} is a checkpoint of format {found}; this version reads format {FORMAT}")
    tensors = {p.stem: load_file(p) for p in sorted(path.glob("*.safetensors"))}
    return Loaded(tensors, json.loads((path / _STATE).read_text()))


def _write_marker(final: Path, content: Mapping[str, Any]) -> None:
    temporary = final / f".{MARKER}.tmp"
    temporary.write_text(json.dumps(content))
    _sync(temporary)
    os.rename(temporary, final / MARKER)
    _sync(final)


def _sync(path: Path) -> None:
    """Have the file's or folder's content reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
