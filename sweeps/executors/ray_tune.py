"""Runs attempts with Ray Tune: one Tune trial is one attempt, in its own actor, on its own placement group.

Tune schedules and supervises; it decides nothing. A searcher hands out what the controller wants to run, retries are
the controller's (`max_failures=0`), and Tune's own experiment state is not used: a resume reads the journal. Before a
trainer starts, the processes of every ended attempt have ended and their cards are returned.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from rl.codec import from_json, message_from_json, to_json
from rl.spec import Continue, Finished
from sweeps.executors import Attempt, Controller, outcome_of_finish, outcome_of_stop
from sweeps.executors.attempt_actor import AttemptActor, bundles
from sweeps.executors.cluster import alive_nodes, named, on_node, resource_of, start_local, usable_cards
from sweeps.executors.processes import AttemptProcesses, end_marked_processes
from sweeps.executors.ray_attempt import RELEASE_SECONDS, AttemptCleanup, RayAttempt
from sweeps.executors.tune_calls import ControllerCallback, ControllerSearcher, NothingToStartStopper
from sweeps.journal.outcomes import AttemptOutcome

EXIT_SECONDS = 10.0
"""How long an attempt's own process may take to end by itself."""
COUNT_CARDS_SECONDS = 2.0
"""How often the cluster's nodes are counted."""
NODE_LOSS_SECONDS = 60.0
"""How long Ray may take to find that a node is dead, after its attempts cannot be reached any more."""


