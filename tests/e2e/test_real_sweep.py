"""Real trials through Ray on this machine, with the tiny model: Ctrl-C, a killed driver, and what is left of them."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from cost.ledger.ledger import Ledger
from rl.spec import StepReport
from sweeps.journal.event_codec import messages_in
from sweeps.journal.journal import load, sweep_events, sweep_ids
from tests.e2e.test_sweep_command import ROOT, environment, module

SMALL = ["+stage=smoke", "model=tiny", "stage.steps=6", "trainer.checkpoint_every_steps=2", "task.eval_questions=16"]
LONGER = ["search.lr_scaling=[hold]", "task.eval_questions=128"]
ONE, TWO = [*LONGER, "search.prompts_per_step=[32]"], [*LONGER, "search.prompts_per_step=[16,32]"]
"""Trials with steps that take long beside what it takes to read a line and to send a signal."""


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
        # Ctrl-C means something to it, also where these tests run in the background, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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


def test_a_smoke_that_is_interrupted_and_then_terminated_resumes_each_time_and_its_ledger_is_consistent(
    tmp_path, cache
):
    first = start(tmp_path, cache, *TWO)
    assert "machine cpu" in "".join(read_until(first, "step   3/6"))
    stop(first, signal.SIGINT)
    leases = json.loads(module(tmp_path, "cost", "leases", "list", "--json").stdout)
    assert all(lease["to"] is not None for lease in leases["leases"])

    second = start(tmp_path, cache, *TWO)
    before = "".join(read_until(second, "completed") + read_until(second, "step   1/6"))
    assert "resuming, 2 of 2 trials left" in before
    stop(second, signal.SIGTERM)

    output, _ = start(tmp_path, cache, *TWO).communicate(timeout=300)
    assert "resuming, 1 of 2 trials left" in output
    assert "Metric gate: open" in output
    status = json.loads(module(tmp_path, "sweeps", "status", "--json").stdout)
    assert [s["trials"] for s in status["sweeps"]] == [{"COMPLETED": 2}]
    assert [t["attempts"] for t in status["sweeps"][0]["details"]] == [2, 2]
    report = json.loads(module(tmp_path, "cost", "report", "--json").stdout)
    parts = [Decimal(row["cost"]) for row in report["trials"] + report["overheads"]]
    assert sum(parts) == Decimal(report["total"])
    assert module(tmp_path, "cost", "check").returncode == 0
    assert not (tmp_path / "mlruns").exists()


def stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Interrupt a driver: it prints the command that resumes, and none of its processes is left."""
    started = family(process)
    assert any("ray" in " ".join(p.cmdline()) for p in started if p.is_running())
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Resume:" in output
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


Moment = tuple[str, str]
"""Who is killed, `driver` or `trial`, and once which text was printed."""


def run_killed(folder: Path, cache: Path, moments: list[Moment], *more: str) -> str:
    """Run a sweep of one command, killed with SIGKILL at these moments, to its end; what the last driver printed.

    The same driver retries a killed trial; after a killed driver, the same command resumes.
    """
    waiting = list(moments)
    while True:
        process = start(folder, cache, *ONE, "retry.backoff_seconds=0", *more)
        try:
            output = to_its_death_or_end(process, folder, waiting)
        finally:
            process.kill()  # a driver on hold would stay for ever
        if output is not None:
            assert process.returncode == 0, output
            return output


def to_its_death_or_end(process: subprocess.Popen[str], folder: Path, waiting: list[Moment]) -> str | None:
    """What a driver printed that reached its end; None: it was killed at one of the moments, which is taken off."""
    while waiting:
        victim, text = waiting.pop(0)
        read_until(process, text)
        hold(process, text)
        at_work = writers(process, folder)
        if victim == "trial":
            (trial,) = [p for p in at_work if p.parent() not in at_work]
            trial.kill()
            process.send_signal(signal.SIGCONT)
            continue
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
        _, left = psutil.wait_procs(at_work, timeout=60)
        assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]
        return None
    return process.communicate(timeout=300)[0]


def hold(process: subprocess.Popen[str], moment: str) -> None:
    """Stop the driver with SIGSTOP: a trial waits for the reply to each message, so it cannot end meanwhile."""
    process.send_signal(signal.SIGSTOP)
    driver = psutil.Process(process.pid)
    ended_by = time.monotonic() + 60
    while (status := driver.status()) != psutil.STATUS_STOPPED:
        assert status != psutil.STATUS_ZOMBIE, f"the driver had ended before it was stopped at {moment!r}"
        assert time.monotonic() < ended_by, f"the driver does not stop: {status}"
        time.sleep(0.01)


def writers(process: subprocess.Popen[str], folder: Path) -> list[psutil.Process]:
    """The process of the attempt at work and its children: they write the attempt's log.

    Not known by its name, which is one while Ray has it do something, and another while it waits to be asked.
    """
    logs = set(map(str, folder.resolve().glob("runs/*/ray/*.log")))
    return [p for p in family(process) if logs & {file.path for file in p.open_files()}]


def outcomes(folder: Path) -> list[str | None]:
    """How the attempts of the one trial ended."""
    with Ledger.open(folder / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        (sweep_id,) = sweep_ids(ledger)
        (trial,) = load(ledger, sweep_id).trials.values()
    return [attempt.outcome for attempt in trial.attempts]


def assert_nothing_lost_or_counted_twice(folder: Path, trials: int) -> None:
    status = json.loads(module(folder, "sweeps", "status", "--json").stdout)
    assert [s["trials"] for s in status["sweeps"]] == [{"COMPLETED": trials}]
    new: Counter[tuple[str, int]] = Counter()
    with Ledger.open(folder / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        for event in sweep_events(ledger, status["sweeps"][0]["sweep"]):
            for recorded in messages_in(event):
                if isinstance(step := recorded.message, StepReport):
                    new[recorded.trial_id, step.step] += not step.replay
        usages = sorted(ledger.usages.find(), key=lambda u: u.from_ns)
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


# Three starts of Ray and of a trainer: two and a half minutes. In `make test`, tests/e2e/test_killed_sweep.py and
# tests/chaos kill simulated sweeps.
@pytest.mark.slow
def test_a_sweep_killed_with_nine_at_three_moments_loses_no_trial_and_counts_no_step_twice(tmp_path, cache):
    moments = [("driver", "Sweep smoke"), ("trial", "started: device"), ("driver", "checkpoint at step 4")]
    run_killed(tmp_path, cache, moments)
    assert_nothing_lost_or_counted_twice(tmp_path, 1)
    assert outcomes(tmp_path) == ["crashed", "lost", "completed"]


@pytest.mark.slow  # a start of Ray and of a trainer after each: a quarter of an hour in all
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_a_sweep_killed_with_nine_at_thirty_moments(tmp_path, cache, seed: int):
    draw = random.Random(seed)
    texts = [
        "Sweep smoke",
        "started: device",
        "step   1/6",
        "step   3/6",
        "checkpoint at step 4",
        "step   5/6",
        "step   6/6",
        "completed",
    ]
    moments = []
    for text in sorted(draw.sample(texts, 3), key=texts.index):
        victims = ["driver", "trial"] if text in ("started: device", "step   1/6", "step   3/6") else ["driver"]
        moments.append((draw.choice(victims), text))
    run_killed(tmp_path, cache, moments, "retry.crashes=3")
    assert outcomes(tmp_path).count("crashed") == sum(victim == "trial" for victim, _ in moments)
    assert_nothing_lost_or_counted_twice(tmp_path, 1)
