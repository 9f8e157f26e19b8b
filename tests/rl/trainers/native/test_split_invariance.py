"""What is learnt is the same whatever the ranks, micro-batches and packing: the real learner, real gloo processes."""

import dataclasses
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("tiny_learning.py")
_spec = importlib.util.spec_from_file_location("tiny_learning", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
tiny = importlib.util.module_from_spec(_spec)
sys.modules["tiny_learning"] = tiny
_spec.loader.exec_module(tiny)


def assert_same(a: Any, b: Any, where: str = "") -> None:
    """Equal to 1e-10 relative, field by field; the parameters by the norm of their difference."""
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
    """What one process learns, by case."""
    return {name: json.loads(json.dumps(tiny.learn(case))) for name, case in tiny.CASES.items()}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Path:
    """The folder to which four processes wrote what they saw, as groups of 1, 2, 3 and 4."""
    folder = tmp_path_factory.mktemp("gloo")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(SCRIPT), str(folder)]
    launcher = subprocess.Popen(
        command,
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


@pytest.mark.parametrize("name", tiny.CASES)
@pytest.mark.parametrize("size", range(1, tiny.WORLD + 1))
def test_any_number_of_gloo_ranks_learns_and_reports_what_one_process_does(name, size, ranks, single):
    for rank in range(size):
        assert_same(json.loads((ranks / f"{size}-{name}-{rank}.json").read_text()), single[name])


@pytest.mark.parametrize("name", tiny.CASES)
@pytest.mark.parametrize("tokens", [1, 25, 10_000])
@pytest.mark.parametrize("packing", [False, True])
def test_any_micro_batch_size_padded_or_packed_learns_and_reports_the_same(name, tokens, packing, single):
    case = dataclasses.replace(tiny.CASES[name], micro_batch_tokens=tokens, packing=packing)
    assert_same(tiny.learn(case), single[name])


def test_the_cases_differ_so_that_being_equal_means_something(single):
    finals = [tuple(result["parameters"]) for result in single.values()]
    assert len(set(finals)) == len(finals)
    fresh = tiny.make_policy()
    before = [x for _, p in fresh.parameters() for x in p.detach().flatten().tolist()]
    assert all(math.dist(final, before) > 1e-3 for final in finals)
