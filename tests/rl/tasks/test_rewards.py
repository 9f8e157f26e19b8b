"""Raw rewards, their weighted sum and accuracy; scorers that raise, hang or die; scorers that are refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl.spec import ConfigurationError, TaskSpec
from rl.tasks.rewards import Scorer

USER = """
import os, re, subprocess, sys, time

def score(completion, answer):
    print("noise on stdout", flush=True)
    match completion:
        case "throw": raise KeyError("lost")
        case "quit": sys.exit(0)
        case "die": os._exit(3)
        case "segfault": os.kill(os.getpid(), 11)
        case "sleep": time.sleep(600)
        case "regex": re.match(r"(a+)+$", "a" * 60 + "b")
        case "child": subprocess.Popen(["sleep", "613.25"]); time.sleep(600)
        case "nan": return float("nan")
        case "two": return 2
        case "text": return "good"
        case "none": return None
        case "half": return 0.5
        case "read": return float(sys.stdin.read() == "")
    return completion == answer

def several(completion, answer):
    return {"correct": completion == answer, "short": 1.0 / (1 + len(completion))}

def pid(completion, answer):
    return {"correct": 1.0, "pid": os.getpid() / 2**32}
"""


def task(**settings: Any) -> TaskSpec:
    return TaskSpec("module", "x", **{"reward_timeout_seconds": 60.0, **settings})


def workers() -> set[int]:
    """Process ids of the reward workers of this process."""
    return {p.pid for p in psutil.Process().children(recursive=True) if "rl.tasks.worker" in " ".join(p.cmdline())}


# -- scores -----------------------------------------------------------------------------------------------------------


def test_accuracy_is_raw_correctness_and_reward_is_the_weighted_sum() -> None:
    spec = task(format_pattern=r"\d$", reward_weights={"correct": 2.0, "format": 0.25})
    with Scorer(spec) as scorer:
        scores = scorer.score(["it is 4", "4, I think", "5"], ["4", "4", "4"])
    assert scores.raw == {"correct": (1.0, 1.0, 0.0), "format": (1.0, 0.0, 1.0)}
    assert scores.acc == (1.0, 1.0, 0.0)
    assert scores.reward == (2.25, 2.0, 0.25)
    assert scores.errors == (None, None, None)


def test_weights_do_not_change_the_accuracy() -> None:
    with Scorer(task(reward_weights={"correct": 0.0})) as scorer:
        scores = scorer.score(["4"], ["4"])
    assert (scores.reward, scores.acc, scores.raw["correct"]) == ((0.0,), (1.0,), (1.0,))


def test_all_raw_rewards_of_a_user_scorer_are_returned_by_name(user_module: Callable[[str], str]) -> None:
    name = user_module(USER)
    with Scorer(task(reward_weights={"correct": 1.0, "short": -0.5}), f"{name}:several") as scorer:
        scores = scorer.score(["a", "bcd"], ["a", "a"])
    assert scores.raw == {"correct": (1.0, 0.0), "short": (0.5, 0.25)}
    assert scores.reward == (0.75, -0.125)


def test_partial_credit_counts_in_the_reward_only(user_module: Callable[[str], str]) -> None:
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        scores = scorer.score(["half"], ["x"])
    assert (scores.reward, scores.acc, scores.raw["correct"]) == ((0.5,), (0.0,), (0.5,))


def test_math_verify_runs_in_a_worker() -> None:
    with Scorer(task(scorer="math_verify")) as scorer:
        assert scorer.score(["\\boxed{1/2}", "\\boxed{1/3}"], ["0.5", "0.5"]).acc == (1.0, 0.0)
        assert len(workers()) == 1


def test_scores_are_in_the_order_of_the_completions_with_any_number_of_workers() -> None:
    completions = [str(i) for i in range(200)]
    with Scorer(task(format_pattern="^1", reward_workers=3)) as scorer:
        scores = scorer.score(completions, [str(i - i % 2) for i in range(200)])
        assert len(workers()) == 3
    assert scores.acc == tuple(float(i % 2 == 0) for i in range(200))
    assert scores.raw["format"] == tuple(float(c.startswith("1")) for c in completions)


def test_empty_batch_has_empty_scores() -> None:
    with Scorer(task(format_pattern="x")) as scorer:
        scores = scorer.score([], [])
    assert (scores.reward, scores.acc, scores.errors) == ((), (), ())


def test_any_text_reaches_the_scorer_unchanged(user_module: Callable[[str], str]) -> None:
    texts = ["", "\n", "a\nb", "\x00", "\ud800", "\U0001f600", '"}', "x" * 200_000]
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        assert scorer.score(texts, texts).acc == (1.0,) * len(texts)


# -- failing scorers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("throw", "KeyError: 'lost'"),
        ("quit", "SystemExit: 0"),
        ("nan", "'correct' is nan; a raw reward is a number from 0 to 1"),
        ("two", "'correct' is 2; a raw reward is a number from 0 to 1"),
        ("text", "could not convert string to float"),
        ("none", "TypeError"),
    ],
)
def test_completion_whose_scorer_raises_or_returns_no_valid_number_counts_as_wrong(
    user_module: Callable[[str], str], completion: str, reason: str
) -> None:
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        scores = scorer.score(["right", completion, "right"], ["right", "right", "right"])
    assert scores.acc == (1.0, 0.0, 1.0)
    assert scores.reward == (1.0, 0.0, 1.0)
    assert scores.errors[0] is None
    assert reason in str(scores.errors[1])
    assert scores.restarts == ()


def test_each_error_of_a_scorer_is_logged_once_with_the_completion(
    user_module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        scorer.score(["throw", "throw", "a"], ["a", "a", "a"])
        scorer.score(["throw", "two"], ["a", "a"])
    assert len(caplog.messages) == 2
    assert caplog.messages[0].endswith("counts as wrong: KeyError: 'lost'; the completion was 'throw'")


@pytest.mark.parametrize("completion", ["die", "segfault"])
def test_worker_that_dies_is_replaced_and_only_its_completion_fails(
    user_module: Callable[[str], str], completion: str
) -> None:
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        scores = scorer.score(["a", completion, "a"], ["a", "a", "a"])
        again = scorer.score(["a"], ["a"])
    assert scores.acc == (1.0, 0.0, 1.0)
    assert "the worker ended with " + {"die": "exit code 3", "segfault": "signal 11"}[completion] in str(scores.errors)
    assert [r.index for r in scores.restarts] == [0]
    assert (again.acc, again.restarts) == ((1.0,), ())


def test_worker_whose_exit_status_was_taken_elsewhere_is_replaced(user_module: Callable[[str], str]) -> None:
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        scorer.score(["a"], ["a"])
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        scores = scorer.score(["a"], ["a"])
    assert scores.acc == (1.0,)
    assert len(scores.restarts) == 1


@pytest.mark.parametrize("completion", ["sleep", "regex", "child"])
def test_scorer_that_exceeds_its_deadline_is_ended_with_its_children_and_counts_as_wrong(
    user_module: Callable[[str], str], completion: str
) -> None:
    before = set(psutil.Process().children(recursive=True))
    with Scorer(task(reward_timeout_seconds=2.0), f"{user_module(USER)}:score") as scorer:
        scores = scorer.score([completion, "a"], ["a", "a"])
        (new_worker,) = workers()
        assert psutil.Process(new_worker).children() == []
    assert scores.acc == (0.0, 1.0)
    assert scores.errors == ("no answer within 2 s", None)
    assert [r.reason for r in scores.restarts] == ["no answer within 2 s"]
    assert set(psutil.Process().children(recursive=True)) == before
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "613.25"]]


def test_format_pattern_with_exponential_time_is_ended_at_the_deadline() -> None:
    with Scorer(task(format_pattern=r"^(\w+\s?)+$", reward_timeout_seconds=2.0)) as scorer:
        scores = scorer.score(["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! 4", "b 4"], ["4", "4"])
    assert scores.acc == (0.0, 1.0)
    assert scores.errors == ("no answer within 2 s", None)


def test_worker_that_died_while_idle_is_replaced_without_a_wrong_score(user_module: Callable[[str], str]) -> None:
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        scorer.score(["a"], ["a"])
        (pid,) = workers()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        scores = scorer.score(["a", "a"], ["a", "a"])
    assert scores.acc == (1.0, 1.0)
    assert [r.reason for r in scores.restarts] == ["the worker ended with signal 9"]


def test_user_code_never_runs_in_this_process(user_module: Callable[[str], str]) -> None:
    name = user_module(USER)
    with Scorer(task(reward_weights={"correct": 1.0, "pid": 0.0}), f"{name}:pid") as scorer:
        (seen,) = scorer.score(["a"], ["a"]).raw["pid"]
        assert {round(seen * 2**32)} == workers()
    assert name not in sys.modules


def test_user_code_that_reads_standard_input_gets_nothing(user_module: Callable[[str], str]) -> None:
    with Scorer(task(), f"{user_module(USER)}:score") as scorer:
        assert scorer.score(["read", "a"], ["x", "a"]).acc == (1.0, 1.0)


def test_workers_are_ended_when_the_with_block_raises(user_module: Callable[[str], str]) -> None:
    def use(scorer: Scorer) -> None:
        with scorer:
            scorer.score(["a", "b"], ["a", "a"])
            assert len(workers()) == 2
            raise RuntimeError("elsewhere")

    scorer = Scorer(task(reward_workers=2), f"{user_module(USER)}:score")
    with pytest.raises(RuntimeError, match="elsewhere"):
        use(scorer)
    assert workers() == set()
    scorer.close()


SLOW_FIRST_CALL = """
import time

