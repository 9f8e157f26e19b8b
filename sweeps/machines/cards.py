"""The cards of this host, held by lock, so that two sweeps on one machine never use the same one.

A lock belongs to a process and goes with it, however it ends. On a cluster, Ray arbitrates and nothing is held here.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sweeps.config.types import ConfigError, MachineConfig

FOLDER = Path(os.environ.get("GRPO_LADDER_LOCKS") or Path(tempfile.gettempdir()) / "grpo-ladder-cards")
"""One place for all sweeps of this host. Whoever sets the variable says that no other sweep uses these cards."""


@contextmanager
def hold_cards(machine: MachineConfig, at_least: int, folder: Path = FOLDER) -> Iterator[tuple[int, ...]]:
    """Hold the host's free cards, all of the machine's if nobody else has any; their indices.

    Raises:
        ConfigError: fewer than `at_least` are free; it names who holds the others.
    """
    folder.mkdir(mode=0o777, exist_ok=True)
    held: list[int] = []
    holders: list[str] = []
    with ExitStack() as stack:
        for index in range(machine.cards):
            descriptor = os.open(folder / f"{machine.device}-{index}", os.O_RDWR | os.O_CREAT, 0o666)
            file = stack.enter_context(os.fdopen(descriptor, "r+", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holders.append(file.read().strip() or "unknown")
                continue
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            held.append(index)
        if len(held) < at_least:
            raise ConfigError(
                f"machine={machine.name}: {len(held)} of its {machine.cards} cards are free on this host and a trial "
                f"needs {at_least}; the others are held by process {', '.join(sorted(set(holders)))}: wait for it, or "
                "end it"
            )
        yield tuple(held)
