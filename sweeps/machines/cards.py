"""The cards that a sweep may use: cards of this host, each locked by one process, or those of a Ray cluster.

Two sweeps on one host never use the same card. A lock belongs to a process and ends with it. On a cluster, Ray assigns
the cards and nothing is locked here.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sweeps.config.types import ConfigError, MachineConfig, SweepConfig

LOCK_FOLDER = Path(os.environ.get("GRPO_LADDER_LOCKS") or Path(tempfile.gettempdir()) / "grpo-ladder-cards")
"""The lock files of all sweeps of this host. Set GRPO_LADDER_LOCKS only where no other sweep uses the same cards."""


def ray_address(cfg: SweepConfig) -> str:
    """The address of the Ray that runs the trials; `local` for a new Ray on this host."""
    cluster = cfg.machine.cluster
    return os.environ.get("RAY_ADDRESS", "local") if cluster == "auto" else cluster


@contextmanager
def lock_cards(
    machine: MachineConfig, at_least: int, sweep: str, folder: Path | None = None
) -> Iterator[tuple[int, ...]]:
    """Lock the host's free cards, at most those of the machine; their indices.

    Args:
        sweep: names the sweep that locks the cards, for the message that other sweeps print.
        folder: of the lock files; None: `LOCK_FOLDER`.

    Raises:
        ConfigError: fewer than `at_least` cards are free; the message names the sweeps that use the others and who
            runs them.
    """
    folder = folder or LOCK_FOLDER
    folder.mkdir(mode=0o777, exist_ok=True)
    locked: list[int] = []
    owners: list[str] = []
    with ExitStack() as stack:
        for index in range(machine.cards):
            descriptor = os.open(folder / f"{machine.device}-{index}", os.O_RDWR | os.O_CREAT, 0o666)
            file = stack.enter_context(os.fdopen(descriptor, "r+", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owners.append(file.read().strip() or "unknown")
                continue
            file.truncate(0)
            file.write(f"{sweep}, run by {getpass.getuser()} as process {os.getpid()}")
            file.flush()
            locked.append(index)
        if len(locked) < at_least:
            raise ConfigError(
                f"machine={machine.name}: {len(locked)} of its {machine.cards} cards are free on this host and a trial "
                f"needs {at_least} (search.cards_per_trial). In use by {'; '.join(sorted(set(owners)))}. Wait "
                "until the cards are free, or choose another machine"
            )
        yield tuple(locked)
