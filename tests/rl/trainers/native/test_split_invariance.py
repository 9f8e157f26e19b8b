"""The result of training does not depend on ranks, micro-batches or packing: the real learner on gloo processes."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rl.trainers.native import small_learner

ROOT = Path(__file__).parents[4]


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal to 1e-10 relative, field by field; for the parameters, the norm of the difference counts."""
    if isinstance(b, dict):
        assert a.keys() == b.keys(), where
        for key in b:
            assert_same(a[key], b[key], f"{where}.{key}")
    elif where == ".parameters":
        assert math.dist(a, b) <= 1e-10 * math.hypot(*b)
    elif isinstance(b, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{i}]")
    elif isinstance(b, float):
        assert a == pytest.approx(b, rel=1e-10, abs=1e-12, nan_ok=True), where
    else:
        assert a == b, where


@pytest.fixture(scope="module")
def single() -> dict[str, Any]:
    """The results of one process, by case."""
    return {name: json.loads(json.dumps(small_learner.learn(case))) for name, case in small_learner.CASES.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Path:
    """The folder with the results of every rank of process groups of 1, 2, 3 and 4 ranks."""
    folder = tmp_path_factory.mktemp("gloo")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", small_learner.__name__, str(folder)]
    launcher = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = launcher.communicate(timeout=400)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        raise
    assert launcher.returncode == 0, output
    return folder


@pytest.mark.parametrize("name", small_learner.CASES)
@pytest.mark.parametrize("size", range(1, small_learner.MAX_RANKS + 1))
def test_any_number_of_gloo_ranks_gives_the_result_of_one_process(name, size, ranks, single):
    for rank in range(size):
        assert_same(json.loads((ranks / f"{size}-{name}-{rank}.json").read_text()), single[name])


@pytest.mark.parametrize("name", small_learner.CASES)
@pytest.mark.parametrize("tokens", [1, 25, 10_000])
@pytest.mark.parametrize("packing", [False, True])
def test_any_micro_batch_size_padded_or_packed_gives_the_same_result(name, tokens, packing, single):
    case = dataclasses.replace(small_learner.CASES[name], micro_batch_tokens=tokens, packing=packing)
    assert_same(small_learner.learn(case), single[name])


def test_cases_train_and_give_different_results(single):
    finals = [tuple(result["parameters"]) for result in single.values()]
    assert len(set(finals)) == len(finals)
    fresh = small_learner.make_policy()
    before = [x for _, p in fresh.parameters() for x in p.detach().flatten().tolist()]
    assert all(math.dist(final, before) > 1e-3 for final in finals)
