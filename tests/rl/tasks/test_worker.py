"""The reward worker: its protocol over pipes, and the scoring function that it runs.

Deadlines, deaths and restarts are tested in test_rewards.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rl.tasks.worker import make_scorer

SETUP = {"scorer": "number", "user_scorer": None, "format_pattern": "", "timeout_seconds": 60.0}


def replies(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """The replies of a real worker process to `requests`, the first of which is the setup."""
    done = subprocess.run(
        [sys.executable, "-m", "rl.tasks.worker"],
        input="".join(json.dumps(request) + "\n" for request in requests),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_worker_reports_ready_then_replies_to_each_request_and_ends_with_its_input() -> None:
    requests = [{"completion": "it is 4", "answer": "4"}, {"completion": "5", "answer": "4"}]
    assert replies(SETUP, *requests) == [{"ready": True}, {"raw": {"correct": 1.0}}, {"raw": {"correct": 0.0}}]


def test_worker_that_cannot_import_the_scorer_reports_it_and_ends() -> None:
    (reply,) = replies({**SETUP, "user_scorer": "no_such_module:f"})
    assert reply == {"failed": "ModuleNotFoundError: No module named 'no_such_module'"}


def test_error_in_user_code_is_a_reply_and_the_worker_continues(user_module: Callable[[str], str]) -> None:
    name = user_module("import sys\ndef score(c, a):\n    sys.exit('stop') if c == 'bad' else None\n    return 1\n")
    setup = {**SETUP, "user_scorer": f"{name}:score"}
    bad, good = ({"completion": c, "answer": ""} for c in ("bad", "good"))
    assert replies(setup, bad, good) == [{"ready": True}, {"error": "SystemExit: stop"}, {"raw": {"correct": 1.0}}]


def test_output_of_user_code_is_not_mixed_with_replies(user_module: Callable[[str], str]) -> None:
    name = user_module("print('at import')\ndef score(c, a):\n    print('noise', flush=True)\n    return 1\n")
    setup = {**SETUP, "user_scorer": f"{name}:score"}
    assert replies(setup, {"completion": "", "answer": ""}) == [{"ready": True}, {"raw": {"correct": 1.0}}]


def test_scorer_returns_correctness_and_format() -> None:
    score = make_scorer("exact", None, r"^\d+$")
    assert score("42", "42") == {"correct": 1.0, "format": 1.0}
    assert score("it is 42", "42") == {"correct": 0.0, "format": 0.0}


@pytest.mark.parametrize("scorer", ["number", "exact", "math_verify"])
def test_answer_is_looked_for_after_the_thinking_and_not_in_thinking_that_was_cut(scorer: str) -> None:
    score = make_scorer(scorer, None, "")
    assert score("<think>maybe 11</think>\n12", "12") == {"correct": 1.0}
    assert score("maybe 11 #### 11</think>12", "12") == {"correct": 1.0}  # the template opened the thinking
    assert score("<think>12", "12") == {"correct": 0.0}
    assert score("<think>a</think>12<think>12", "12") == {"correct": 0.0}
    assert score("<think>12</think>", "12") == {"correct": 0.0}


def test_user_scorer_gets_the_thinking_too(user_module: Callable[[str], str]) -> None:
    name = user_module("def score(c, a):\n    return '<think>' in c\n")
    assert make_scorer("number", f"{name}:score", "")("<think>12", "12") == {"correct": 1.0}


def test_scorer_without_pattern_has_no_format_reward() -> None:
    assert make_scorer("number", None, "")("it is 42", "42") == {"correct": 1.0}


def test_user_scorer_may_be_nested_and_return_several_rewards(user_module: Callable[[str], str]) -> None:
    name = user_module(
        "class A:\n    @staticmethod\n    def f(c, a):\n        return {'correct': c == a, 'short': 0.5}\n"
    )
    assert make_scorer("number", f"{name}:A.f", "")("x", "x") == {"correct": 1.0, "short": 0.5}


@pytest.mark.parametrize("value", ["2", "-0.1", "float('nan')", "float('inf')"])
def test_raw_reward_outside_of_zero_to_one_is_an_error(user_module: Callable[[str], str], value: str) -> None:
    name = user_module(f"def score(c, a):\n    return {value}\n")
    with pytest.raises(ValueError, match="a raw reward is a number from 0 to 1"):
        make_scorer("number", f"{name}:score", "")("x", "x")
