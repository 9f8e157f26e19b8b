"""Sweeps on a real Ray cluster of several nodes on this host: refused, let in by token, a node lost in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cost.ledger.ledger import Ledger
from rl.spec import Command, Event, StepReport
from sweeps.driver.controller import SweepController
from sweeps.executors import Attempt
from sweeps.journal.journal import TrialState, load, sweep_ids
from tests.e2e.test_real_sweep import SMALL
from tests.e2e.test_sweep_command import ROOT, environment, module
from tests.sweeps.in_process import Silent

TOKEN = "0123456789abcdef0123456789abcdef"
NODE = {"num_cpus": 1, "resources": {"card": 1}, "object_store_memory": 100 * 1024**2}


KEEPER = """
import json, sys
from ray.cluster_utils import Cluster
head, node = json.loads(sys.argv[1])
started = Cluster(initialize_head=True, head_node_args=head)
worker = started.add_node(**node)
print("address", started.address, flush=True)
for _ in sys.stdin:
    started.remove_node(worker, allow_graceful=False)
started.shutdown()
"""


@dataclass(frozen=True)
class RealCluster:
    """A head with one card and a node with another, which want a token."""

    keeper: subprocess.Popen[str]
    address: str

    def lose_node(self) -> None:
        assert self.keeper.stdin is not None
        self.keeper.stdin.write("lose\n")
        self.keeper.stdin.flush()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with started() as found:
        yield found


@contextmanager
def started() -> Iterator[RealCluster]:
    """Kept by a process of its own: Ray reads modes and tokens once, and this one may have loaded it already."""
    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 4, "health_check_timeout_ms": 4000}
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, json.dumps([NODE | {"_system_config": quick}, NODE])],
        env=kept | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    lines = []
    for line in keeper.stdout:
        lines.append(line)
        if line.startswith("address "):
            break
    assert "".join(lines[-1:]).startswith("address "), "".join(lines)
    yield RealCluster(keeper, lines[-1].split()[1])
    keeper.stdin.close()
    keeper.wait(timeout=60)


def python(code: str, cluster, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own: Ray reads modes and tokens once."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", code, cluster.address],
        cwd=ROOT,
        env=kept | {"HOME": str(folder)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


JOIN = """
import sys
from sweeps.config.types import ConfigError
from sweeps.executors.cluster import joined
device, cards = "{device}", {cards}
try:
    with joined(sys.argv[1], device, cards, "machine.cluster=auto") as usable:
        print("usable:", usable)
except ConfigError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}, "usable: 2"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN[::-1]}, "needs a token, and the token of this process"),
        ({}, "needs a token, and none was sent: set RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "token"}, "there is no token: put the cluster's token into RAY_AUTH_TOKEN"),
    ],
    ids=["right", "wrong", "no mode", "no token"],
)
def test_a_cluster_with_tokens_refuses_a_wrong_or_missing_token_with_the_remedy(
    cluster, tmp_path, environment: dict[str, str], text: str
):
    result = python(JOIN.format(device="cpu", cards=1), cluster, tmp_path, **environment)
    assert text in result.stdout, result.stdout + result.stderr
    assert TOKEN not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("device", "cards", "text"),
    [
        ("cpu", 2, "a trial needs a CPU and 2 x card of one node (search.cards_per_trial), and there is"),
        ("cuda", 1, "a trial needs a CPU and 1 x GPU"),
    ],
)
def test_a_trial_that_fits_no_node_is_refused_with_what_it_needs_and_what_the_nodes_have(
    cluster, tmp_path, device: str, cards: int, text: str
):
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    result = python(JOIN.format(device=device, cards=cards), cluster, tmp_path, **secret)
    assert f"refused: machine.cluster=auto: the Ray at {cluster.address} can never run a trial: {text}" in (
        result.stdout
    ), result.stderr
    assert ("1 x card, 1 x CPU" if device == "cpu" else "0 x GPU, 1 x CPU") in result.stdout


def test_an_address_without_a_server_is_refused_at_once(tmp_path):
    class Nowhere:
        address = "127.0.0.1:1"

    result = python(JOIN.format(device="cpu", cards=1), Nowhere, tmp_path)
    assert "no Ray answers at 127.0.0.1:1; start one there" in result.stdout, result.stderr


