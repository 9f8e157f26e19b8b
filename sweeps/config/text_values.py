"""Values that are typed as text and parsed once: durations, releases of a machine, sources of preemption notices.

Each class has `parse`, and `str` gives a text that parses to the same value. `cost.money.Money` is a fourth such class.
`rl.codec` reads and writes such values as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Duration:
    """A time span above 0, typed as a number and its unit: `90s`, `15m`, `2h`."""

    seconds: float

    @staticmethod
    def parse(text: object) -> Duration:
        """Read a duration.

        Raises:
            ValueError: the text is no duration, or the duration is not above 0.
        """
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh])\s*", text) if isinstance(text, str) else None
        if found is None or float(found[1]) <= 0:
            raise ValueError("write a number above 0 and its unit (s, m or h), such as 90s or 15m")
        return Duration(float(found[1]) * _UNIT_SECONDS[found[2]])

    def __str__(self) -> str:
        """In the largest unit of which the duration is a whole number."""
        for unit in ("h", "m"):
            if self.seconds % _UNIT_SECONDS[unit] == 0:
                return f"{self.seconds / _UNIT_SECONDS[unit]:.0f}{unit}"
        return f"{Decimal(repr(self.seconds)).normalize():f}s"


@dataclass(frozen=True)
class ReleaseMethod:
    """How `machine.down` releases a machine: an EC2 action, a shutdown of this host, or a shell command."""

    kind: Literal["stop", "terminate", "shutdown", "command"]
    command: str = ""
    """The shell command; empty for the other kinds."""

    @staticmethod
    def parse(text: object) -> ReleaseMethod:
        """Read `stop`, `terminate`, `shutdown`, or a shell command.

        Raises:
            ValueError: anything that is not a text.
        """
        if not isinstance(text, str) or not text.strip():
            raise ValueError("write stop, terminate, shutdown or a command")
        match text.strip():
            case "stop" | "terminate" | "shutdown" as kind:
                return ReleaseMethod(kind)
        return ReleaseMethod("command", text)

    @property
    def uses_ec2(self) -> bool:
        return self.kind in ("stop", "terminate")

    @property
    def keeps_disk(self) -> bool:
        """Whether the machine's disk survives: a stopped EC2 instance keeps its volumes."""
        return self.kind == "stop"

    def __str__(self) -> str:
        return self.command if self.kind == "command" else self.kind


@dataclass(frozen=True)
class PreemptionSource:
    """The source of notices that the provider is about to take the machine back (`machine.preemption`)."""

    kind: Literal["none", "ec2", "gcp", "file", "command"]
    argument: str = ""
    """The file's path or the shell command; empty for the other kinds."""

    @staticmethod
    def parse(text: object) -> PreemptionSource:
        """Read `none`, `ec2`, `gcp`, `file:PATH` or `command:COMMAND`.

        Raises:
            ValueError: anything else.
        """
        kind, colon, argument = text.partition(":") if isinstance(text, str) else ("", "", "")
        match kind:
            case "none" | "ec2" | "gcp" if not colon:
                return PreemptionSource(kind)
            case "file" | "command":
                if not argument.strip():
                    raise ValueError(f"name a {kind} after the colon, as in {kind}:{kind.upper()}")
                return PreemptionSource(kind, argument)
        raise ValueError("write none, ec2, gcp, file:PATH or command:COMMAND")

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}" if self.argument else self.kind
