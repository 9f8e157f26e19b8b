"""A simulated sweep that is killed repeatedly, and resumed each time by the same command until it is done.

Every driver runs in a process of its own, forked from a worker that has imported everything: `sweeps.driver.run` from
its first line, on its own fake clock, with the real ledger, journal, backup and checkpoints in a folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sweeps.config.types import SweepConfig
from tests.chaos.points import Points, Witness, install

STARTUP_S, STEP_S, COMPLETION_S, EVALUATION_S, CHECKPOINT_S = 23, 4, 0.25, 11, 3
"""Durations of the simulated trainer's work, in seconds; without noise, so that a test can sum them."""

PRUNED_EARLY = ("search.pruning_min_trials=2", "search.pruning_factor=2", "trainer.simulated.steps_to_half=4")
PRUNED_EARLY = (*PRUNED_EARLY, "task.eval_questions=32")
LR = "search.space.algorithm.lr={low:1e-6,high:1e-3,log:true}"

STUCK_S = 120
"""A driver that takes longer than this, in real time, hangs."""


@dataclass(frozen=True)
class Plan:
    """A sweep that is small enough to run thousands of times."""

    name: str
    overrides: tuple[str, ...]
    steps: int = 6
    checkpoint_every: int = 2
    evaluate_every: int = 0
    in_order: bool = False
    """Its trials run one after the other, so interruptions do not change how each trial ends."""
    times_faster: int = 1
    """Divides the durations above: many messages per second are written as one event."""

    def typed(self, root: Path) -> list[str]:
        times = {
            "startup_seconds": STARTUP_S,
            "seconds_per_step": STEP_S,
            "seconds_per_completion": COMPLETION_S,
            "seconds_per_evaluation": EVALUATION_S,
            "seconds_per_checkpoint": CHECKPOINT_S,
            "noise_frac": 0,
        }
        return [
            *("+stage=smoke", "trainer=simulated", f"paths.root={root}", "task.eval_questions=4"),
            *(f"stage.steps={self.steps}", f"trainer.checkpoint_every_steps={self.checkpoint_every}"),
            *("search.lr_scaling=[hold]", "search.group_size=[2]"),
            *(f"trainer.simulated.{key}={value / self.times_faster}" for key, value in times.items()),
            f"evaluation.every_steps={self.evaluate_every}",
            *self.overrides,
        ]

    @property
    def evaluations(self) -> tuple[int, ...]:
        """Steps after which a trial that is not pruned is evaluated."""
        on_the_way = range(self.evaluate_every, self.steps, self.evaluate_every) if self.evaluate_every else ()
        return (0, *on_the_way, self.steps)


KILLED_ANYWHERE = (
    Plan("one card", ("search.prompts_per_step=[2,4]",)),
    Plan(
        "cards side by side",
        (
            *("machine=h100x8", "search.prompts_per_step=[2,4,6]", "search.max_concurrent=2"),
            "budget.sweep_limit=500 USD",
        ),
    ),
    Plan("two checkpoints", ("search.prompts_per_step=[2]", "trainer.keep_checkpoints=2"), 9, 1),
    Plan("many messages a second", ("search.prompts_per_step=[2,4]",), 12, 3, times_faster=40),
    Plan("preempted", ("machine=h100x8", "search.prompts_per_step=[2,4]", "trainer.simulated.preempt_at_step=4")),
    Plan("crashed", ("search.prompts_per_step=[2,4]", "trainer.simulated.crash_at_step=3")),
    Plan("hung", ("search.prompts_per_step=[2,4]", "trainer.simulated.hang_at_step=5")),
    Plan(
        "proposed", ("search=optuna", "search.trials=4", "search.startup_trials=2", "search.prompts_per_step=[2]", LR)
    ),
    Plan(
        "pruned",
        ("search=random", "search.trials=5", "search.prompts_per_step=[2]", "search.pruning=asha", *PRUNED_EARLY, LR),
        *(8, 4, 2, True),
    ),
    Plan(
        "pruned side by side",
        (
            *("machine=h100x8", "search.max_concurrent=3", "search=random", "search.trials=8", "search.seeds=[0,1]"),
            *("search.prompts_per_step=[2,4]", "search.pruning=median", *PRUNED_EARLY, LR),
        ),
        *(8, 3, 2),
    ),
    Plan(
        "proposed and pruned",
        (
            *("search=optuna", "search.trials=6", "search.startup_trials=3", "search.prompts_per_step=[2]"),
            *("search.sampler_seed=1", "search.pruning=asha", *PRUNED_EARLY, LR),
        ),
        *(8, 4, 2, True),
    ),
    Plan("learning rate moved", ("search.prompts_per_step=[2]", "search.lr_scaling=[clip_frac]"), 13, 5),
)
"""Plans whose drivers are killed at points drawn at random."""

KILLED_AT_A_MOMENT = (
    Plan("six trials", ("search.prompts_per_step=[2]", "search.trials=6"), 2),
    Plan(
        "two at a time", ("machine=h100x8", "search.prompts_per_step=[2]", "search.trials=6", "search.max_concurrent=2")
    ),
)

PLANS = {plan.name: plan for plan in (*KILLED_ANYWHERE, *KILLED_AT_A_MOMENT)}


@dataclass(frozen=True)
class Case:
    """One sweep, and where it is killed: a function of `seed`."""

    plan: str
    seed: int
    kills: int
    """At most this many: a driver may reach the end of the sweep before its kill point."""
    mlflow: bool = False


