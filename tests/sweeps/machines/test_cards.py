"""The cards of a host are locked by one sweep at a time, until its process ends."""

from __future__ import annotations

import dataclasses
import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.driver.driver import run
from sweeps.machines import cards
from sweeps.machines.cards import lock_cards

CPU = compose(["+stage=smoke"]).machine


def test_a_second_sweep_gets_the_free_cards_and_the_process_that_uses_the_others(tmp_path):
    eight = dataclasses.replace(CPU, cards=8)
    with lock_cards(dataclasses.replace(CPU, cards=5), 1, "sweep smoke-a in /runs", tmp_path) as first:
        assert first == (0, 1, 2, 3, 4)
        with lock_cards(eight, 1, "sweep b", tmp_path) as second:
            assert second == (5, 6, 7)
        used = rf"3 of its 8 cards are free.*needs 4.*sweep smoke-a in /runs, run by .*{os.getpid()}"
        with pytest.raises(ConfigError, match=used):
            lock_cards(eight, 4, "sweep c", tmp_path).__enter__()
    with lock_cards(eight, 8, "sweep d", tmp_path) as all_of_them:
        assert len(all_of_them) == 8


def test_a_killed_process_releases_its_cards(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "from sweeps.machines.cards import lock_cards\nfrom sweeps.config.build import compose\n"
        "with lock_cards(compose(['+stage=smoke']).machine, 1, 'sweep e', pathlib.Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, check=False, timeout=60)
    assert killed.returncode == -9
    with lock_cards(CPU, 1, "sweep f", tmp_path) as free:
        assert free == (0,)


def test_a_sweep_that_finds_no_free_card_names_owner_and_sweep_before_it_warms_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "LOCK_FOLDER", tmp_path / "locks")
    typed = ["+stage=smoke", "model=tiny", f"paths.root={tmp_path / 'runs'}"]
    other = "sweep smoke-abcdef-1 in /home/alice/runs"
    with lock_cards(CPU, 1, other, tmp_path / "locks"), pytest.raises(ConfigError) as refused:
        run(compose(typed))
    assert f"{other}, run by {getpass.getuser()} as process" in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_the_lock_folder_is_private_and_links_in_it_are_not_followed(tmp_path):
    folder, victim = tmp_path / "locks", tmp_path / "victim"
    victim.write_text("precious")
    with lock_cards(CPU, 1, "sweep a", folder):
        assert folder.stat().st_mode & 0o777 == 0o700
    (lock,) = folder.iterdir()
    assert lock.stat().st_mode & 0o777 == 0o600
    lock.unlink()
    lock.symlink_to(victim)
    with pytest.raises(ConfigError, match="cannot be used"), lock_cards(CPU, 1, "sweep b", folder):
        pass
    assert victim.read_text() == "precious"
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(ConfigError, match="it is a link"), lock_cards(CPU, 1, "sweep c", link):
        pass


def test_each_user_of_a_host_has_a_lock_folder():
    assert cards.LOCK_FOLDER.name.endswith((f"-{os.geteuid()}", "-locks"))
