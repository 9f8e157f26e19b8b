"""Runs attempts with Ray Tune: one Tune trial is one attempt, in an actor of its own, on a placement group of its own.

Tune schedules and supervises; it never decides. A searcher hands out what the host has to do now, retries are the
host's (`max_failures=0`), and Tune's own experiment state is thrown away: resume works from the journal. Before a
trainer begins, the processes of every attempt that ended are gone and the cards are back.
"""

from __future__ import annotations

import functools
import os
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl.codec import from_json, message_from_json, to_json
from rl.spec import Continue, Finished, TrialSpec
from sweeps.executors import Attempt, Controller, outcome_of_error, outcome_of_finish
from sweeps.executors.cluster import alive_nodes, named, on_node, resource_of, start_local, usable_cards
from sweeps.executors.processes import MARK, Family, end_family, end_marked, own_family, write_output_to
from sweeps.executors.tune_calls import ControllerCallback, ControllerSearcher, NothingToStartStopper
from sweeps.journal.events import AttemptOutcome

RELEASE_DEADLINE_SECONDS = 60.0
"""After an attempt's end: what is still there then is told as held."""
LEAVING_SECONDS = 10.0
"""How long an attempt's own process may take to end by itself."""
NODE_LOOK_SECONDS = 2.0
"""How often the cluster's nodes are counted."""
NODE_LOSS_SECONDS = 60.0
"""How long Ray may take to find that a node is dead, after what ran on it cannot be reached any more."""


class AttemptActor(tune.Trainable):
    """The process of one attempt. Its first word is that it is there; each further `train` call lets the trainer say
    its next one."""

    def setup(self, config: dict[str, Any]) -> None:
        self._spec = from_json(TrialSpec, config["spec"])
        self._checkpoint = Path(config["checkpoint"]) if config["checkpoint"] else None
        self._command = None
        self._words = None
        self._mark = os.environ[MARK] = config["mark"]
        self._family: Family | None = None
        write_output_to(Path(config["log"]))
        group = ray.util.get_current_placement_group()
        self._group = group.id.hex() if group else ""

    def tell(self, command: dict[str, Any]) -> None:
        """What the trainer shall hear next. Comes from the process that also calls `train`, so it is there in time."""
        self._command = message_from_json(command)

    def step(self) -> dict[str, Any]:
        from rl.trainers import create_trainer

        if self._family is None:
            self._family = own_family(self._mark, ray.get_runtime_context().get_node_id(), ())
            return self._word()
        if self._words is None:
            self._family = own_family(self._mark, self._family.node, [str(i) for i in ray.get_gpu_ids()])
            self._words = create_trainer(self._spec.trainer.name).run(self._spec, self._checkpoint)
        command, self._command = self._command, None
        try:
            message = self._words.send(command)
        except StopIteration:
            error = (AttemptOutcome.CRASHED, "the trainer ended without its last message")
            return self._word(error=error, done=True)
        except Exception as error:
            import traceback

            traceback.print_exc()
            return self._word(error=outcome_of_error(error), done=True)
        return self._word(message=to_json(message), done=isinstance(message, Finished))

    def cleanup(self) -> None:
        if self._words is not None:
            self._words.close()

    def _word(self, done: bool = False, **content: Any) -> dict[str, Any]:
        assert self._family is not None
        self._family = own_family(self._mark, self._family.node, (), before=self._family)
        return {**content, "family": to_json(self._family), "group": self._group, "done": done}


@dataclass
class _Running:
    attempt: Attempt
    mark: str
    sequence: int = 0
    family: Family | None = None
    """How its processes are known; set by its first word."""
    group: str | None = None
    """Placement group: set once it was granted."""
    node: str = ""
    last_word: float = 0.0
    """Monotonic seconds, from being granted on."""
    outcome: tuple[AttemptOutcome, str] | None = None
    ended_at: float | None = None
    """Monotonic seconds; None while it runs."""
    unclear_since: float | None = None
    """Monotonic seconds: it cannot be reached, and Ray does not know yet whether its node is dead."""
    clearing: Future[list[str]] | None = field(default=None, repr=False)
    """Its processes are being ended; the result is what could not be."""


