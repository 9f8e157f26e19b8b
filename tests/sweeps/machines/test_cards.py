"""The cards of a host are locked by one sweep at a time, until its process ends."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.machines.cards import lock_cards

CPU = compose(["+stage=smoke"]).machine


def test_a_second_sweep_gets_the_free_cards_and_the_process_that_uses_the_others(tmp_path):
    eight = dataclasses.replace(CPU, cards=8)
    with lock_cards(dataclasses.replace(CPU, cards=5), 1, tmp_path) as first:
        assert first == (0, 1, 2, 3, 4)
        with lock_cards(eight, 1, tmp_path) as second:
            assert second == (5, 6, 7)
        with pytest.raises(ConfigError, match=rf"3 of its 8 cards are free.*needs 4.*{os.getpid()}"):
            lock_cards(eight, 4, tmp_path).__enter__()
    with lock_cards(eight, 8, tmp_path) as all_of_them:
        assert len(all_of_them) == 8


def test_a_killed_process_releases_its_cards(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "from sweeps.machines.cards import lock_cards\nfrom sweeps.config.build import compose\n"
        "with lock_cards(compose(['+stage=smoke']).machine, 1, pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=False, timeout=60)
    assert killed.returncode == -9
    with lock_cards(CPU, 1, tmp_path) as cards:
        assert cards == (0,)
