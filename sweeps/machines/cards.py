"""The cards that a sweep may use: cards of this host, each locked by one process, or those of a Ray cluster.

Two sweeps on one host never use the same card. A lock belongs to a process and ends with it. On a cluster, Ray assigns
the cards and nothing is locked here.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path

from sweeps.config.types import ConfigError, MachineConfig, SweepConfig

LOCK_FOLDER = Path(
    os.environ.get("GRPO_LADDER_LOCKS") or Path(tempfile.gettempdir()) / f"grpo-ladder-cards-{os.geteuid()}"
)
"""The lock files of all sweeps of this user and host. Set GRPO_LADDER_LOCKS only where no other sweep uses the same
cards."""


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
    _make_private(folder)
    locked: list[int] = []
    owners: list[str] = []
    with ExitStack() as stack:
        for index in range(machine.cards):
            file = stack.enter_context(_open(folder / f"{machine.device}-{index}"))
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


def _make_private(folder: Path) -> None:
    """Make a folder that only this user can read and write. Everybody can write into the folder around it.

    Raises:
        ConfigError: the folder cannot be made, or is a link or another user's.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(0, "it is a link, or it belongs to another user")
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} of the cards' locks cannot be used: {error.strerror}. Remove it, or name another "
            "folder with GRPO_LADDER_LOCKS"
        ) from error


def _open(path: Path) -> TextIOWrapper:
    """Open a lock file, never through a link. Raises ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the lock file {path} cannot be used: {error.strerror}. Remove it") from error
    return os.fdopen(descriptor, "r+", encoding="utf-8")
