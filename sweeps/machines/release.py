"""Bringing a machine up, and giving it back: stopping the trials does not stop its bill.

`take_down` asks for the machine's end, `leave` decides whether it may go and keeps the books of it. A lease is closed
only when somebody has said that its machine is gone; until then it goes on accruing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cost.charges.lease_charge import TAKEN_BACK
from cost.ledger import release_requests
from cost.ledger.ledger import Ledger
from cost.records import IntegrityError, LeaseState
from cost.reports.unaccounted import LEFT
from rl.spec import Stop, StopKind
from sweeps.config.text_values import ReleaseMethod
from sweeps.config.types import ConfigError, MachineConfig, SweepConfig
from sweeps.journal.events import DriverEnd
from sweeps.machines.metadata import ec2_instance_id

COMMAND_SECONDS = 1800.0
POLL_SECONDS, POLLS = 5, 120
"""How often, and how many times, a provider is asked whether the machine is gone."""


@dataclass(frozen=True)
class ReleaseOutcome:
    """What came of asking for a machine's end."""

    confirmed: bool
    text: str


def bring_up(machine: MachineConfig) -> str:
    """Run `machine.up`; the address of a Ray to use, HOST:PORT, where it printed one last, else an empty text.

    Raises:
        ConfigError: it failed. Nothing was leased; what it may have started is its own business to undo.
    """
    try:
        done = _shell(machine.up)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise ConfigError(f"machine.up did not end in {COMMAND_SECONDS:g} s: {_first(str(error))}") from error
    if done.returncode != 0:
        raise ConfigError(
            f"machine.up failed with exit code {done.returncode}: {_last(done.stderr or done.stdout)}; no machine was "
            "leased and nothing was billed here. Look at the provider whether something is left of it"
        )
    last = _last(done.stdout)
    host, _, port = last.rpartition(":")
    return last if host and port.isdigit() and " " not in last else ""


def take_down(machine: MachineConfig, instance_id: str = "", client: Any = None) -> ReleaseOutcome:
    """Ask for the machine's end as `machine.down` says, and wait for word that it is gone.

    A command's exit code 0 is that word. The EC2 hooks ask AWS until it says so. `shutdown` ends this very host and
    cannot be confirmed from here.

    Args:
        instance_id: of an EC2 instance; empty: `machine.instance_id`, or what the metadata service of this host says.
        client: a boto3 EC2 client; None: one of the machine's region, with the credentials that boto3 finds.
    """
    method = machine.down
    assert method is not None
    if method.uses_ec2:
        return _ec2(machine, method, instance_id or machine.instance_id or ec2_instance_id(), client)
    if method.kind == "shutdown":
        command = ["shutdown", "-h", "now"] if os.geteuid() == 0 else ["sudo", "-n", "shutdown", "-h", "now"]
        return _ran(lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False), False)
    return _ran(lambda: _shell(method.command), True)


def is_real(cfg: SweepConfig) -> bool:
    """A simulated trainer's machine is nobody's."""
    return cfg.trainer.name != "simulated"


_MACHINE_STAYS = frozenset({StopKind.INTERRUPTED, StopKind.TERMINATED, StopKind.MACHINE_TAKEN})
"""A person at the terminal may want to look at the machine; the others mean that somebody else ends it."""


def goes(cfg: SweepConfig, end: DriverEnd, stop: Stop | None) -> bool:
    """Whether the machine is released after a driver that ended in this way. `stop`: why the sweep stopped early."""
    stays = end is DriverEnd.INTERRUPTED and stop is not None and stop.kind in _MACHINE_STAYS
    return bool(cfg.machine.down) and is_real(cfg) and not stays


def is_taken(stop: Stop | None) -> bool:
    """Whether the sweep stopped because the machine's provider takes the machine back."""
    return stop is not None and stop.kind is StopKind.MACHINE_TAKEN


def undo_up(machine: MachineConfig, per_hour: str) -> str:
    """A machine was brought up and nothing will run on it: take it down, if that is known how; a sentence on it."""
    if not machine.down:
        return f"machine.up brought {machine.name} up at {per_hour} an hour: give it back at {machine.provider}."
    result = take_down(machine)
    unsure = f"was asked to go, and nobody confirmed it ({per_hour} an hour)"
    word = "is taken down again" if result.confirmed else unsure
    return f"{machine.name}, which machine.up brought up, {word}: {result.text}."