@dataclass
class Outcome:
    """Where the drivers of a case were killed, and everything that is wrong afterwards."""

    case: Case
    killed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    output: str = ""
    """What the last driver printed."""

    def __str__(self) -> str:
        lines = [f"plan {self.case.plan!r}, seed {self.case.seed}, killed {len(self.killed)} times:"]
        lines += [f"  {point}" for point in self.killed] + [f"  wrong: {what}" for what in self.wrong]
        return "\n".join([*lines, self.output[-2000:]])


def kill_and_resume(case: Case, folder: Path) -> Outcome:
    """Run the case in `folder`, and check the result."""
    from tests.chaos import ledger_checks

    warm()
    outcome, rng = Outcome(case), random.Random(f"{case.plan}/{case.seed}")
    root = folder / "runs"
    cfg = configuration(case.plan, root)
    log = folder / "witness.jsonl"
    reference = uninterrupted(case.plan)
    for run in range(case.kills + 1):
        # Half of the kills early: a driver that resumes a sweep passes fewer points.
        most = reference.points if rng.random() < 0.5 else reference.points // 4
        kill_at = 0 if run == case.kills else rng.randint(1, most)
        status = in_a_process(lambda n=run, at=kill_at: drive(cfg, log, n, at, case.mlflow), folder / f"run-{run}.txt")
        if status == -signal.SIGKILL:
            end = witnessed(log)[-1]
            outcome.killed.append(f"{end.get('kind')} {end.get('where')} (point {kill_at} of driver {run})")
            if not ledger_checks.closed(root):
                continue
            break  # the same command would start another sweep
        outcome.output = (folder / f"run-{run}.txt").read_text(errors="replace")
        if status != 0:
            outcome.wrong.append(f"driver {run} ended with {status}")
        break
    outcome.wrong += ledger_checks.problems(PLANS[case.plan], cfg, witnessed(log))
    if PLANS[case.plan].in_order and ledger_checks.ends(root) != reference.ends:
        outcome.wrong.append(
            f"without interruption its trials end as {reference.ends}, and now as {ledger_checks.ends(root)}"
        )
    if case.mlflow:
        outcome.wrong += ledger_checks.mlflow_problems(cfg)
    return outcome


def drive(cfg: SweepConfig, log: Path, run: int, kill_at: int, mlflow: bool) -> int:
    """One driver, from start to end or to its death."""
    from sweeps.driver import driver
    from sweeps.report import mlflow_tracker

    root = Path(cfg.paths.root)
    witness = Witness(log, run)
    points = Points(witness, kill_at)
    if not mlflow:
        mlflow_tracker.MlflowSync = _NoSync
    install(points, witness, root)
    code = driver.run(cfg, ["+stage=smoke"])
    witness.write("ended", code=code, points=points.count)
    return code


class _NoSync:
    """MLflow takes seconds to open: most cases leave it out."""

    def __init__(self, *_: Any) -> None:
        self.experiment_id = "0"

    def deliver(self, _ledger: Any) -> None:
        pass


def in_a_process(body: Callable[[], int], output: Path) -> int:
    """The exit code of a forked process that does `body`; the negative number of the signal that killed it."""
    _, status = os.waitpid(forked(body, output), 0)
    return os.waitstatus_to_exitcode(status)


def forked(body: Callable[[], int], output: Path) -> int:
    """The process id of a copy of this process that does `body`, prints into `output`, and ends with its result."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with output.open("wb", buffering=0) as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            sys.stdout = os.fdopen(1, "w", buffering=1)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            signal.alarm(STUCK_S)
            code = body()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def witnessed(log: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@cache
def warm() -> None:
    """Import everything that a driver imports, so that forked drivers start fast."""
    import contextlib
    import io
    import tempfile

    from sweeps.driver import driver
    from sweeps.report import mlflow_tracker

    sync, mlflow_tracker.MlflowSync = mlflow_tracker.MlflowSync, _NoSync
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        driver.run(configuration("one card", Path(folder)))
    mlflow_tracker.MlflowSync = sync


@cache
def _composed(plan: str) -> SweepConfig:
    from sweeps.config.build import compose

    return compose(PLANS[plan].typed(Path("runs")))


def configuration(plan: str, root: Path, resume: str = "auto") -> SweepConfig:
    """The plan's configuration with its folders in `root`; composed once per process."""
    cfg = _composed(plan)
    paths = dataclasses.replace(cfg.paths, root=str(root), cache=str(root / "cache"))
    return dataclasses.replace(cfg, paths=paths, resume=resume)


@dataclass(frozen=True)
class Uninterrupted:
    """The result of a sweep that is not killed."""

    points: int
    """How many points its driver passes."""
    ends: Mapping[str, tuple[str, int]]
    """By trial, its state and its last step."""


@cache
def uninterrupted(plan: str) -> Uninterrupted:
    import tempfile

    from tests.chaos import ledger_checks

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "witness.jsonl"
        cfg = configuration(plan, Path(folder) / "runs")
        in_a_process(lambda: drive(cfg, log, 0, 0, mlflow=False), Path(folder) / "output.txt")
        return Uninterrupted(witnessed(log)[-1]["points"], ledger_checks.ends(Path(folder) / "runs"))


def summary(outcomes: Sequence[Outcome]) -> str:
    """Kill points by kind, for a person."""
    kinds: dict[str, int] = {}
    for outcome in outcomes:
        for killed in outcome.killed:
            kind = killed.split(" (")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="killed-"))
    print(kill_and_resume(Case(sys.argv[1], int(sys.argv[2]), 6, mlflow="mlflow" in sys.argv), place))
    print(f"The sweep's files are in {place}")
