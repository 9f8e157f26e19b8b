"""Write a file completely or not at all: a reader never sees a part of it.

Tested in tests/cost/cli/test_report.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from cost.records import StoreError


def write_text(text: str, path: str | Path) -> Path:
    """Write a text file. Raises StoreError if it cannot be written."""
    with atomic_file(path) as file:
        file.write(text)
    return Path(path)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[TextIO]:
    """A file to write to. It replaces the file at `path` at the end, after it was flushed to the disk.

    A path that is not a regular file (a pipe, /dev/stdout) is written to directly and never replaced.

    Raises:
        StoreError: the file cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("w", encoding="utf-8", newline="") as file:
                yield file
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            partial.unlink()
