"""A Ray of our own: a start that fails, and the token that only this user can read."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.executors import cluster
from sweeps.executors.ray_access import make_token_private


@pytest.mark.parametrize("failures", [1, cluster.START_TRIES])
def test_a_ray_that_does_not_start_is_ended_and_started_again_a_few_times(monkeypatch, failures: int):
    parts: list[subprocess.Popen[bytes]] = []
    asked = []

    def init(address: str, **settings) -> None:
        asked.append(settings["resources"])
        if len(asked) <= failures:
            parts.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(cluster, "_init", init)
    monkeypatch.setattr(cluster, "make_token_private", lambda: None)
    if failures < cluster.START_TRIES:
        cluster.start_local([0, 1], "cpu")
    else:
        with pytest.raises(Exception, match="timed out during startup"):
            cluster.start_local([0, 1], "cpu")
    assert asked == [{"card": 2}] * min(failures + 1, cluster.START_TRIES)
    assert [part.wait(timeout=60) for part in parts] == [-9] * failures


@pytest.fixture
def no_token(monkeypatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


def modes(folder: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "auth_token")]


def test_a_new_token_is_readable_by_this_user_only(tmp_path: Path, no_token: None):
    make_token_private(tmp_path / "ray")
    assert modes(tmp_path / "ray") == [0o700, 0o600]
    assert len((tmp_path / "ray/auth_token").read_text()) == 64


def test_an_existing_token_is_kept_and_restricted(tmp_path: Path, no_token: None):
    (tmp_path / "auth_token").write_text("mine")
    (tmp_path / "auth_token").chmod(0o644)
    make_token_private(tmp_path)
    assert modes(tmp_path) == [0o700, 0o600]
    assert (tmp_path / "auth_token").read_text() == "mine"


def test_a_token_that_the_environment_names_is_used_instead(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of a cluster")
    make_token_private(tmp_path / "ray")
    assert not (tmp_path / "ray").exists()


def test_a_home_folder_that_cannot_be_written_is_left_to_ray(tmp_path: Path, no_token: None):
    (tmp_path / "file").touch()
    make_token_private(tmp_path / "file/ray")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
