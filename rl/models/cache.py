"""Folders that are made once and shared by all processes."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def made_once(final: Path, make: Callable[[Path], None]) -> Path:
    """The folder `final`, made by `make(temporary folder)` if it does not exist.

    `make` runs under a lock and in a temporary folder, which is renamed when it is complete. Of several processes one
    makes the folder and the others wait. A process that dies leaves no folder `final`.
    """
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with _locked(final.parent / f".{final.name}.lock"):
        if final.is_dir():
            return final
        temporary = final.parent / f".{final.name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        make(temporary)
        os.rename(temporary, final)
    return final


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`. The operating system releases it if the process dies."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