loaded = False

def score(completion, answer):
    global loaded
    if not loaded:
        time.sleep(1.5)
        loaded = True
    if completion == "sleep":
        time.sleep(600)
    return completion == answer
"""


def test_scorer_whose_first_call_is_slow_scores_every_completion(user_module: Callable[[str], str]) -> None:
    with Scorer(task(reward_timeout_seconds=0.75), f"{user_module(SLOW_FIRST_CALL)}:score") as scorer:
        first = scorer.score(["a", "sleep", "a"], ["a", "a", "a"])
        again = scorer.score(["a", "b"], ["a", "a"])
    assert first.errors == (None, "no answer within 0.75 s", None)  # the worker after "sleep" has a slow first call too
    assert first.acc == (1.0, 0.0, 1.0)
    assert (again.acc, again.errors, again.restarts) == ((1.0, 0.0), (None, None), ())


@pytest.mark.parametrize("code", ["import os\n    os._exit(3)", "raise KeyError('lost')"])
def test_scorer_that_fails_in_every_call_starts_and_fails_completion_by_completion(
    user_module: Callable[[str], str], code: str
) -> None:
    name = user_module(f"def score(completion, answer):\n    {code}")
    with Scorer(task(), f"{name}:score") as scorer:
        scores = scorer.score(["a", "b"], ["a", "a"])
    assert scores.acc == (0.0, 0.0)
    assert all(scores.errors)


def test_built_in_scorers_start_no_process() -> None:
    with Scorer(task()) as scorer:
        scorer.score(["4"], ["4"])
        assert workers() == set()


def test_busy_worker_ends_itself_after_its_parent_was_killed(user_module: Callable[[str], str], tmp_path: Path) -> None:
    name = user_module(USER)
    parent = subprocess.Popen(
        [sys.executable, "-c", _ORPHAN.format(name=name)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    worker.wait(timeout=60)  # the regular expression holds the GIL, so only a C thread can end the process


_ORPHAN = textwrap.dedent("""
    import psutil, threading
    from rl.spec import TaskSpec
    from rl.tasks.rewards import Scorer
    scorer = Scorer(TaskSpec("module", "x", reward_timeout_seconds=2.0), "{name}:score")
    scorer.score(["a"], ["a"])
    print(psutil.Process().children()[0].pid, flush=True)
    scorer.score(["regex"], ["a"])
