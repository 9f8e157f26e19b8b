"""Runs attempts with Ray Tune: one Tune trial is one attempt, in an actor of its own, on a placement group of its own.

Tune schedules and supervises; it never decides. A searcher hands out what the host has to do now, retries are the
host's (`max_failures=0`), and Tune's own experiment state is thrown away: resume works from the journal.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import tune
from ray.tune.search import Searcher

from rl.codec import from_json, message_from_json, to_json
from rl.spec import Continue, Finished, TrialSpec
from sweeps.executors import Attempt, Host, outcome_of

CARD = "card"
"""The custom Ray resource that stands for a card where there are no GPUs."""

RELEASE_DEADLINE_SECONDS = 60.0

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_THRESHOLD_S": "30",
}


class AttemptActor(tune.Trainable):
    """The process of one attempt: each `train` call lets the trainer say its next word."""

    def setup(self, config: dict[str, Any]) -> None:
        self._spec = from_json(TrialSpec, config["spec"])
        self._checkpoint = Path(config["checkpoint"]) if config["checkpoint"] else None
        self._command = None
        self._words = None
        group = ray.util.get_current_placement_group()
        self._place = {"pid": os.getpid(), "group": group.id.hex() if group else ""}

    def tell(self, command: dict[str, Any]) -> None:
        """What the trainer shall hear next. Comes from the process that also calls `train`, so it is there in time."""
        self._command = message_from_json(command)

    def step(self) -> dict[str, Any]:
        from rl.trainers import create

        if self._words is None:
            self._words = create(self._spec.trainer.name).run(self._spec, self._checkpoint)
        command, self._command = self._command, None
        try:
            message = self._words.send(command)
        except StopIteration:
            return {"error": ("crashed", "the trainer ended without a word"), **self._place, "done": True}
        except Exception as error:
            import traceback

            traceback.print_exc()
            return {"error": outcome_of(error), **self._place, "done": True}
        return {"message": to_json(message), **self._place, "done": isinstance(message, Finished)}

    def cleanup(self) -> None:
        if self._words is not None:
            self._words.close()


@dataclass
class _Running:
    attempt: Attempt
    sequence: int = 0
    pid: int | None = None
    group: str | None = None
    """Placement group: set once it was granted."""
    outcome: tuple[str, str] | None = None
    ended_at: float | None = None
    """Monotonic seconds; None while it runs."""


class RayTuneExecutor:
    """Ray Tune on a Ray of its own on this host (`local`) with these cards, or on the one at `address`."""

    def __init__(self, *, cards: Sequence[int], device: str, logs: Path, address: str = "local") -> None:
        self._resource = "GPU" if device == "cuda" else CARD
        self._logs = logs
        self._running: dict[str, _Running] = {}
        os.environ.update({k: v for k, v in _ENVIRONMENT.items() if k not in os.environ})
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            local: dict[str, Any] = {"include_dashboard": False}
            if device == "cuda":
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, cards))
                local["num_gpus"] = len(cards)
            else:
                local["resources"] = {CARD: len(cards)}
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}
            ray.init(address=address, **quiet, **(local if address == "local" else {}))

    def run(self, host: Host) -> None:
        self._host = host
        config = tune.TuneConfig(search_alg=_FromHost(self), num_samples=-1, reuse_actors=False)
        run_config = tune.RunConfig(
            name="attempts",
            storage_path=str(self._logs.absolute()),
            callbacks=[_ToHost(self)],
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            log_to_file=True,
            verbose=0,
        )
        actor = tune.with_resources(AttemptActor, functools.partial(_bundles, self._resource))
        tune.Tuner(actor, tune_config=config, run_config=run_config).fit()
        while self._running:
            self.tick()
            time.sleep(0.1)

    def close(self) -> None:
        if self._owns_ray and ray.is_initialized():
            ray.shutdown()
        pids = [r.pid for r in self._running.values() if r.pid is not None]
        _wait_until_gone(pids, RELEASE_DEADLINE_SECONDS)
        self._running.clear()

    def pid_of(self, attempt: Attempt) -> int | None:
        """The process of a running attempt, once it has said a word."""
        return next((r.pid for r in self._running.values() if r.attempt is attempt), None)

    # What Tune's searcher and callback, below, bring

    def suggest(self, tune_id: str) -> dict[str, Any] | str | None:
        if not any(r.ended_at is None for r in self._running.values()):
            self.tick()  # with no trial alive, Tune waits for this method and calls back nowhere else
        attempt = self._host.next_attempt()
        if attempt is None:
            return Searcher.FINISHED if self._host.done() else None
        self._running[tune_id] = _Running(attempt)
        checkpoint = str(attempt.checkpoint) if attempt.checkpoint else None
        return {"spec": to_json(attempt.spec), "checkpoint": checkpoint}

    def result(self, trial: Any, result: dict[str, Any]) -> None:
        running = self._running[trial.trial_id]
        running.pid = result["pid"]
        self._grant(running, result["group"])
        if error := result.get("error"):
            running.outcome = (error[0], error[1])
            return
        message = message_from_json(result["message"])
        command = self._host.on_message(running.attempt, running.sequence, message)
        running.sequence += 1
        if isinstance(message, Finished):
            running.outcome = ("completed" if message.completed else message.reason, "")
        elif not isinstance(command, Continue):
            trial.temporary_state.ray_actor.tell.remote(to_json(command))

    def ended(self, trial: Any, *, died: bool) -> None:
        running = self._running[trial.trial_id]
        if running.ended_at is not None:
            return
        if running.group is None:  # it ended before its first word, and before a tick saw its group
            self._grant(running, "")
        running.ended_at = time.monotonic()
        outcome, message = running.outcome or ("crashed", "its process ended without a word")
        if died and running.outcome is None:
            error = trial.get_error()
            first_line = str(error).strip().splitlines()[0] if error and str(error).strip() else "no reason was given"
            message = f"its process died: {first_line}; the output of the process is under {self._logs}"
        self._host.on_ended(running.attempt, outcome, message)

    def tick(self) -> None:
        self._host.on_tick()
        waiting = [r for r in self._running.values() if r.group is None]
        ending = {k: r for k, r in self._running.items() if r.ended_at is not None}
        if not waiting and not ending:
            return
        groups = self._granted_groups()
        for key, running in ending.items():
            gone = running.group not in groups and (running.pid is None or not psutil.pid_exists(running.pid))
            overdue = time.monotonic() - (running.ended_at or 0) > RELEASE_DEADLINE_SECONDS
            if gone or overdue:
                del self._running[key]
                self._host.on_released(running.attempt, gone)
        if not any(r.ended_at is not None for r in self._running.values()):
            new = groups - {r.group for r in self._running.values()}
            for running, group in zip(waiting, sorted(new), strict=False):
                self._grant(running, group)

    def _grant(self, running: _Running, group: str) -> None:
        """It holds `group`. Groups are alike, so which attempt got which is a guess until its process says so."""
        if running.group is None:
            self._host.on_granted(running.attempt)
        elif running.group != group:
            for other in self._running.values():
                if other.group == group:
                    other.group = running.group
        running.group = group

    def _granted_groups(self) -> set[str]:
        table = ray.util.placement_group_table()
        return {
            name
            for name, group in table.items()
            if group["state"] == "CREATED" and any(self._resource in b for b in group["bundles"].values())
        }


def _bundles(resource: str, config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Bundle 0 holds the controller and the cards. Shipped to Ray, so it holds on to nothing of this process."""
    return tune.PlacementGroupFactory([{"CPU": 1, resource: config["spec"]["cards"]}])


class _NotSaved:
    """Tune pickles what it was given into a state that nobody reads: this process's books stay out of it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _FromHost(_NotSaved, Searcher):
    """Tune asks here for the next attempt."""

    def __init__(self, executor: RayTuneExecutor) -> None:
        super().__init__(metric=None, mode=None)
        self._executor = executor

    def suggest(self, trial_id: str) -> Any:
        return self._executor.suggest(trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal is what a resume reads."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep is resumed from its journal, not from Ray Tune's state")


class _ToHost(_NotSaved, tune.Callback):
    """Tune tells here what happened."""

    def __init__(self, executor: RayTuneExecutor) -> None:
        self._executor = executor

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._executor.tick()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._executor.result(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._executor.ended(trial, died=False)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._executor.ended(trial, died=True)


def _wait_until_gone(pids: list[int], seconds: float) -> None:
    """Wait for processes to end; those that do not are killed."""
    processes = []
    for pid in pids:
        try:
            processes.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=min(seconds, 5.0))
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=seconds)