def leave(
    machine: MachineConfig,
    ledger: Ledger,
    lease_id: str,
    sweep_id: str,
    unsaved: Sequence[str],
    before_it_goes: Callable[[], None] = lambda: None,
    down: Callable[[MachineConfig, str], ReleaseOutcome] = take_down,
    per_hour: str = "",
) -> str:
    """Give the machine back if nothing is lost with it and nobody else is on it; a sentence on what came of it.

    Args:
        unsaved: what of the sweep lies on this machine only.
        per_hour: what the machine costs, for a person; empty where that is not known.
        before_it_goes: the last chance to bring the ledger off a machine that may end this process.
    """
    state, goes_on = ledger.lease_state(lease_id), f"goes on at {per_hour} an hour" if per_hour else "goes on costing"
    if state.to_ns is not None:
        return f"The lease of {machine.name} is closed already ({state.how})."
    others = [s for s in state.sweeps if s != sweep_id]
    if others:
        ledger.detach(lease_id, sweep_id, "done")
        return f"{machine.name} was not taken down, and {goes_on}: {', '.join(others)} is still on it."
    if unsaved and not machine.down_unsaved and not (machine.down and machine.down.keeps_disk):
        why = f"{len(unsaved)} things lie on it only, such as {unsaved[0]}"
        release_requests.note_kept(ledger, lease_id, why)
        return (
            f"{machine.name} was NOT taken down, and {goes_on}: {why}. Bring them away and take it down by hand, "
            "or use storage=s3; machine.down_unsaved=true takes it down all the same."
        )
    release_requests.note_requested(ledger, lease_id, str(machine.down))
    before_it_goes()
    try:
        result = down(machine, state.lease.resource_id)
    except Exception as error:  # whatever a provider's client raises: the machine is then still there
        result = ReleaseOutcome(False, f"{type(error).__name__}: {_first(str(error))}")
    why = result.text
    if result.confirmed:
        ledger.close_dead()
        try:
            ledger.close_lease(lease_id, "taken down", released=True)
            return f"{machine.name} is given back: {why}."
        except IntegrityError as error:  # a sweep came to it meanwhile
            why = f"{why}, but {error}"
    release_requests.note_failed(ledger, lease_id, why)
    return (
        f"{release_requests.UNCONFIRMED}: {machine.name} was asked to go, and nobody confirmed it: {why}. "
        f"Its lease {goes_on}; look at {machine.provider}, and once it is gone: "
        f"python -m cost leases close {lease_id} --released"
    )


def still_held(cfg: SweepConfig, state: LeaseState | None, per_hour: str) -> str:
    """What a person should know of the bill at the end of a sweep; empty where there is nothing to know.

    `state` is None where the ledger cannot be read any more.
    """
    machine = cfg.machine
    if not is_real(cfg) or machine.purchase == "own" or (state and state.lease.purchase == "own"):
        return ""
    if state and state.how == TAKEN_BACK:
        return (
            f"{machine.name} is taken back by {machine.provider}, and its lease ends here. Should it stay after all, "
            f"it costs {per_hour} an hour: enter it with python -m cost leases open"
        )
    hint = "" if machine.down else ", or let machine.down do it next time"
    unknown = ""
    if state and state.how in LEFT:
        unknown = (
            " Its lease ends here. If you keep it, what it costs from now on comes into the books by: python -m cost "
            f"leases extend {state.lease.lease_id}"
        )
    return (
        f"Still running: {machine.name} ({machine.sku} at {machine.provider}) costs {per_hour} an hour whether trials "
        f"run or not; this program has not stopped it. Give it back there{hint}.{unknown}"
    )


def what_to_rent(machine: MachineConfig, per_hour: str) -> str:
    """For somebody whose machine is not here."""
    return (
        f"rent {machine.cards} x {machine.card_name} ({machine.sku} at {machine.provider}, {per_hour} an hour) and run "
        "this there, or give machine.up a command that brings one up"
    )


def _ec2(machine: MachineConfig, method: ReleaseMethod, instance_id: str, client: Any) -> ReleaseOutcome:
    if not instance_id:
        return ReleaseOutcome(False, "which EC2 instance it is, is not known: set machine.instance_id=i-...")
    if client is None:
        import boto3

        client = boto3.client("ec2", region_name=machine.region or None)
    from botocore.exceptions import WaiterError

    if method.kind == "stop":
        client.stop_instances(InstanceIds=[instance_id])
        waiter, state = client.get_waiter("instance_stopped"), "stopped"
    else:
        client.terminate_instances(InstanceIds=[instance_id])
        waiter, state = client.get_waiter("instance_terminated"), "terminated"
    try:
        waiter.wait(InstanceIds=[instance_id], WaiterConfig={"Delay": POLL_SECONDS, "MaxAttempts": POLLS})
    except WaiterError as error:
        return ReleaseOutcome(
            False, f"EC2 accepted the request, but does not report {instance_id} as {state!r} yet: {_first(str(error))}"
        )
    return ReleaseOutcome(True, f"EC2 says that {instance_id} is {state}")


def _ran(command: Callable[[], subprocess.CompletedProcess[str]], proves: bool) -> ReleaseOutcome:
    try:
        done = command()
    except (subprocess.TimeoutExpired, OSError) as error:
        return ReleaseOutcome(False, _first(str(error)))
    if done.returncode != 0:
        return ReleaseOutcome(False, f"exit code {done.returncode}: {_last(done.stderr or done.stdout)}")
    return ReleaseOutcome(proves, "its command ended with exit code 0" if proves else "this host was told to shut down")


def _shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS, check=False
    )


def _first(text: str) -> str:
    return (text.strip().splitlines() or ["no reason was given"])[0][:300]


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1].strip()[:300]