""")


# -- invalid settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward_weights": {"format": 1.0}}, "has no weight for 'correct'"),
        (
            {"reward_weights": {"correct": 1.0, "corect": 1.0}},
            "there is no reward 'corect'; there are: correct, format",
        ),
        (
            {"format_pattern": "(", "reward_weights": {"correct": 1.0, "format": 0.1}},
            r"'\(' is not a valid regular expression",
        ),
        ({"format_pattern": "x", "reward_weights": {"correct": 1.0}}, "has no weight for 'format'"),
        ({"reward_timeout_seconds": 0.0}, "reward_timeout_seconds=0.0 should be above 0"),
        ({"reward_workers": 0}, "reward_workers=0 at least 1"),
    ],
)
def test_invalid_settings_are_refused_before_anything_runs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Scorer(task(**settings))


@pytest.mark.parametrize("weights", [{"correct": 1.0}, {"correct": 1.0, "short": 1.0, "long": 1.0}])
def test_rewards_without_weight_and_weights_without_reward_are_refused(
    user_module: Callable[[str], str], weights: dict[str, float]
) -> None:
    name = user_module(USER)
    with (
        Scorer(task(reward_weights=weights), f"{name}:several") as scorer,
        pytest.raises(ConfigurationError, match=r"returns the rewards correct, short, but task.reward_weights has"),
    ):
        scorer.score(["a"], ["a"])


@pytest.mark.parametrize(
    ("scorer_name", "reason"),
    [
        ("{name}:absent", "AttributeError"),
        ("no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_scorer_that_cannot_be_imported_is_refused_with_the_reason(
    user_module: Callable[[str], str], scorer_name: str, reason: str
) -> None:
    scorer = Scorer(task(), scorer_name.format(name=user_module(USER)))
    with scorer, pytest.raises(ConfigurationError, match=f"cannot start: {reason}"):
        scorer.score(["a"], ["a"])
    assert workers() == set()