class RayTuneExecutor:
    """Ray Tune on the Ray that this process is connected to, else on one of its own on this host with these cards.

    Args:
        cards: those that trials may use; on a cluster, how many at most.
        silence_seconds: an attempt that says nothing for so long is taken for hung and ended.
    """

    actor = AttemptActor

    def __init__(self, *, cards: Sequence[int], device: str, logs: Path, silence_seconds: float = 1800.0) -> None:
        self._device, self._resource = device, resource_of(device)
        self._logs, self._silence_seconds = logs, silence_seconds
        self._most_cards, self._cards = len(cards), len(cards)
        self._running: dict[str, _Running] = {}
        self._raised: Exception | None = None
        self._tune_trials: dict[str, Any] = {}
        self._withheld: list[tuple[_Running, Any]] = []
        self._withheld_cards = 0
        self._looked_at = 0.0
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="clearing")
        if not ray.is_initialized():
            end_marked(self._mark_prefix)
            start_local(cards, device)
        self._here = ray.get_runtime_context().get_node_id()

    @property
    def _mark_prefix(self) -> str:
        return f"{self._logs.absolute().parent}:"

    def run(self, host: Controller) -> None:
        self._host = host
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
        actor = tune.with_resources(self.actor, functools.partial(_bundles, self._resource))
        self._raised = None
        try:
            tune.Tuner(actor, tune_config=config, run_config=run_config).fit()
        except Exception:
            if self._raised is not None:
                raise self._raised from None
            raise
        self._running = {k: r for k, r in self._running.items() if r.group is not None}
        while self._running:
            self.tick()
            time.sleep(0.1)

    def close(self) -> None:
        """End everything that still runs, at once. Safe to call twice, and after an exception out of `run`."""
        for running in self._running.values():
            self._clear(running, patience_seconds=0.0)
        for running in self._running.values():
            self._still_there(running, timeout=RELEASE_DEADLINE_SECONDS)
        if ray.is_initialized():
            ray.shutdown()
        for running in self._running.values():
            if running.family is not None and running.family.node == self._here:
                end_family(running.family, 5.0, RELEASE_DEADLINE_SECONDS)
        self._running.clear()
        self._threads.shutdown(wait=False)

    def pid_of(self, attempt: Attempt) -> int | None:
        """The process of a running attempt, once it has said a word."""
        found = next((r.family for r in self._running.values() if r.attempt is attempt), None)
        return found.pid if found else None

    # What Tune's searcher, callback and stopper bring

    def keep(self, error: Exception) -> None:
        """What went wrong first."""
        self._raised = self._raised or error

    def suggest(self, tune_id: str) -> dict[str, Any] | str | None:
        if not any(r.ended_at is None for r in self._running.values()):
            self.tick()  # with no trial alive, Tune waits for this method and calls back nowhere else
        attempt = self._host.next_attempt()
        if attempt is None:
            return Searcher.FINISHED if self._host.done() else None
        mark = f"{self._mark_prefix}{attempt}:{uuid.uuid4().hex}"
        self._running[tune_id] = _Running(attempt, mark)
        checkpoint = str(attempt.checkpoint) if attempt.checkpoint else None
        return {"spec": to_json(attempt.spec), "checkpoint": checkpoint, "mark": mark, "log": self._output_of(attempt)}

    def result(self, trial: Any, result: dict[str, Any]) -> None:
        running = self._running[trial.trial_id]
        first_word = running.family is None
        running.family, running.last_word = from_json(Family, result["family"]), time.monotonic()
        if first_word:
            self._wait_for_those_that_end()
            self._grant(running, result["group"], running.family.node)
            running.last_word = time.monotonic()
            if held := self._holders_of_its_cards(running.node):
                running.outcome = (AttemptOutcome.PREEMPTED, f"its cards were given to it while {held} still held them")
                self._clear(running, patience_seconds=0.0)
                self._still_there(running, timeout=RELEASE_DEADLINE_SECONDS)  # before Tune lets it begin
            return
        if running.outcome is not None:  # it is being ended
            return
        if error := result.get("error"):
            running.outcome = (AttemptOutcome(error[0]), error[1])
            return
        message = message_from_json(result["message"])
        command = self._host.on_message(running.attempt, running.sequence, message)
        running.sequence += 1
        if isinstance(message, Finished):
            running.outcome = outcome_of_finish(message)
        elif not isinstance(command, Continue):
            trial.temporary_state.ray_actor.tell.remote(to_json(command))

    def ended(self, trial: Any, *, died: bool) -> None:
        running = self._running.get(trial.trial_id)
        if running is None or running.ended_at is not None:
            return
        if running.group is None:  # it ended before its first word, and before a tick saw its group
            self._grant(running, "", "")
        if died and running.outcome is None:
            reason = _why_it_died(trial)
            log = self._output_of(running.attempt)
            running.outcome = (AttemptOutcome.CRASHED, f"its process died: {reason}; see {log}")
            if "its node has died" in reason:
                running.outcome = (AttemptOutcome.PREEMPTED, f"its node was lost: {named(running.node)}")
            elif "unavailable" in reason:
                running.unclear_since = time.monotonic()
                return
        self._end(running, *(running.outcome or (AttemptOutcome.CRASHED, "its process ended without a last message")))

    def tick(self, trials: Sequence[Any] = ()) -> None:
        self._tune_trials.update({t.trial_id: t for t in trials if t.trial_id not in self._tune_trials})
        self._host.on_tick()
        self._count_cards()
        self._end_those_that_hang()
        self._end_those_whose_node_is_lost()
        waiting = [r for r in self._running.values() if r.group is None]
        ending = {k: r for k, r in self._running.items() if r.ended_at is not None}
        if not waiting and not ending:
            return
        groups = self._granted_groups()
        for key, running in ending.items():
            still = self._still_there(running)
            overdue = time.monotonic() - (running.ended_at or 0) > RELEASE_DEADLINE_SECONDS
            if still == [] and running.group not in groups:
                del self._running[key]
                self._host.on_released(running.attempt, True)
            elif still or overdue:
                del self._running[key]
                self._withhold(running)
                self._host.on_released(running.attempt, False)
        if not any(r.ended_at is not None for r in self._running.values()):
            new = {g: node for g, node in groups.items() if all(r.group != g for r in self._running.values())}
            for running, group in zip(waiting, sorted(new), strict=False):
                self._grant(running, group, new[group])

    def nothing_can_start(self) -> bool:
        """The host wants no more, and what was handed out ahead has not got its cards: Tune need not wait for it."""
        return self._host.stopping() and all(r.group is None or r.ended_at is not None for r in self._running.values())

    # Inside

    def _output_of(self, attempt: Attempt) -> str:
        return str(self._logs.absolute() / f"{attempt.trial_id}-{attempt.number}.log")

    def _grant(self, running: _Running, group: str, node: str) -> None:
        """It holds `group`. Groups are alike, so which attempt got which is a guess until its process says so."""
        if running.group is None:
            running.last_word = time.monotonic()
            self._host.on_granted(running.attempt)
        elif running.group != group:
            for other in self._running.values():
                if other.group == group:
                    other.group, other.node = running.group, running.node
        running.group, running.node = group, node

    def _granted_groups(self) -> dict[str, str]:
        """Placement groups that hold cards, and the node of each."""
        return {
            name: next(iter(group["bundles_to_node_id"].values()), "")
            for name, group in ray.util.placement_group_table().items()
            if group["state"] == "CREATED" and any(self._resource in b for b in group["bundles"].values())
        }

    def _wait_for_those_that_end(self) -> None:
        """Until every attempt that ended has let go of its cards, or has had its time for it."""
        ending = [k for k, r in self._running.items() if r.ended_at is not None]
        while any(k in self._running for k in ending):
            self.tick()
            time.sleep(0.05)

    def _holders_of_its_cards(self, node: str) -> str:
        """Attempts whose cards on this node are to be withheld, and which Ray gave to somebody else before."""
        return ", ".join(
            str(r.attempt) for r, group in self._withheld if r.node == node and not group.wait(timeout_seconds=1)
        )

    def _clear(self, running: _Running, patience_seconds: float) -> None:
        """Begin to end its processes, on the node that they are on."""
        if running.clearing is not None or running.family is None:
            return
        work = (running.family, patience_seconds, RELEASE_DEADLINE_SECONDS / 4)
        if running.family.node == self._here:
            running.clearing = self._threads.submit(end_family, *work)
        else:
            there = NodeAffinitySchedulingStrategy(running.family.node, soft=False)
            running.clearing = _end_there.options(scheduling_strategy=there).remote(*work).future()

    def _still_there(self, running: _Running, timeout: float = 0.0) -> list[str] | None:
        """What of its processes could not be ended; None: not known yet."""
        if running.clearing is None:
            return []
        try:
            return running.clearing.result(timeout)
        except TimeoutError:
            return None
        except Exception:  # its node did not answer
            return [] if not self._is_alive(running.node) else [f"node {running.node} did not answer"]

    def _withhold(self, running: _Running) -> None:
        """Keep as many cards of its node from being handed out again as it still holds."""
        cards = running.attempt.spec.cards
        self._withheld_cards += cards
        there = {self._resource: cards, **on_node(running.node)}
        self._withheld.append((running, ray.util.placement_group([there])))
        self._looked_at = 0.0

    def _end(self, running: _Running, outcome: AttemptOutcome, message: str) -> None:
        running.unclear_since, running.ended_at = None, time.monotonic()
        self._clear(running, LEAVING_SECONDS)
        self._host.on_ended(running.attempt, outcome, message)

    def _end_those_whose_node_is_lost(self) -> None:
        """A machine that is gone is no failure of the trial; one whose node turns out to be alive has crashed."""
        for running in [r for r in self._running.values() if r.unclear_since is not None]:
            if not self._is_alive(running.node):
                self._end(running, AttemptOutcome.PREEMPTED, f"its node was lost: {named(running.node)}")
            elif time.monotonic() - (running.unclear_since or 0.0) > NODE_LOSS_SECONDS:
                self._end(running, *(running.outcome or (AttemptOutcome.CRASHED, "it could not be reached")))

    def _end_those_that_hang(self) -> None:
        now = time.monotonic()
        for key, running in self._running.items():
            if running.group is None or running.ended_at is not None or running.outcome is not None:
                continue
            if now - running.last_word <= self._silence_seconds:
                continue
            text = f"no message for {self._silence_seconds:g} s: the attempt hung and was ended"
            running.outcome = (AttemptOutcome.HUNG, text)
            actor = getattr(self._tune_trials.get(key), "temporary_state", None)
            if running.family is not None:
                self._clear(running, patience_seconds=0.0)
            elif actor is not None and actor.ray_actor is not None:
                ray.kill(actor.ray_actor)

    def _count_cards(self) -> None:
        """Tell the host when nodes came or went, or cards are withheld."""
        if time.monotonic() - self._looked_at < NODE_LOOK_SECONDS or not self._running:
            return
        self._looked_at = time.monotonic()
        per_trial = max(r.attempt.spec.cards for r in self._running.values())
        usable = usable_cards(alive_nodes(self._device), per_trial) - self._withheld_cards
        cards = max(0, min(self._most_cards - self._withheld_cards, usable))
        if cards != self._cards:
            self._cards = cards
            self._host.on_cards(cards)

    def _is_alive(self, node: str) -> bool:
        return any(n.node_id == node for n in alive_nodes(self._device))


@ray.remote(num_cpus=0, max_retries=0)
def _end_there(family: Family, patience_seconds: float, kill_seconds: float) -> list[str]:
    return end_family(family, patience_seconds, kill_seconds)


def _why_it_died(trial: Any) -> str:
    """The sentence of Ray's error that gives the reason."""
    try:
        lines = Path(trial.error_file).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "no reason was given"
    reasons = [line for line in lines if "because" in line or "unavailable" in line]
    return (reasons or lines or ["no reason was given"])[-1].strip()[:300]


def _bundles(resource: str, config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Bundle 0 holds the controller and the cards. Shipped to Ray, so it holds on to nothing of this process."""
    return tune.PlacementGroupFactory([{"CPU": 1, resource: config["spec"]["cards"]}])
