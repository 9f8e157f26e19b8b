"""Preemption notices: from HTTP servers in place of the metadata services, from a file, from a command."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cost.ledger.ledger import Ledger
from rl.spec import Command, StepReport
from sweeps.config.build import compose
from sweeps.config.text_values import PreemptionSource
from sweeps.driver.controller import SweepController
from sweeps.driver.driver import run
from sweeps.journal.journal import TrialState, load, sweep_ids
from sweeps.machines.preemption import CommandProbe, Ec2Probe, FileProbe, GcpProbe, PreemptionWatch, Probe, probe_of
from tests.sweeps.in_process import a_sweep


class Cloud:
    """What the metadata service answers; None: 404."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        self.address = ""


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()

    class Metadata(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            cloud.asked.append(("PUT", self.path))
            self._respond("a-token" if self.headers.get("X-aws-ec2-metadata-token-ttl-seconds") else None)

        def do_GET(self) -> None:
            cloud.asked.append(("GET", self.path))
            aws, google = self.headers.get("X-aws-ec2-metadata-token"), self.headers.get("Metadata-Flavor")
            allowed = aws == "a-token" if "meta-data" in self.path else google == "Google"
            self._respond(cloud.answers.get(self.path) if allowed else None)

        def _respond(self, text: str | None) -> None:
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    cloud.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield cloud
    server.shutdown()
    server.server_close()


def test_ec2_is_asked_with_a_token_and_its_notice_has_the_time(cloud):
    assert Ec2Probe(cloud.address).notice() is None
    notice = {"action": "terminate", "time": "2026-11-29T20:18:11Z"}
    cloud.answers["/latest/meta-data/spot/instance-action"] = json.dumps(notice)
    assert Ec2Probe(cloud.address).notice() == "EC2 will terminate this instance at 2026-11-29T20:18:11Z"
    assert cloud.asked[0] == ("PUT", "/latest/api/token")


def test_google_cloud_gives_notice_with_true(cloud):
    cloud.answers["/computeMetadata/v1/instance/preempted"] = "FALSE"
    assert GcpProbe(cloud.address).notice() is None
    cloud.answers["/computeMetadata/v1/instance/preempted"] = "TRUE"
    assert GcpProbe(cloud.address).notice() == "Google Cloud has preempted this instance"


def test_a_file_or_a_command_can_give_notice(tmp_path):
    file, command = FileProbe(tmp_path / "notice"), CommandProbe(f"cat {tmp_path}/notice")
    assert file.notice() is None
    assert command.notice() is None
    (tmp_path / "notice").write_text("the owner needs it\nback\n")
    assert file.notice() == command.notice() == "the owner needs it back"


@pytest.mark.parametrize("probe", [Ec2Probe("http://127.0.0.1:1"), GcpProbe("http://127.0.0.1:1")])
def test_a_service_that_does_not_answer_gives_no_notice_and_one_warning(probe: Probe):
    warnings: list[str] = []
    watch = PreemptionWatch(probe, warnings.append)
    for _ in range(3):
        watch.ask()
    assert watch.notice is None
    assert len(warnings) == 1
    assert "no answer" in warnings[0]


def test_the_probe_follows_the_configuration():
    assert [type(probe_of(PreemptionSource.parse(text))) for text in ("ec2", "gcp", "file:/x", "command:true")] == [
        *(Ec2Probe, GcpProbe, FileProbe, CommandProbe)
    ]
    assert probe_of(PreemptionSource.parse("none")) is None
    assert probe_of(PreemptionSource.parse("file:/x:y")) == FileProbe(Path("/x:y"))


def test_a_notice_preempts_every_trial_with_a_checkpoint(tmp_path):
    asked = []
    sweep = a_sweep(
        tmp_path,
        *("machine=h100x8", "search.trials=8"),
        preemption_notice=lambda: asked[0] if len(asked) > 3 else asked.append("soon"),
    )
    sweep.run()
    trials = list(sweep.journal.record.trials.values())
    assert {t.state for t in trials} == {TrialState.PREEMPTED}
    assert all(t.checkpoint and t.checkpoint.step == t.summary.step for t in trials)
    assert all("notice: soon" in t.attempts[-1].message for t in trials)
    assert all(u.to_ns is not None for u in sweep.ledger.usages.find())
    assert sweep.controller.done()


@pytest.fixture(scope="module")
def tracking(tmp_path_factory) -> str:
    """One MLflow store for all tests: creating one takes seconds."""
    return f"tracking.uri=sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def test_a_sweep_with_a_preemption_notice_exits_130_prints_the_reason_and_can_be_resumed(tmp_path, tracking, capsys):
    (tmp_path / "notice").write_text("terminate at noon")
    root = tmp_path / "runs"
    notice = f"machine.preemption=file:{tmp_path}/notice"
    assert run(compose(["+stage=smoke", "trainer=simulated", f"paths.root={root}", tracking, notice])) == 130
    text = capsys.readouterr().out
    assert "terminate at noon" in text
    assert "Resume:" in text
    with Ledger.open(root / "ledger.db", create=False, read_only=True) as ledger:
        assert [state.how for state in ledger.leases.find()] == ["taken_back"], "some providers then bill less"
        record = load(ledger, sweep_ids(ledger)[0])
    assert (record.ended, len(record.unfinished)) == ("interrupted", 3)


def test_sigterm_preempts_trials_with_a_checkpoint(tmp_path, tracking, monkeypatch, capsys):
    first = [True]

    def terminated(controller: SweepController, *arguments) -> Command:
        if isinstance(arguments[-1], StepReport) and first:
            first.clear()
            os.kill(os.getpid(), signal.SIGTERM)
        return on_message(controller, *arguments)

    on_message = SweepController.on_message
    monkeypatch.setattr(SweepController, "on_message", terminated)
    typed = ["+stage=smoke", "trainer=simulated", "search.prompts_per_step=[2]", f"paths.root={tmp_path}", tracking]
    assert run(compose(typed)) == 130
    assert "Stopping (the driver received SIGTERM)" in capsys.readouterr().out
    with Ledger.open(tmp_path / "ledger.db", create=False, read_only=True) as ledger:
        (trial,) = load(ledger, sweep_ids(ledger)[0]).trials.values()
        assert [state.how for state in ledger.leases.find()] == ["interrupted"]
    assert trial.state is TrialState.PREEMPTED
    assert trial.checkpoint is not None
    assert trial.checkpoint.step == trial.summary.step == 1
    assert run(compose(typed)) == 0


def test_a_machine_idle_for_max_idle_stops_the_sweep(tmp_path):
    sweep = a_sweep(
        tmp_path,
        *("machine.max_idle=5m", "trainer.simulated.crash_at_step=2", "trainer.simulated.faults_every_attempt=true"),
        *("retry.crashes=9", "retry.backoff_seconds=400"),
    )
    sweep.run()
    assert sweep.controller.stopped is not None
    assert "nothing has run for machine.max_idle=5m" in sweep.controller.stopped.text
    assert len(sweep.journal.record.unfinished) == 3
