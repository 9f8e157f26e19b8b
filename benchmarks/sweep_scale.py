"""Scale of a sweep: many simulated trials on a fake clock, and the overhead per trial on top of Ray Tune.

    python benchmarks/sweep_scale.py --trials 10000
    python benchmarks/sweep_scale.py --trials 10000 --ray

The first part runs a sweep in this process, with the real ledger, the real journal and the simulated trainer. The
second part runs no-op trials through Ray Tune twice: plain, and driven by this program with the same actor settings.
The figures depend on the machine; the limits are for 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.records import Lease
from rl.spec import Event
from sweeps.config.build import canonical, compose
from sweeps.config.types import MachineConfig
from sweeps.driver.controller import SweepController
from sweeps.executors.in_process import InProcessExecutor
from sweeps.journal.events import DriverEnded, DriverStarted, SweepPlanned
from sweeps.journal.journal import Journal, TrialRecord, TrialState
from sweeps.journal.outcomes import DriverEnd
from sweeps.planning.plan import make_plan

ROOT = Path(__file__).resolve().parents[1]

LIMIT_SECONDS = 600.0
LIMIT_MB = 1500.0
LIMIT_GROWTH = 1.25
"""Memory at the end relative to memory half-way: a finished trial keeps little memory, and a step none."""
LIMIT_STATUS_SECONDS = 1.0
LIMIT_RAY_RATIO = 1.1
RESULTS_PER_TRIAL = 7
"""Of a no-op trial of this program: its creation, started, two evaluations, a step, a checkpoint, finished."""


@dataclass(frozen=True)
class Figure:
    """One measured number, with its limit if it has one."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit

    def __str__(self) -> str:
        verdict = "" if self.limit is None else f"  limit {self.limit:g}: {'met' if self.met else 'NOT MET'}"
        return f"  {self.name:<52} {self.value:>12,.6g} {self.unit:<12}{verdict}"


