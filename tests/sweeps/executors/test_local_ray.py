"""A Ray of our own that does not come up the first time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sweeps.executors import cluster


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
    if failures < cluster.START_TRIES:
        cluster.start_local([0, 1], "cpu")
    else:
        with pytest.raises(Exception, match="timed out during startup"):
            cluster.start_local([0, 1], "cpu")
    assert asked == [{"card": 2}] * min(failures + 1, cluster.START_TRIES)
    assert [part.wait(timeout=60) for part in parts] == [-9] * failures
