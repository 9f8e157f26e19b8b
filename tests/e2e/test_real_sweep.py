"""Real trials through Ray on this machine, with the tiny model: Ctrl-C, a killed driver, and what is left of them."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from cost.ledger import Ledger
from rl.spec import StepReport
from sweeps.journal import sweep_events
from sweeps.words import words_in
from tests.e2e.test_sweep_command import ROOT, environment, module

SMALL = ["+stage=smoke", "model=tiny", "stage.steps=6", "trainer.checkpoint_every_steps=2", "task.eval_questions=16"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def start(folder: Path, cache: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", str(ROOT / "sweep.py"), *SMALL, f"paths.cache={cache}", *more],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Lines up to and with the first that contains `text`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"ended without {text!r}:\n{''.join(lines)}")


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def test_a_whole_smoke_ctrl_c_in_the_middle_and_the_same_command_again(tmp_path, cache):
    first = start(tmp_path, cache)
    before = "".join(read_until(first, "step   3/6"))
    assert "machine cpu" in before
    started = family(first)
    assert any("ray" in " ".join(p.cmdline()) for p in started if p.is_running())
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=120)
    assert first.returncode == 130, told
    assert "Resume:" in told
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    leases = json.loads(module(tmp_path, "cost", "leases", "list", "--json").stdout)
    assert all(lease["to"] is not None for lease in leases["leases"])

    second = start(tmp_path, cache)
    told, _ = second.communicate(timeout=300)
    assert second.returncode == 0, told
    assert "going on, 3 of 3 trials left" in told
    assert "Metric gate: open" in told
    status = json.loads(module(tmp_path, "sweeps", "status", "--json").stdout)
    assert [s["trials"] for s in status["sweeps"]] == [{"COMPLETED": 3}]
    attempts = [t["attempts"] for t in status["sweeps"][0]["details"]]
    assert attempts == [2, 1, 1]
    report = json.loads(module(tmp_path, "cost", "report", "--json").stdout)
    parts = [Decimal(row["cost"]) for row in report["trials"] + report["overheads"]]
    assert sum(parts) == Decimal(report["total"])
    assert module(tmp_path, "cost", "check").returncode == 0
    assert not (tmp_path / "mlruns").exists()


Moment = tuple[str, str]
"""Who is killed, `driver` or `trial`, and once which text was printed."""


def run_killed(folder: Path, cache: Path, moments: list[Moment], *more: str) -> str:
    """Run a sweep of one command, killed with SIGKILL at these moments, to its end; what the last driver printed.

    A killed trial is tried again by the same driver; after a killed driver the same command goes on.
    """
    waiting = list(moments)
    while True:
        process = start(folder, cache, "search.prompts_per_step=[2]", "retry.backoff_seconds=0", *more)
        alive = True
        while waiting and alive:
            victim, text = waiting.pop(0)
            read_until(process, text)
            trials = [p for p in family(process) if p.is_running() and "Trainable" in "".join(p.cmdline()[:1])]
            if victim == "trial":
                for trial in trials:  # none where it was faster
                    trial.kill()
                continue
            process.kill()
            process.wait(timeout=30)
            _, left = psutil.wait_procs(trials, timeout=60)
            assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]
            alive = False
        if alive:
            told, _ = process.communicate(timeout=300)
            assert process.returncode == 0, told
            return told


def assert_nothing_lost_or_counted_twice(folder: Path, trials: int) -> None:
    status = json.loads(module(folder, "sweeps", "status", "--json").stdout)
    assert [s["trials"] for s in status["sweeps"]] == [{"COMPLETED": trials}]
    new: Counter[tuple[str, int]] = Counter()
    with Ledger.open(folder / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        for event in sweep_events(ledger, status["sweeps"][0]["sweep"]):
            for said in words_in(event):
                if isinstance(step := said.message, StepReport):
                    new[said.trial_id, step.step] += not step.replay
        usages = sorted(ledger.usages(), key=lambda u: u.from_ns)
    assert sorted(Counter(trial_id for trial_id, _ in new).values()) == [6] * trials
    assert set(new.values()) == {1}
    for before, after in itertools.pairwise(usages):
        assert before.to_ns is not None
        assert before.to_ns <= after.from_ns, "one card holds one attempt at a time"
    check = module(folder, "cost", "check")
    assert check.returncode == 0, check.stdout
    report = json.loads(module(folder, "cost", "report", "--json").stdout)
    parts = [Decimal(row["cost"]) for row in report["trials"] + report["overheads"]]
    assert sum(parts) == Decimal(report["total"])


def test_a_sweep_killed_with_nine_at_four_moments_loses_no_trial_and_counts_no_step_twice(tmp_path, cache):
    moments = [
        ("driver", "Sweep smoke"),
        ("trial", "started on"),  # the evaluation is still before it: enough time on a busy machine
        ("driver", "checkpoint at step 4"),
        ("driver", "6/6"),
    ]
    run_killed(tmp_path, cache, moments)
    assert_nothing_lost_or_counted_twice(tmp_path, 1)
    story = module(tmp_path, "sweeps", "show", "last").stdout
    assert "lost" in story
    assert "crashed" in story


@pytest.mark.slow  # a start of Ray and of a trainer after each: a quarter of an hour in all
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_a_sweep_killed_with_nine_at_thirty_moments(tmp_path, cache, seed: int):
    draw = random.Random(seed)
    texts = ["Sweep smoke", "started on", "step   1/6", "step   3/6", "checkpoint at step 4", "step   5/6", "completed"]
    moments = []
    for text in sorted(draw.sample(texts, 3), key=texts.index):
        victims = ["driver", "trial"] if text in ("started on", "step   1/6", "step   3/6") else ["driver"]
        moments.append((draw.choice(victims), text))
    run_killed(tmp_path, cache, moments, "retry.crashes=3")
    assert_nothing_lost_or_counted_twice(tmp_path, 1)


def test_a_sweep_that_is_told_to_terminate_ends_as_with_ctrl_c(tmp_path, cache):
    process = start(tmp_path, cache, "search.prompts_per_step=[2]")
    read_until(process, "step   1/6")
    started = family(process)
    process.terminate()
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "Resume:" in told
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert module(tmp_path, "cost", "check").returncode == 0
