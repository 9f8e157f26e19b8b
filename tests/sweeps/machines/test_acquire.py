"""A whole driver, its machine brought up before and given back after: simulated trials, the machine taken for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cost.clock import FakeClock
from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.ledger.sweep_lock import sweep_lock
from sweeps.config.build import compose
from sweeps.config.types import ConfigError
from sweeps.driver import driver
from sweeps.driver.driver import run
from sweeps.machines import acquire, machine, release
from tests.sweeps.machines.test_release import RENTED


@pytest.fixture(autouse=True, scope="module")
def mlflow_store(tmp_path_factory):
    """One for all of them: a fresh one takes seconds to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDING_MLFLOW", f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")
        yield


@pytest.fixture(autouse=True)
def for_real(monkeypatch):
    monkeypatch.setattr(release, "is_real", lambda cfg: True)
    for module in (driver, acquire, machine):  # one for all of them, as a real one is
        monkeypatch.setattr(module, "machine_instance", lambda cfg, sweep_id: "box")


def configuration(folder: Path, *more: str):
    small = ["trainer=simulated", "stage.steps=2", "search.prompts_per_step=[2]", f"paths.root={folder}/runs"]
    return compose([*RENTED, *small, f"tracking.uri={os.environ['HOLDING_MLFLOW']}", *more])


def leases(folder: Path):
    with Ledger.open(folder / "runs" / "ledger.db", create=False, read_only=True) as ledger:
        return ledger.leases()


def test_after_the_last_trial_the_machine_goes_and_its_lease_ends_as_released(tmp_path, capsys):
    up = f'machine.up="touch {tmp_path}/up"'
    down = f'machine.down="test -e {tmp_path}/up && touch {tmp_path}/gone"'
    code = run(configuration(tmp_path, up, down, "machine.down_unsaved=true"))
    told = " ".join(capsys.readouterr().out.split())
    assert code == 0, told
    assert (tmp_path / "gone").exists()
    assert "Machine: cpu is given back" in told
    assert [(lease.to_ns is not None, lease.released) for lease in leases(tmp_path)] == [(True, True)]


def test_what_lies_on_the_machine_only_keeps_it_and_its_lease_goes_on(tmp_path, capsys):
    code = run(configuration(tmp_path, f'machine.down="touch {tmp_path}/gone"'))
    told = " ".join(capsys.readouterr().out.split())
    assert code == 0, told
    assert "NOT taken down, and goes on at" in told
    assert not (tmp_path / "gone").exists()
    assert [lease.to_ns for lease in leases(tmp_path)] == [None]


def test_a_machine_that_came_up_for_a_sweep_that_its_budget_refuses_goes_again(tmp_path, capsys):
    down = f'machine.down="touch {tmp_path}/gone"'
    code = run(configuration(tmp_path, "machine.up=hostname", down, 'budget.sweep_limit="0.000001 USD"'))
    told = " ".join(capsys.readouterr().out.split())
    assert code == 4, told
    assert "is taken down again" in told
    assert (tmp_path / "gone").exists()
    assert leases(tmp_path) == []


def test_without_down_every_end_says_what_is_still_running_and_its_price(tmp_path, capsys):
    code = run(configuration(tmp_path))
    told = " ".join(capsys.readouterr().out.split())
    assert code == 0, told
    assert "Still running: cpu (runpod-h100 at runpod) costs" in told
    assert "USD an hour" in told


def test_a_machine_that_does_not_come_up_leaves_no_lease_and_no_bill(tmp_path):
    with pytest.raises(ConfigError, match=r"machine.up failed with exit code 7: no capacity"):
        run(configuration(tmp_path, 'machine.up="echo no capacity >&2; exit 7"'))
    assert not (tmp_path / "runs" / "ledger.db").exists() or leases(tmp_path) == []


def test_a_machine_that_came_up_for_a_sweep_that_cannot_run_on_it_goes_again(tmp_path):
    spoilt = f'machine.up="mkdir -p {tmp_path}/runs && echo no ledger > {tmp_path}/runs/ledger.db"'
    with pytest.raises(ConfigError, match=r"ledger.db(.|\n)*is taken down again"):
        run(configuration(tmp_path, spoilt, f'machine.down="touch {tmp_path}/gone"'))
    assert (tmp_path / "gone").exists()


def test_no_machine_comes_up_for_a_sweep_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="there is no such sweep"):
        run(configuration(tmp_path, f'machine.up="touch {tmp_path}/up"', "resume=smoke-000000-9"))
    assert not (tmp_path / "up").exists()


def test_the_next_sweep_takes_down_what_stayed_for_one_that_has_ended(tmp_path, capsys):
    run(configuration(tmp_path, 'machine.down="exit 1"', "machine.down_unsaved=true"))
    assert "RELEASE_UNCONFIRMED" in capsys.readouterr().out
    run(configuration(tmp_path, f'machine.down="touch {tmp_path}/gone"', "machine.down_unsaved=true", "resume=never"))
    assert "is given back" in capsys.readouterr().out
    assert [(lease.to_ns is not None, lease.released) for lease in leases(tmp_path)] == [(True, True)]


def test_a_machine_that_another_sweep_is_giving_back_is_not_taken_up(tmp_path):
    run(configuration(tmp_path, 'machine.down="exit 1"', "machine.down_unsaved=true"))
    ledger = tmp_path / "runs" / "ledger.db"
    with Ledger.open(ledger) as opened:
        (state,) = opened.leases()
        last_ns = max(
            event.at_ns for event in opened.events(release_requests.STREAM)
        )  # by the sweep's clock, which ran ahead
    with Ledger.open(ledger, FakeClock(utc=last_ns + 1)) as opened:
        release_requests.note_requested(opened, state.lease.lease_id, "down")
    again = configuration(tmp_path, "resume=never")
    with sweep_lock(ledger, state.sweeps[0]), pytest.raises(ConfigError, match=r"\(process \d+ .*\) is giving it back"):
        run(again)
    assert run(again) == 0