def test_a_node_that_is_lost_preempts_its_attempts_and_the_other_nodes_finish_the_sweep(cluster, tmp_path):
    """The last test of this cluster: it has one node less afterwards."""
    code = f"from tests.e2e.test_cluster import slow_sweep; slow_sweep({cluster.address!r}, {str(tmp_path)!r})"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        cwd=ROOT,
        env=kept | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines, at_work = [], set()
    for line in process.stdout:
        lines.append(line)
        if line.startswith("did step 2 of "):
            at_work.add(line)
        if len(at_work) == 2:
            break
    cluster.lose_node()
    for line in process.stdout:
        lines.append(line)
        if line == "1 cards now\n":
            break
    (tmp_path / "go on").touch()
    lines += list(process.stdout)
    assert process.wait(timeout=120) == 0, "".join(lines)

    with Ledger.open(tmp_path / "ledger.db", create=False, read_only=True) as ledger:
        record = load(ledger, "smoke-test-1")
        usages = ledger.usages.find()
        warnings = [e.body["text"] for e in ledger.events.read("sweep:smoke-test-1") if e.kind == "warning"]
    assert {t.state for t in record.trials.values()} == {TrialState.COMPLETED}, "".join(lines)
    attempts = [(a.outcome, a.message) for t in record.trials.values() for a in t.attempts]
    assert sorted(outcome or "" for outcome, _ in attempts) == ["completed"] * len(record.trials) + ["preempted"]
    assert "its node was lost" in next(message for outcome, message in attempts if outcome == "preempted")
    assert "trials can use 1 cards now, 2 before" in warnings
    assert all(u.to_ns is not None for u in usages)
    assert record.unreleased == []


@pytest.mark.slow  # a cluster of its own, and real trials on it, one of them twice: two minutes
@pytest.mark.timeout(1800)
def test_the_command_runs_real_trials_on_a_cluster_that_loses_a_node_and_finishes(tmp_path):
    with started() as own:
        secret = {"RAY_ADDRESS": own.address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        command = [sys.executable, "-u", str(ROOT / "sweep.py"), *SMALL, "stage.steps=60"]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        settings = {"cwd": tmp_path, "env": environment(tmp_path) | secret, **output}
        refused = subprocess.run([*command, "machine=h100"], **settings, timeout=300, check=False)
        assert refused.returncode == 2, refused.stdout
        assert "can never run a trial: a trial needs a CPU and 1 x GPU" in " ".join(refused.stdout.split())
        assert not (tmp_path / "runs" / "ledger.db").exists(), "nothing was leased"

        rented = ["machine.purchase=on_demand", "machine.sku=runpod-h100", "machine.provider=runpod", "machine.watts=0"]
        two = [
            "machine.cards=2",
            "search.cards_per_trial=1",
            "search.prompts_per_step=[2,4]",
            "search.lr_scaling=[hold]",
        ]
        process = subprocess.Popen([*command, *rented, *two], **settings)
        assert process.stdout is not None
        lines, at_work = [], set()
        for line in process.stdout:
            lines.append(line)
            if "step   3/60" in line:
                at_work.add(line[:10])
            if len(at_work) == 2:
                break
        own.lose_node()
        lines += list(process.stdout)
        assert process.wait(timeout=60) == 0, "".join(lines)
    output = "".join(lines)
    assert "preempted, will be retried: its node was lost" in output
    assert "trials can use 1 cards now, 2 before. The lease stays open at the price of the whole cluster" in output
    with Ledger.open(tmp_path / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        (sweep_id,) = sweep_ids(ledger)
        record = load(ledger, sweep_id)
    attempts = [[(a.outcome, a.from_step > 0) for a in t.attempts] for t in record.trials.values()]
    assert sorted(map(len, attempts)) == [1, 2]
    assert [("preempted", False), ("completed", True)] in attempts, "it went on from its checkpoint"
    assert module(tmp_path, "cost", "check").returncode == 0


def slow_sweep(address: str, folder: str) -> None:
    """A sweep of simulated trials that wait for a file after their second step. Runs in a process of its own."""
    from sweeps.executors.attempt_actor import AttemptActor
    from sweeps.executors.cluster import joined
    from sweeps.executors.ray_tune import RayTuneExecutor
    from tests.sweeps.in_process import a_sweep

    class Waiting(AttemptActor):
        messages = 0

        def step(self):
            while self.messages > 5 and not (Path(folder) / "go on").exists():
                time.sleep(0.05)
            self.messages += 1
            return super().step()

    class Telling(SweepController):
        def on_message(self, attempt: Attempt, sequence: int, message: Event) -> Command:
            if isinstance(message, StepReport):
                print(f"did step {message.step} of {attempt}", flush=True)
            return super().on_message(attempt, sequence, message)

        def on_cards(self, cards: int) -> None:
            super().on_cards(cards)
            print(f"{cards} cards now", flush=True)

    sweep = a_sweep(Path(folder), "machine.cards=2", "search.cards_per_trial=1")
    settings = {"lease_id": "lease-1", "sweep_dir": Path(folder), "view": Silent(), "cards": 2}
    controller = Telling(sweep.cfg, ledger=sweep.ledger, journal=sweep.journal, **settings)
    with joined(address, "cpu", 1, "here") as usable:
        executor = RayTuneExecutor(cards=range(usable), device="cpu", logs=Path(folder) / "ray")
        executor.actor = Waiting
        executor.run(controller)
        executor.close()
