"""Folders that cannot be written are one message that names the key, before a lease opens."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.driver.driver import run
from sweeps.driver.preconditions import check_can_run
from sweeps.planning.plan import make_plan
from sweeps.report.console import make_console


@pytest.fixture(autouse=True)
def _own_locks(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setattr("sweeps.machines.cards.LOCK_FOLDER", tmp_path_factory.mktemp("locks") / "cards")


@pytest.mark.parametrize("dry_run", ["true", "false"])
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_cache_that_cannot_be_written_is_refused_in_a_dry_run_too(tmp_path: Path, below: str, dry_run: str) -> None:
    cache, root = tmp_path / "cache", tmp_path / "runs"
    cache.touch()
    overrides = [f"paths.root={root}", f"paths.cache={cache}{below}", "model=tiny", f"dry_run={dry_run}"]
    with pytest.raises(ConfigError, match=rf"paths\.cache={cache}{below} cannot be written") as refused:
        run(compose(["+stage=smoke", *overrides]))
    assert f"{cache} is not a folder" in str(refused.value)
    assert "choose another folder with paths.cache=DIR" in str(refused.value)
    assert not root.exists()


def test_a_read_only_file_system_is_refused_in_a_dry_run(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=r"paths\.cache=.*is read-only for this user"):
        run(compose(["+stage=smoke", "model=tiny", f"paths.root={tmp_path / 'runs'}", "dry_run=true"]))


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_model_that_cannot_be_written_is_one_message(tmp_path: Path, monkeypatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "cache/tiny/weights"))

    monkeypatch.setattr("rl.models.tiny.make", refuse)
    cfg = compose(["+stage=smoke", "model=tiny", f"paths.root={tmp_path / 'runs'}"])
    with pytest.raises(ConfigError, match=r"paths\.cache=.* cannot be written") as refused:
        check_can_run(cfg, make_plan(cfg), make_console())
    assert f"{os.strerror(number)} at {tmp_path / 'cache/tiny/weights'}" in str(refused.value)
