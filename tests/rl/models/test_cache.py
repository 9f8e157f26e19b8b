"""Folders of the cache are made once, completely or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl.models.cache import made_once

ROOT = Path(__file__).parents[3]
MAKE_ONCE = """
import pathlib, sys
from rl.models.cache import made_once

root = pathlib.Path(sys.argv[1])

def make(folder):
    with (root / "made").open("a") as log:
        log.write("x")
    (folder / "weights").write_text("w" * 1000)

assert len((made_once(root / "m", make) / "weights").read_text()) == 1000
"""


def test_existing_folder_is_not_made_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "weights").write_text("w")

    for _ in range(2):
        assert (made_once(tmp_path / "cache" / "m", make) / "weights").read_text() == "w"
    assert len(calls) == 1
    assert calls[0] != tmp_path / "cache" / "m"


def test_interrupted_make_leaves_no_folder_and_no_files_for_the_next(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "m", interrupted)
    assert not (tmp_path / "m").exists()
    made_once(tmp_path / "m", lambda folder: (folder / "other").touch())
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["other"]


def test_two_processes_that_start_together_make_the_folder_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE_ONCE, str(tmp_path)]
    both = [subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}) for _ in range(2)]
    assert [p.wait(timeout=60) for p in both] == [0, 0]
    assert (tmp_path / "made").read_text() == "x"
