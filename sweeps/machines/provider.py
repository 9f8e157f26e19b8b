"""Runs `machine.up` and `machine.down`: shell commands, EC2 actions, or a shutdown of this host. Writes no ledger.

Tested in tests/sweeps/machines/test_release.py.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweeps.config.text_values import ReleaseMethod
from sweeps.config.types import ConfigError, MachineConfig
from sweeps.machines.metadata import ec2_instance_id

COMMAND_SECONDS = 1800.0
POLL_SECONDS, POLLS = 5, 120
"""Interval and number of the queries whether an EC2 instance has stopped."""


@dataclass(frozen=True)
class ReleaseOutcome:
    """The result of a release request. `confirmed`: the machine is gone."""

    confirmed: bool
    text: str


def start_machine(machine: MachineConfig) -> str:
    """Run `machine.up`; the HOST:PORT of a Ray, if the command's last line is one, else an empty text.

    Raises:
        ConfigError: the command failed. No lease is open; what the command started must be cleaned up by hand.
    """
    try:
        done = _shell(machine.up)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise ConfigError(f"machine.up did not end within {COMMAND_SECONDS:g} s: {first_line(str(error))}") from error
    if done.returncode != 0:
        raise ConfigError(
            f"machine.up failed with exit code {done.returncode}: {_last_line(done.stderr or done.stdout)}; no lease "
            "was opened and nothing was billed here. Check at the provider whether something is still running"
        )
    last = _last_line(done.stdout)
    host, _, port = last.rpartition(":")
    return last if host and port.isdigit() and " " not in last else ""


def stop_machine(machine: MachineConfig, instance_id: str = "", client: Any = None) -> ReleaseOutcome:
    """Release the machine with `machine.down`, and wait for the confirmation.

    A command confirms with exit code 0. EC2 is queried until it reports the instance's end. A shutdown of this host
    cannot be confirmed.

    Args:
        instance_id: of an EC2 instance; empty: `machine.instance_id`, or this host's id from the metadata service.
        client: a boto3 EC2 client; None: one for the machine's region, with boto3's own credentials.
    """
    method = machine.down
    assert method is not None
    if method.uses_ec2:
        return _stop_ec2(machine, method, instance_id or machine.instance_id or ec2_instance_id(), client)
    if method.kind == "shutdown":
        command = ["shutdown", "-h", "now"] if os.geteuid() == 0 else ["sudo", "-n", "shutdown", "-h", "now"]
        return _outcome(
            lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False),
            ReleaseOutcome(False, "this host is shutting down, which cannot be confirmed from here"),
        )
    return _outcome(lambda: _shell(method.command), ReleaseOutcome(True, "its command exited with 0"))


def _stop_ec2(machine: MachineConfig, method: ReleaseMethod, instance_id: str, client: Any) -> ReleaseOutcome:
    if not instance_id:
        return ReleaseOutcome(False, "the EC2 instance id is unknown: set machine.instance_id=i-...")
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
        reason = first_line(str(error))
        return ReleaseOutcome(
            False, f"EC2 accepted the request, but does not report {instance_id} as {state} yet: {reason}"
        )
    return ReleaseOutcome(True, f"EC2 reports {instance_id} as {state}")


def _outcome(command: Callable[[], subprocess.CompletedProcess[str]], success: ReleaseOutcome) -> ReleaseOutcome:
    try:
        done = command()
    except (subprocess.TimeoutExpired, OSError) as error:
        return ReleaseOutcome(False, first_line(str(error)))
    if done.returncode != 0:
        return ReleaseOutcome(False, f"exit code {done.returncode}: {_last_line(done.stderr or done.stdout)}")
    return success


def _shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS, check=False
    )


def first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[0][:300]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1].strip()[:300]
