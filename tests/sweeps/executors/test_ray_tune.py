"""Attempts through real Ray Tune: messages arrive, commands go back, each end has its outcome, cards are returned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cost.records import StoreError
from rl.spec import CheckpointWritten, Command, Continue, Event, Finished, SetLr, Started, StepReport, Stop, StopKind
from sweeps.config.build import compose
from sweeps.executors import Attempt, ray_attempt
from sweeps.executors.attempt_actor import AttemptActor
from sweeps.executors.processes import AttemptProcesses
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.planning.plan import make_plan, trial_spec


class Recorder:
    """A controller that hands out given attempts and writes down what comes back."""

    def __init__(self, attempts: list[Attempt], answers: dict[tuple[str, int], Command] | None = None) -> None:
        self.waiting, self.answers = list(attempts), answers or {}
        self.live: set[str] = set()
        self.messages: dict[str, list[Event]] = {}
        self.ended: dict[str, tuple[AttemptOutcome, str]] = {}
        self.released: dict[str, bool] = {}
        self.granted: list[str] = []
        self.cards: list[int] = []
        self.ticks = 0

    def next_attempt(self) -> Attempt | None:
        if self.live or not self.waiting:
            return None
        attempt = self.waiting.pop(0)
        self.live.add(str(attempt))
        return attempt

    def done(self) -> bool:
        return not self.live and not self.waiting

    def on_granted(self, attempt: Attempt) -> None:
        assert str(attempt) not in self.granted
        self.granted.append(str(attempt))

    def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
        assert str(attempt) in self.granted
        messages = self.messages.setdefault(str(attempt), [])
        assert sequence == len(messages)
        messages.append(message)
        step = message.step if isinstance(message, StepReport) else 0
        return self.answers.get((attempt.trial_id, step), Continue()) if step else Continue()

    def on_ended(self, attempt: Attempt, outcome: AttemptOutcome, message: str) -> None:
        assert str(attempt) not in self.ended
        self.ended[str(attempt)] = (outcome, message)
        self.live.remove(str(attempt))

    def on_released(self, attempt: Attempt, released: bool) -> None:
        assert str(attempt) in self.ended
        self.released[str(attempt)] = released

    def on_cards(self, cards: int) -> None:
        self.cards.append(cards)

    def stopping(self) -> bool:
        return False

    def on_tick(self) -> None:
        self.ticks += 1

    def stops_at_once(self) -> dict[str, Stop]:
        return {}


@pytest.fixture(scope="module")
def ray_of_one_card(tmp_path_factory):
    import ray

    from sweeps.executors.ray_tune import RayTuneExecutor

    logs = tmp_path_factory.mktemp("ray")
    executor = RayTuneExecutor(cards=[0], device="cpu", logs=logs)
    yield executor
    executor.close()
    assert not ray.is_initialized()


def attempts(folder: Path, *overrides: str) -> list[Attempt]:
    cfg = compose(["+stage=smoke", "trainer=simulated", f"paths.root={folder}", "stage.steps=5", *overrides])
    plan = make_plan(cfg)
    return [Attempt(trial_spec(cfg, t, attempt=1, sweep_dir=folder), None) for t in plan.trials]


def test_a_local_ray_listens_on_loopback_only(ray_of_one_card):
    import ray

    @ray.remote(num_cpus=0)
    def worker() -> int:
        return os.getpid()

    assert ray.get(worker.remote())  # a worker listens, too
    listening = {
        (process.name(), connection.laddr.ip)
        for process in (psutil.Process(), *psutil.Process().children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert {ip for _, ip in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_every_message_arrives_in_order_and_commands_arrive_before_the_next_step(ray_of_one_card, tmp_path):
    all_attempts = attempts(tmp_path)
    first, second, third = all_attempts
    controller = Recorder(
        all_attempts,
        {(first.trial_id, 2): SetLr(7e-7), (second.trial_id, 3): Stop(StopKind.BUDGET, "enough")},
    )
    ray_of_one_card.run(controller)
    messages = controller.messages[str(first)]
    assert isinstance(messages[0], Started)
    assert [m.step for m in messages if isinstance(m, StepReport)] == [1, 2, 3, 4, 5]
    rates = [m.lr for m in messages if isinstance(m, StepReport)]
    assert rates[1] != pytest.approx(7e-7)
    assert rates[2:] == pytest.approx([7e-7] * 3)
    assert isinstance(messages[-1], Finished)
    assert controller.ended[str(first)] == ("completed", "")
    assert controller.ended[str(second)] == ("budget", "enough")
    stopped = controller.messages[str(second)]
    assert [m.step for m in stopped if isinstance(m, StepReport)] == [1, 2, 3]
    assert any(isinstance(m, CheckpointWritten) for m in stopped)
    assert controller.ended[str(third)][0] == "completed"
    assert controller.released == {str(a): True for a in all_attempts}
    assert controller.ticks > 0


def test_a_crash_and_a_preemption_have_different_outcomes(ray_of_one_card, tmp_path):
    crash = attempts(tmp_path, "trainer.simulated.crash_at_step=2", "search.prompts_per_step=[2]")
    preempt = attempts(tmp_path, "trainer.simulated.preempt_at_step=2", "search.prompts_per_step=[4]")[:1]
    controller = Recorder(crash + preempt)
    ray_of_one_card.run(controller)
    assert controller.ended[str(crash[0])][0] == "crashed"
    assert controller.ended[str(preempt[0])][0] == "preempted"
    assert "Traceback" in (ray_of_one_card._logs / f"{crash[0].trial_id}-1.log").read_text()
    assert all(controller.released.values())


def test_an_error_of_the_controller_is_raised_unchanged(ray_of_one_card, tmp_path):
    """Tune alone would make text of it, and a ledger that is locked would end a sweep with a traceback."""

    class Refusing(Recorder):
        def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
            if isinstance(message, StepReport):
                raise StoreError("the ledger is locked")
            return super().on_message(attempt, sequence, message)

    with pytest.raises(StoreError, match=r"^the ledger is locked$"):
        ray_of_one_card.run(Refusing(attempts(tmp_path)[:1]))
    (left,) = ray_of_one_card._attempts.values()
    ray_of_one_card._cleanup.start(left, patience_seconds=0.0)
    assert ray_of_one_card._cleanup.remaining(left, timeout=60) == []
    ray_of_one_card._attempts.clear()


def test_a_killed_process_is_a_failed_attempt_whose_card_is_returned(ray_of_one_card, tmp_path):
    victim, other = attempts(tmp_path)[:2]

    class Killer(Recorder):
        def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
            if str(attempt) == str(victim) and isinstance(message, StepReport) and message.step == 2:
                os.kill(ray_of_one_card.pid_of(victim), signal.SIGKILL)
            return super().on_message(attempt, sequence, message)

    controller = Killer([victim, other])
    ray_of_one_card.run(controller)
    outcome, message = controller.ended[str(victim)]
    assert outcome == "crashed"
    assert "died" in message
    assert Path(message.split("; see ")[1]).is_file()
    assert controller.ended[str(other)][0] == "completed"
    assert all(controller.released.values())


def test_an_attempt_that_has_to_stop_at_once_is_ended_without_another_message_and_the_next_one_gets_its_card(
    ray_of_one_card, tmp_path
):
    hangs = attempts(tmp_path, "trainer.simulated.hang_at_step=2", "search.prompts_per_step=[2]")
    other = attempts(tmp_path)[1:2]
    pids = []

    class Stopping(Recorder):
        """Ends the first attempt after its first step."""

        def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
            if isinstance(message, StepReport) and not pids:
                pids.append(ray_of_one_card.pid_of(attempt))
            return super().on_message(attempt, sequence, message)

        def stops_at_once(self) -> dict[str, Stop]:
            return {str(hangs[0]): Stop(StopKind.BUDGET, "nothing is left")} if pids else {}

    controller = Stopping(hangs + other)
    ray_of_one_card.run(controller)
    assert controller.ended[str(hangs[0])] == (AttemptOutcome.BUDGET, "nothing is left")
    assert controller.ended[str(other[0])][0] is AttemptOutcome.COMPLETED
    assert controller.released == {str(a): True for a in hangs + other}
    assert not psutil.pid_exists(pids[0])


def test_a_trial_without_reports_is_ended_as_hung_and_the_next_one_gets_its_card(
    ray_of_one_card, tmp_path, monkeypatch
):
    def silence(seconds: float) -> None:
        monkeypatch.setattr(ray_of_one_card, "_silence_seconds", seconds)

    hangs = attempts(tmp_path, "trainer.simulated.hang_at_step=2", "search.prompts_per_step=[2]")
    other = attempts(tmp_path)[1:2]
    pids = []

    class Watching(Recorder):
        def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
            if isinstance(message, StepReport) and not pids:
                pids.append(ray_of_one_card.pid_of(attempt))
                silence(2.0)  # not before: a busy machine takes its time to start a process
            return super().on_message(attempt, sequence, message)

        def on_ended(self, attempt: Attempt, outcome: AttemptOutcome, message: str) -> None:
            silence(1800.0)
            super().on_ended(attempt, outcome, message)

    controller = Watching(hangs + other)
    ray_of_one_card.run(controller)
    outcome, message = controller.ended[str(hangs[0])]
    assert outcome == "hung"
    assert "no message for 2 s" in message
    assert controller.ended[str(other[0])][0] == "completed"
    assert controller.released == {str(a): True for a in hangs + other}
    assert not psutil.pid_exists(pids[0])


def test_child_processes_of_a_trial_are_ended_before_the_next_trial_starts(ray_of_one_card, tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    notes.mkdir()

    class Leaky(AttemptActor):
        """Leaves a child in a session of its own, an orphaned grandchild, and a process that ignores SIGTERM."""

        def step(self):
            result = super().step()
            if result.get("message", {}).get("type") == "started":
                alive = [int(p.name) for p in notes.iterdir() if psutil.pid_exists(int(p.name))]
                assert not alive, f"children of the trial before are still there: {alive}"
                deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
                children = [
                    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True),
                    subprocess.Popen([sys.executable, "-c", deaf]),
                ]
                for child in children:
                    (notes / str(child.pid)).touch()
                if (middle := os.fork()) == 0:
                    if (grandchild := os.fork()) != 0:
                        (notes / str(grandchild)).touch()
                        os._exit(0)
                    time.sleep(600)
                    os._exit(0)
                os.waitpid(middle, 0)
            return result

    monkeypatch.setattr(ray_of_one_card, "actor", Leaky)
    both = attempts(tmp_path)[:2]
    controller = Recorder(both)
    ray_of_one_card.run(controller)
    assert [outcome for outcome, _ in controller.ended.values()] == ["completed", "completed"], controller.ended
    assert controller.released == {str(a): True for a in both}
    left = [int(p.name) for p in notes.iterdir()]
    assert len(left) == 6
    assert not [pid for pid in left if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def test_a_process_that_cannot_be_ended_is_reported_and_its_card_is_not_granted_again(
    ray_of_one_card, tmp_path, monkeypatch
):
    """The last but one: this Ray has no card to give afterwards."""
    first, second = attempts(tmp_path)[:2]
    end_processes = ray_attempt.end_processes

    def stuck(processes: AttemptProcesses, *patience: float) -> list[str]:
        left = end_processes(processes, *patience)
        return ["process 7 (stuck in its driver)"] if str(first) in processes.mark else left

    monkeypatch.setattr(ray_attempt, "end_processes", stuck)

    class Ending(Recorder):
        def stopping(self) -> bool:
            return 0 in self.cards

    controller = Ending([first, second])
    ray_of_one_card.run(controller)
    assert controller.ended[str(first)][0] == "completed"
    assert controller.released[str(first)] is False
    assert controller.cards == [0]
    assert str(second) not in controller.messages
    assert controller.ended.get(str(second), (AttemptOutcome.PREEMPTED, ""))[0] == "preempted"


def test_no_process_runs_after_close(ray_of_one_card):
    ray_of_one_card.close()
    left = [" ".join(p.cmdline()) for p in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "raylet" in line or "ray::" in line]
