"""Watches for notices that the provider is about to take the machine back. A thread asks every few seconds.

On a notice, the driver stops every trial with a checkpoint, and the sweep can be resumed. A source that does not answer
gives no notice, and one warning.
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
    """Asks one source for a notice."""

    def notice(self) -> str | None:
        """What is about to happen, for people; None: nothing.

        Raises:
            OSError: the source does not answer.
        """
        ...


@dataclass(frozen=True)
class Ec2Probe:
    """The spot interruption notice of this EC2 instance, two minutes ahead."""

    address: str = metadata.ADDRESS

    def notice(self) -> str | None:
        answer = metadata.ec2("spot/instance-action", self.address)
        if answer is None:
            return None
        try:
            body = json.loads(answer)
            return f"EC2 will {body['action']} this instance at {body['time']}"
        except (ValueError, KeyError, TypeError):
            return f"EC2 has given notice: {answer.strip()[:100]}"


@dataclass(frozen=True)
class GcpProbe:
    """Whether Google Cloud has preempted this instance, thirty seconds ahead."""

    address: str = metadata.ADDRESS

    def notice(self) -> str | None:
        answer = metadata.gcp("instance/preempted", self.address)
        return "Google Cloud has preempted this instance" if (answer or "").strip().upper() == "TRUE" else None


@dataclass(frozen=True)
class FileProbe:
    """A file whose existence is the notice, written by another program."""

    path: Path

    def notice(self) -> str | None:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")[:200]
        except FileNotFoundError:
            return None
        return " ".join(text.split()) or f"{self.path} exists"


@dataclass(frozen=True)
class CommandProbe:
    """A command that gives notice with exit code 0."""

    command: str

    def notice(self) -> str | None:
        try:
            done = subprocess.run(
                self.command, shell=True, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{self.command} did not end within {COMMAND_SECONDS:g} s") from error
        if done.returncode != 0:
            return None
        return " ".join(done.stdout.split())[:200] or f"{self.command} exited with 0"


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


class PreemptionWatch:
    """Asks a probe until it gives notice. Any thread may read `notice`."""

    def __init__(self, probe: Probe | None, warn: Callable[[str], None], every_seconds: float = EVERY_SECONDS) -> None:
        self.notice: str | None = None
        self._probe, self._warn, self._every_seconds = probe, warn, every_seconds
        self._warned = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="preemption", daemon=True)

    def start(self) -> None:
        """Ask once now, then keep asking in the background."""
        if self._probe is not None:
            self.ask()
            self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def ask(self) -> None:
        assert self._probe is not None
        try:
            self.notice = self.notice or self._probe.notice()
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(f"machine.preemption: no answer ({error}); preemption notices cannot be received")

    def _run(self) -> None:
        while self.notice is None and not self._closed.wait(self._every_seconds):
            self.ask()
