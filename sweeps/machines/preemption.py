"""Notices that the machine is about to be taken away, from whoever gives them: asked every few seconds, in a thread.

On a notice the driver tells every trial to write a checkpoint and end; the sweep can be resumed. A service that does
not answer is no notice, and is complained of once.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sweeps.config.text_values import PreemptionSource
from sweeps.machines import metadata

EVERY_SECONDS = 5.0
COMMAND_SECONDS = 10.0


class Probe(Protocol):
    """Where notices come from."""

    def notice(self) -> str | None:
        """What is about to happen, for a person; None: nothing is.

        Raises:
            OSError: nobody answers.
        """
        ...


@dataclass(frozen=True)
class Ec2Probe:
    """The spot interruption notice of this instance, two minutes ahead."""

    address: str = metadata.ADDRESS

    def notice(self) -> str | None:
        told = metadata.ec2("spot/instance-action", self.address)
        if told is None:
            return None
        try:
            body = json.loads(told)
            return f"EC2 will {body['action']} this instance at {body['time']}"
        except (ValueError, KeyError, TypeError):
            return f"EC2 has given notice: {told.strip()[:100]}"


@dataclass(frozen=True)
class GcpProbe:
    """Whether this instance of Google Cloud has been preempted; thirty seconds are left then."""

    address: str = metadata.ADDRESS

    def notice(self) -> str | None:
        told = metadata.gcp("instance/preempted", self.address)
        return "Google Cloud has preempted this instance" if (told or "").strip().upper() == "TRUE" else None


@dataclass(frozen=True)
class FileProbe:
    """A file that somebody else's hook writes."""

    path: Path

    def notice(self) -> str | None:
        try:
            words = self.path.read_text(encoding="utf-8", errors="replace")[:200].split()
        except FileNotFoundError:
            return None
        return " ".join(words) or f"{self.path} is there"


@dataclass(frozen=True)
class CommandProbe:
    """A command whose exit code 0 is a notice."""

    command: str

    def notice(self) -> str | None:
        try:
            done = subprocess.run(
                self.command, shell=True, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{self.command} did not end in {COMMAND_SECONDS:g} s") from error
        if done.returncode != 0:
            return None
        return " ".join(done.stdout.split())[:200] or f"{self.command} ended with exit code 0"


def probe_of(source: PreemptionSource) -> Probe | None:
    """The probe that asks this source; None for `none`."""
    match source.kind:
        case "ec2":
            return Ec2Probe()
        case "gcp":
            return GcpProbe()
        case "file":
            return FileProbe(Path(source.argument).expanduser())
        case "command":
            return CommandProbe(source.argument)
        case "none":
            return None


class Watch:
    """Asks a probe until it gives notice. `notice` is for any thread to read."""

    def __init__(self, probe: Probe | None, warn: Callable[[str], None], every_seconds: float = EVERY_SECONDS) -> None:
        self.notice: str | None = None
        self._probe, self._warn, self._every_seconds = probe, warn, every_seconds
        self._complained = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="preemption", daemon=True)

    def start(self) -> None:
        """Ask once, at once, and go on asking in the background."""
        if self._probe is not None:
            self.ask()
            self._thread.start()

    def close(self) -> None:
        self._over.set()

    def ask(self) -> None:
        assert self._probe is not None
        try:
            self.notice = self.notice or self._probe.notice()
        except OSError as error:
            if not self._complained:
                self._complained = True
                self._warn(f"machine.preemption: nobody answers ({error}); notices will not be heard until it does")

    def _run(self) -> None:
        while self.notice is None and not self._over.wait(self._every_seconds):
            self.ask()
