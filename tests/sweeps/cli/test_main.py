"""Requests to a running sweep from another process, and what a resumed driver reads from the journal."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from cost.ledger.events import EventStore
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import sweep_lock
from rl.spec import SetLr, StepReport, Stop
from sweeps.cli.main import app
from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.driver.controller import SweepController
from sweeps.driver.driver import run
from sweeps.driver.resume import earlier_sweeps, locked_sweep, sweep_to_resume
from sweeps.journal.journal import Journal, TrialState, load
from sweeps.journal.lost_attempts import end_lost_attempts_of_all
from sweeps.journal.outcomes import STOP_OUTCOMES, AttemptOutcome
from sweeps.planning.plan import make_plan
from sweeps.report.mlflow_store import default_uri
from tests.sweeps.in_process import Silent, a_sweep

SIMULATED = ("+stage=smoke", "trainer=simulated")


def invoke(folder, *arguments: str):
    return CliRunner().invoke(app, [*arguments, "--root", str(folder)])


def test_cancelled_trials_are_never_started(tmp_path):
    sweep = a_sweep(tmp_path)
    gone = [t.trial_id for t in sweep.journal.record.trials.values()][1:]
    result = invoke(tmp_path, "cancel", "last", "--trial", gone[0], "--trial", gone[1], "--reason", "too expensive")
    assert result.exit_code == 0, result.output
    sweep.run()
    states = [t.state for t in sweep.journal.record.trials.values()]
    assert states == [TrialState.COMPLETED, TrialState.CANCELLED, TrialState.CANCELLED]
    assert len(sweep.ledger.usages.find()) == 1
    assert sweep.journal.record.unfinished == []


def test_a_cancelled_running_trial_stops_at_its_next_report(tmp_path):
    sweep = a_sweep(tmp_path, "search.lr_scaling=[hold]", "search.prompts_per_step=[2]")
    running = next(iter(sweep.journal.record.trials))
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.on_granted(attempt)
    assert invoke(tmp_path, "cancel", "--trial", running).exit_code == 0
    sweep.clock.advance(10_000_000_000)
    sweep.controller.on_tick()
    steps = sweep.executor._trainer.run(attempt.spec, None)
    command = sweep.controller.on_message(attempt, 0, next(steps))
    assert isinstance(command, Stop)
    sweep.controller.on_ended(attempt, STOP_OUTCOMES[command.kind], command.text)
    sweep.controller.on_released(attempt, True)
    assert sweep.journal.record.trials[running].state is TrialState.CANCELLED
    assert sweep.ledger.usages.find()[0].outcome == "CANCELLED"
    assert sweep.controller.done()


def test_a_stopped_sweep_can_be_resumed(tmp_path):
    sweep = a_sweep(tmp_path)
    with sweep_lock(tmp_path / "ledger.db", "smoke-test-1"):
        assert invoke(tmp_path, "stop", "last").exit_code == 0
    sweep.run()
    record = sweep.journal.record
    assert next(t.state for t in record.trials.values()) is TrialState.PREEMPTED
    assert len(record.unfinished) == 3
    commands = [e.body["command"] for e in sweep.ledger.events.read("sweep:smoke-test-1") if e.kind == "command"]
    assert {(c["kind"], c["text"]) for c in commands} == {("requested", "requested")}


def test_a_sweep_whose_driver_died_is_lost_and_cannot_be_stopped(tmp_path):
    a_sweep(tmp_path)
    result = invoke(tmp_path, "stop", "last")
    assert result.exit_code == 2
    assert "smoke-test-1 has no running driver: its driver died; the same command resumes it" in result.output
    (lost,) = json.loads(invoke(tmp_path, "status", "--json").output)["sweeps"]
    with sweep_lock(tmp_path / "ledger.db", "smoke-test-1"):
        (running,) = json.loads(invoke(tmp_path, "status", "--json").output)["sweeps"]
    assert (lost["state"], lost["driver"], running["state"]) == ("lost", None, "running")
    assert f"process {os.getpid()} on " in running["driver"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cancel", "last", "--trial", "unknown"], "has no trial 'unknown'"),
        (["cancel", "nowhere"], "there is no sweep 'nowhere'"),
        (["cancel", "last"], "has no unfinished trial"),
        (["stop", "last"], "has no running driver"),
    ],
)
def test_an_impossible_stop_or_cancel_exits_with_2_and_a_message(tmp_path, arguments: list[str], message: str):
    assert run(compose([*SIMULATED, f"paths.root={tmp_path}", "search.trials=1"])) == 0
    result = invoke(tmp_path, *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_failed_trials_run_again_from_their_checkpoint_when_asked_for(tmp_path):
    crash = [*SIMULATED, f"paths.root={tmp_path}", "retry.crashes=0", "trainer.simulated.crash_at_step=15"]
    assert run(compose(crash)) == 1
    assert run(compose(crash)) == 1  # nothing is unfinished: a new sweep is what auto starts
    assert run(compose([*crash, "resume=failed"])) == 0
    with Ledger.open(tmp_path / "ledger.db", create=False) as ledger:
        records = [load(ledger, s) for s in ("smoke-" + d.name.split("-", 1)[1] for d in tmp_path.glob("smoke-*"))]
    last = max(records, key=lambda r: r.planned_ns)
    for trial in last.trials.values():
        assert [a.outcome for a in trial.attempts] == ["crashed", "completed"]
        assert trial.attempts[1].from_step == 10


@pytest.mark.parametrize(
    ("before", "message"),
    [(False, "no sweep of this plan was ever started"), (True, "no trial of smoke-")],
)
def test_resume_failed_without_failed_trials_is_refused(tmp_path, before: bool, message: str):
    typed = [*SIMULATED, f"paths.root={tmp_path}"]
    if before:
        assert run(compose(typed)) == 0
    with pytest.raises(ConfigError, match=message):
        run(compose([*typed, "resume=failed"]))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("resume=nowhere", "there is no such sweep; there are: none"),
        ("resume=failed", "no sweep of this plan"),
        ("budget.sweep_limit=1 XYZ", "no exchange rate from XYZ to USD"),
    ],
)
def test_a_dry_run_finds_what_a_run_would_refuse(tmp_path, typed: str, message: str):
    with pytest.raises(ConfigError, match=message):
        run(compose([*SIMULATED, f"paths.root={tmp_path}", "dry_run=true", typed]))
    assert not list(tmp_path.iterdir())


def test_a_dry_run_names_the_sweep_that_a_run_would_resume(tmp_path, capsys):
    sweep = a_sweep(tmp_path)
    assert run(replace(sweep.cfg, dry_run=True)) == 0
    assert "smoke-test-1 is not finished: a run resumes it, 3 trials are left" in capsys.readouterr().out


def test_a_resume_reads_earlier_messages_once(tmp_path, monkeypatch):
    sweep = a_sweep(tmp_path, "machine=h100x8")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep.journal, "end_attempt", die)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    whole, read = EventStore.read, []

    def events(store: EventStore, *arguments, **named):
        for event in whole(store, *arguments, **named):
            read.append(event.kind)
            yield event

    with Ledger.open(tmp_path / "ledger.db", sweep.clock) as ledger:
        written = sum(e.kind == "messages" for e in ledger.events.read("sweep:smoke-test-1"))
        for usage in ledger.usages.find():
            ledger.usages.end(usage.key, "LOST")
        monkeypatch.setattr(EventStore, "read", events)
        earlier = earlier_sweeps(sweep.cfg)
        plan = make_plan(sweep.cfg)
        known = sweep_to_resume(sweep.cfg, plan, earlier)
        end_lost_attempts_of_all(ledger, earlier)
        with locked_sweep(sweep.cfg, plan, ledger, known) as (journal, _):
            pass
    assert journal.record.sweep_id == "smoke-test-1"
    assert 0 < written == read.count("messages")


def test_a_changed_plan_is_refused_with_what_changed(tmp_path):
    typed = [*SIMULATED, f"paths.root={tmp_path}"]
    assert run(compose(typed)) == 0
    name = next(tmp_path.glob("smoke-*")).name
    with pytest.raises(ConfigError) as refused:
        run(compose([*typed, f"resume={name}", "algorithm.lr=3e-5", "budget.project=other"]))
    text = str(refused.value)
    assert "algorithm.lr: 1e-05 -> 3e-05" in text
    assert "budget" not in text
    assert "0 of them the same" in text


def test_a_changed_learning_rate_is_changed_again_at_the_same_step_after_a_restart(tmp_path):
    """The command is in the journal; the checkpoint from before it does not know of it."""
    axes = ("search.lr_scaling=[clip_frac]", "search.prompts_per_step=[2]")
    sweep = a_sweep(tmp_path, *axes)
    attempt = sweep.controller.next_attempt()
    assert attempt is not None
    sweep.controller.on_granted(attempt)
    trial = sweep.journal.record.trials[attempt.trial_id]
    steps = sweep.executor._trainer.run(attempt.spec, None)
    moved, command = {}, None
    for sequence in itertools.count():
        message = steps.send(command)
        command = sweep.controller.on_message(attempt, sequence, message)
        if isinstance(command, SetLr):
            assert isinstance(message, StepReport)
            moved[message.step] = command.lr
            break
    sweep.controller.on_ended(attempt, AttemptOutcome.LOST, "killed")
    sweep.controller.on_released(attempt, True)
    journal = Journal(sweep.ledger, "smoke-test-1")
    again = SweepController(
        sweep.cfg, ledger=sweep.ledger, journal=journal, lease_id="lease-1", sweep_dir=tmp_path, view=Silent(), cards=1
    )
    sweep.journal, sweep.controller = journal, again
    sweep.run()
    trial = journal.record.trials[attempt.trial_id]
    assert trial.state is TrialState.COMPLETED
    assert trial.lr_changes == moved
    assert trial.lr == next(iter(moved.values()))


def test_the_console_names_the_resumed_sweep(tmp_path, capsys):
    fault = [*SIMULATED, f"paths.root={tmp_path}", "budget.sweep_limit=0.0002 USD"]
    assert run(compose(fault)) == 4
    capsys.readouterr()
    assert run(compose(fault[:-1])) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "resuming, 3 of 3 trials left" in text
    assert "to come" in text
    assert "of it lost work" in text


def test_a_stored_uri_without_its_password_is_one_message_and_the_other_sweeps_are_delivered(tmp_path):
    uri = "http://ann:pa55@mlflow.example:5000"
    a_sweep(tmp_path, f"tracking.uri={uri}", "search.prompts_per_step=[2]").ledger.close()
    result = invoke(tmp_path, "track")
    assert result.exit_code == 2
    masked = "http://ann:***@mlflow.example:5000"
    assert f"smoke-test-1: the password of MLflow at {masked} is not stored" in result.stderr
    command = f"python -m sweeps track smoke-test-1 --uri '{masked}' --root {tmp_path}"
    assert result.stderr.endswith(f"Type it, for each sweep: {command}\n")
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    assert invoke(tmp_path, "track", "last", "--uri", elsewhere).exit_code == 0


def test_the_same_command_delivers_what_a_driver_killed_after_the_end_has_not_delivered(tmp_path):
    command = [*SIMULATED, f"paths.root={tmp_path}", "search.prompts_per_step=[2]", "search.lr_scaling=[hold]"]
    assert run(compose(command)) == 0
    (tmp_path / "mlflow.db").unlink()  # as if nothing had been delivered
    assert run(compose([*command, "resume=auto"])) == 0
    client = MlflowClient(default_uri(tmp_path))
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert len(runs) == 2