class RayTuneExecutor:
    """Uses the Ray that this process is connected to, or else starts one on this host with these cards.

    Args:
        cards: those that trials can use; on a cluster, at most this many.
        silence_seconds: an attempt without a message for longer hangs, and is ended.
    """

    actor = AttemptActor

    def __init__(self, *, cards: Sequence[int], device: str, logs: Path, silence_seconds: float = 1800.0) -> None:
        self._device, self._resource = device, resource_of(device)
        self._logs, self._silence_seconds = logs, silence_seconds
        self._max_cards, self._cards = len(cards), len(cards)
        self._attempts: dict[str, RayAttempt] = {}
        """By Tune's id of the trial, until the attempt is released."""
        self._error: Exception | None = None
        self._tune_trials: dict[str, Any] = {}
        self._withheld: list[tuple[RayAttempt, Any]] = []
        """Attempts that did not release their cards, each with a placement group that keeps those cards from others."""
        self._cards_counted_at = 0.0
        if not ray.is_initialized():
            end_marked_processes(self._mark_prefix)
            start_local(cards, device)
        self._cleanup = AttemptCleanup(device)

    @property
    def _mark_prefix(self) -> str:
        return f"{self._logs.absolute().parent}:"

    def run(self, controller: Controller) -> None:
        self._controller = controller
        config = tune.TuneConfig(search_alg=ControllerSearcher(self), num_samples=-1, reuse_actors=False)
        run_config = tune.RunConfig(
            name="attempts",
            storage_path=str(self._logs.absolute()),
            callbacks=[ControllerCallback(self)],
            stop=NothingToStartStopper(self),
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            verbose=0,
        )
        actor = tune.with_resources(self.actor, functools.partial(bundles, self._resource))
        self._error = None
        try:
            tune.Tuner(actor, tune_config=config, run_config=run_config).fit()
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise
        self._attempts = {k: r for k, r in self._attempts.items() if r.group is not None}
        while self._attempts:
            self.tick()
            time.sleep(0.1)

    def close(self) -> None:
        """End everything that still runs, at once. Safe to call twice, and after an exception out of `run`."""
        for running in self._attempts.values():
            self._cleanup.start(running, patience_seconds=0.0)
        for running in self._attempts.values():
            self._cleanup.remaining(running, timeout=RELEASE_SECONDS)
        if ray.is_initialized():
            ray.shutdown()
        for running in self._attempts.values():
            self._cleanup.end_on_own_node(running, patience_seconds=5.0)
        self._attempts.clear()
        self._cleanup.close()

    def pid_of(self, attempt: Attempt) -> int | None:
        """The process of a running attempt, once it has reported."""
        found = next((r.processes for r in self._attempts.values() if r.attempt is attempt), None)
        return found.pid if found else None

    # Called by Tune's searcher, callback and stopper (`sweeps.executors.tune_calls`)

    def keep_error(self, error: Exception) -> None:
        """Keep the first exception of these calls, for `run` to raise."""
        self._error = self._error or error

    def suggest(self, tune_id: str) -> dict[str, Any] | str | None:
        if not any(r.ended_at is None for r in self._attempts.values()):
            self.tick()  # while no trial is alive, Tune calls nothing else
        attempt = self._controller.next_attempt()
        if attempt is None:
            return Searcher.FINISHED if self._controller.done() else None
        mark = f"{self._mark_prefix}{attempt}:{uuid.uuid4().hex}"
        self._attempts[tune_id] = RayAttempt(attempt, mark)
        checkpoint = str(attempt.checkpoint) if attempt.checkpoint else None
        return {"spec": to_json(attempt.spec), "checkpoint": checkpoint, "mark": mark, "log": self._log_of(attempt)}

    def result(self, trial: Any, result: dict[str, Any]) -> None:
        running = self._attempts[trial.trial_id]
        is_first = running.processes is None
        running.processes, running.last_message = from_json(AttemptProcesses, result["processes"]), time.monotonic()
        if is_first:
            self._wait_for_ending_attempts()
            self._grant(running, result["group"], running.processes.node)
            running.last_message = time.monotonic()
            if users := self._users_of_its_cards(running.node):
                running.outcome = (AttemptOutcome.PREEMPTED, f"Ray granted cards that {users} still used")
                self._cleanup.start(running, patience_seconds=0.0)
                self._cleanup.remaining(running, timeout=RELEASE_SECONDS)  # before Tune lets the trainer start
            return
        if running.outcome is not None:  # the attempt is being ended
            return
        if error := result.get("error"):
            running.outcome = (AttemptOutcome(error[0]), error[1])
            return
        message = message_from_json(result["message"])
        command = self._controller.on_message(running.attempt, running.sequence, message)
        running.sequence += 1
        if isinstance(message, Finished):
            running.outcome = outcome_of_finish(message)
        elif not isinstance(command, Continue):
            trial.temporary_state.ray_actor.set_command.remote(to_json(command))

    def ended(self, trial: Any, *, died: bool) -> None:
        running = self._attempts.get(trial.trial_id)
        if running is None or running.ended_at is not None:
            return
        if running.group is None:  # it ended before its process reported, and before a tick saw its placement group
            self._grant(running, "", "")
        if died and running.outcome is None:
            reason = _why_it_died(trial)
            text = f"its process died: {reason}; see {self._log_of(running.attempt)}"
            running.outcome = (AttemptOutcome.CRASHED, text)
            if "its node has died" in reason:
                running.outcome = (AttemptOutcome.PREEMPTED, f"its node was lost: {named(running.node)}")
            elif "unavailable" in reason:
                running.unreachable_since = time.monotonic()
                return
        self._end(running, *(running.outcome or (AttemptOutcome.CRASHED, "its process ended without a last message")))

    def tick(self, trials: Sequence[Any] = ()) -> None:
        self._tune_trials.update({t.trial_id: t for t in trials if t.trial_id not in self._tune_trials})
        self._controller.on_tick()
        self._count_cards()
        self._end_hung_attempts()
        self._end_stopped_attempts()
        self._end_attempts_of_lost_nodes()
        waiting = [r for r in self._attempts.values() if r.group is None]
        ending = {k: r for k, r in self._attempts.items() if r.ended_at is not None}
        if not waiting and not ending:
            return
        groups = self._granted_groups()
        for key, running in ending.items():
            remaining = self._cleanup.remaining(running)
            overdue = time.monotonic() - (running.ended_at or 0) > RELEASE_SECONDS
            if remaining == [] and running.group not in groups:
                del self._attempts[key]
                self._controller.on_released(running.attempt, True)
            elif remaining or overdue:
                del self._attempts[key]
                self._withhold_cards(running)
                self._controller.on_released(running.attempt, False)
        if not any(r.ended_at is not None for r in self._attempts.values()):
            new = {g: node for g, node in groups.items() if all(r.group != g for r in self._attempts.values())}
            for running, group in zip(waiting, sorted(new), strict=False):
                self._grant(running, group, new[group])

    def nothing_can_start(self) -> bool:
        """The controller starts nothing more, and no attempt that was handed out has its cards: Tune need not wait."""
        stopping = self._controller.stopping()
        return stopping and all(r.group is None or r.ended_at is not None for r in self._attempts.values())

    # Inside

    def _log_of(self, attempt: Attempt) -> str:
        return str(self._logs.absolute() / f"{attempt.trial_id}-{attempt.number}.log")

    def _grant(self, running: RayAttempt, group: str, node: str) -> None:
        """The attempt has `group`. Groups are alike: which attempt has which is a guess until its process reports."""
        if running.group is None:
            running.last_message = time.monotonic()
            self._controller.on_granted(running.attempt)
        elif running.group != group:
            for other in self._attempts.values():
                if other.group == group:
                    other.group, other.node = running.group, running.node
        running.group, running.node = group, node

    def _granted_groups(self) -> dict[str, str]:
        """Placement groups that have cards, and the node of each."""
        return {
            name: next(iter(group["bundles_to_node_id"].values()), "")
            for name, group in ray.util.placement_group_table().items()
            if group["state"] == "CREATED" and any(self._resource in b for b in group["bundles"].values())
        }

    def _wait_for_ending_attempts(self) -> None:
        """Wait until every ended attempt has released its cards, or has had its time for it."""
        ending = [k for k, r in self._attempts.items() if r.ended_at is not None]
        while any(k in self._attempts for k in ending):
            self.tick()
            time.sleep(0.05)

    def _users_of_its_cards(self, node: str) -> str:
        """Attempts on this node that did not release their cards, and whose cards Ray gave to another attempt."""
        return ", ".join(
            str(r.attempt) for r, group in self._withheld if r.node == node and not group.wait(timeout_seconds=1)
        )

    def _withhold_cards(self, running: RayAttempt) -> None:
        """Keep as many cards of its node from other attempts as it did not release."""
        resources = {self._resource: running.attempt.spec.cards, **on_node(running.node)}
        self._withheld.append((running, ray.util.placement_group([resources])))
        self._cards_counted_at = 0.0

    def _end(self, running: RayAttempt, outcome: AttemptOutcome, message: str) -> None:
        running.unreachable_since, running.ended_at = None, time.monotonic()
        self._cleanup.start(running, EXIT_SECONDS)
        self._controller.on_ended(running.attempt, outcome, message)

    def _end_attempts_of_lost_nodes(self) -> None:
        """A lost node is not a failure of the trial. If the node turns out to be alive, the attempt has crashed."""
        for running in [r for r in self._attempts.values() if r.unreachable_since is not None]:
            if not self._cleanup.is_alive(running.node):
                self._end(running, AttemptOutcome.PREEMPTED, f"its node was lost: {named(running.node)}")
            elif time.monotonic() - (running.unreachable_since or 0.0) > NODE_LOSS_SECONDS:
                self._end(running, *(running.outcome or (AttemptOutcome.CRASHED, "it could not be reached")))

    def _end_hung_attempts(self) -> None:
        now = time.monotonic()
        for key, running in self._attempts.items():
            if running.group is None or running.ended_at is not None or running.outcome is not None:
                continue
            if now - running.last_message <= self._silence_seconds:
                continue
            text = f"no message for {self._silence_seconds:g} s: the attempt hung and was ended"
            self._kill(key, AttemptOutcome.HUNG, text)

    def _end_stopped_attempts(self) -> None:
        stops = self._controller.stops_at_once()
        for key, running in self._attempts.items() if stops else ():
            stop = stops.get(str(running.attempt))
            if stop is not None and running.group is not None and running.ended_at is None and running.outcome is None:
                self._kill(key, *outcome_of_stop(stop))

    def _kill(self, key: str, outcome: AttemptOutcome, text: str) -> None:
        """End the processes of an attempt. `outcome` is its outcome once Tune reports that its actor is gone."""
        running = self._attempts[key]
        running.outcome = (outcome, text)
        actor = getattr(self._tune_trials.get(key), "temporary_state", None)
        if running.processes is not None:
            self._cleanup.start(running, patience_seconds=0.0)
        elif actor is not None and actor.ray_actor is not None:
            ray.kill(actor.ray_actor)

    def _count_cards(self) -> None:
        """Report to the controller when nodes came or went, or cards are withheld."""
        if time.monotonic() - self._cards_counted_at < COUNT_CARDS_SECONDS or not self._attempts:
            return
        self._cards_counted_at = time.monotonic()
        per_trial = max(r.attempt.spec.cards for r in self._attempts.values())
        withheld = sum(r.attempt.spec.cards for r, _ in self._withheld)
        usable = usable_cards(alive_nodes(self._device), per_trial) - withheld
        cards = max(0, min(self._max_cards - withheld, usable))
        if cards != self._cards:
            self._cards = cards
            self._controller.on_cards(cards)


def _why_it_died(trial: Any) -> str:
    """The line of Ray's error that gives the reason."""
    try:
        lines = Path(trial.error_file).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "no reason was given"
    reasons = [line for line in lines if "because" in line or "unavailable" in line]
    return (reasons or lines or ["no reason was given"])[-1].strip()[:300]