class Memory:
    """A view of the sweep that records the memory of this process as trials end, and shows nothing."""

    def __init__(self, trials: int) -> None:
        self._process = psutil.Process()
        self._every = max(trials // 8, 1)
        self._ended = 0
        self.megabytes: list[float] = []

    def changed(self, trial: TrialRecord, message: Event | None) -> None:
        if message is None and trial.state is not TrialState.RUNNING:
            self._ended += 1
            if self._ended % self._every == 0:
                self.megabytes.append(self._process.memory_info().rss / 1e6)

    def warn(self, text: str) -> None:
        print(f"  warning: {text}", file=sys.stderr)

    def tick(self) -> None:
        pass


def in_process(folder: Path, trials: int, cards: int, steps: int) -> list[Figure]:
    """A whole sweep on the fake clock, and the time of `sweeps status` on its journal."""
    overrides = ["+stage=smoke", "trainer=simulated", f"paths.root={folder}", f"machine.cards={cards}"]
    overrides += [f"search.trials={trials}", "search.prompts_per_step=[2]", "search.lr_scaling=[hold]"]
    overrides += [f"stage.steps={steps}", "trainer.checkpoint_every_steps=50", "trainer.keep_checkpoints=2"]
    cfg = compose(overrides)
    plan = make_plan(cfg)
    clock = FakeClock()
    memory = Memory(trials)
    began, used = time.perf_counter(), time.process_time()
    with Ledger.open(folder / "ledger.db", clock) as ledger:
        journal = Journal(ledger, "scale-1")
        journal.append(SweepPlanned.from_plan(plan, "smoke", cfg.machine.name, canonical(cfg)))
        _open_lease(ledger, cfg.machine, "scale-1", cards)
        journal.append(DriverStarted("lease-1", os.getpid()))
        controller = SweepController(
            cfg, ledger=ledger, journal=journal, lease_id="lease-1", sweep_dir=folder, view=memory, cards=cards
        )
        InProcessExecutor(clock).run(controller)
        ledger.leases.detach("lease-1", "scale-1", "done")
        journal.append(DriverEnded(DriverEnd.DONE))
    seconds, used = time.perf_counter() - began, time.process_time() - used
    states = [t.state for t in journal.record.trials.values()]
    if states.count(TrialState.COMPLETED) != len(plan.trials):
        raise SystemExit(f"only {states.count(TrialState.COMPLETED)} of {len(plan.trials)} trials were completed")
    reports = sum(t.summary.step for t in journal.record.trials.values())
    half = memory.megabytes[len(memory.megabytes) // 2 - 1]
    print("  memory as trials ended, MB: " + "  ".join(f"{mb:.0f}" for mb in memory.megabytes))
    return [
        Figure(f"{len(plan.trials)} trials of {steps} steps on {cards} cards", seconds, "s", LIMIT_SECONDS),
        Figure("per step report", seconds / reports * 1e6, "us"),
        Figure("processor time", used, "s"),
        Figure("memory, peak", max(memory.megabytes), "MB", LIMIT_MB),
        Figure("memory at the end / half-way", memory.megabytes[-1] / half, "times", LIMIT_GROWTH),
        Figure("ledger.db", (folder / "ledger.db").stat().st_size / 1e6, "MB"),
        Figure("python -m sweeps status", _status_seconds(folder), "s", LIMIT_STATUS_SECONDS),
    ]


def _open_lease(ledger: Ledger, machine: MachineConfig, sweep_id: str, cards: int) -> None:
    lease = Lease(
        "lease-1", f"benchmark:{sweep_id}", machine.name, machine.sku, "own", cards, "USD", None, purchase="own"
    )
    ledger.leases.open(lease)
    ledger.leases.attach("lease-1", sweep_id)


def _status_seconds(root: Path) -> float:
    """Seconds of the command, the start of Python included; the best of three runs."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        command = [sys.executable, "-m", "sweeps", "status", "--root", str(root)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return min(took)


def through_ray(folder: Path, trials: int, cards: int) -> list[Figure]:
    """No-op trials through Ray Tune: half of the plain ones, those driven by this program, and the other half.

    In both cases each trial has its own actor in its own placement group, and the actor answers equally many calls.
    Both run on the same local Ray; its start is not measured.
    """
    import ray

    from sweeps.executors.cluster import start_local
    from sweeps.executors.ray_tune import RayTuneExecutor

    start_local(range(cards), "cpu")
    plain = _plain_tune(folder, trials // 2)
    overrides = ["+stage=smoke", "trainer=simulated", f"paths.root={folder}", f"machine.cards={cards}"]
    overrides += [f"search.trials={trials}", "search.prompts_per_step=[2]", "search.lr_scaling=[hold]", "stage.steps=1"]
    cfg = compose(overrides)
    plan = make_plan(cfg)
    with Ledger.open(folder / "ray.db") as ledger:
        journal = Journal(ledger, "ray-1")
        journal.append(SweepPlanned.from_plan(plan, "smoke", cfg.machine.name, canonical(cfg)))
        _open_lease(ledger, cfg.machine, "ray-1", cards)
        controller = SweepController(
            cfg, ledger=ledger, journal=journal, lease_id="lease-1", sweep_dir=folder, view=Memory(trials), cards=cards
        )
        executor = RayTuneExecutor(cards=range(cards), device="cpu", logs=folder / "ray")
        began = time.perf_counter()
        executor.run(controller)
        driven = time.perf_counter() - began
    done = [t for t in journal.record.trials.values() if t.state is TrialState.COMPLETED]
    if len(done) != trials:
        raise SystemExit(f"only {len(done)} of {trials} trials were completed")
    plain += _plain_tune(folder, trials - trials // 2)
    executor.close()
    if ray.is_initialized():
        ray.shutdown()
    return [
        Figure(f"plain Ray Tune, {trials} no-op trials, each", plain / trials, "s"),
        Figure("driven by this program, each", driven / trials, "s"),
        Figure("driven / plain", driven / plain, "times", LIMIT_RAY_RATIO),
    ]


def _plain_tune(folder: Path, trials: int) -> float:
    """Seconds that plain Ray Tune takes for no-op trials."""
    from ray import tune

    class Nothing(tune.Trainable):
        def step(self) -> dict[str, Any]:
            return {"done": self.iteration + 1 == RESULTS_PER_TRIAL}

    began = time.perf_counter()
    tune.Tuner(
        tune.with_resources(Nothing, tune.PlacementGroupFactory([{"CPU": 1, "card": 1}])),
        tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=False),
        run_config=tune.RunConfig(
            storage_path=str((folder / "plain").absolute()),
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            log_to_file=True,
            verbose=0,
        ),
    ).fit()
    return time.perf_counter() - began


def print_machine() -> None:
    memory = psutil.virtual_memory().total / 2**30
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000, help="trials of the first part; 0: skip it")
    parser.add_argument("--cards", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ray", action="store_true", help="run the second part too; takes some minutes")
    parser.add_argument("--ray-trials", type=int, default=200)
    parser.add_argument("--ray-cards", type=int, default=os.cpu_count() or 1, help="number of trials that run at once")
    parser.add_argument("--folder", type=Path, help="folder for the ledger, which is kept; default: a temporary folder")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON too")
    options = parser.parse_args(arguments)
    print_machine()
    figures: list[Figure] = []
    with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as folder:
        if options.trials:
            figures += in_process(Path(folder), options.trials, options.cards, options.steps)
        if options.ray:
            figures += through_ray(Path(folder), options.ray_trials, options.ray_cards)
    for figure in figures:
        print(figure)
    if options.json:
        rows: list[dict[str, Any]] = [{**vars(f), "met": f.met} for f in figures]
        print(json.dumps(rows, indent=2))
    return 0 if all(f.met is not False for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
