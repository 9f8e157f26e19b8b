"""Who can reach a Ray that this program starts: its servers listen on loopback, and its token is this user's alone.

Tested in tests/sweeps/executors/test_ray_tune.py and tests/sweeps/executors/test_local_ray.py.
"""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's switch for more than one host. Without it, as on macOS, Ray takes loopback for this host's address."""


@contextmanager
def loopback_only() -> Iterator[None]:
    """Within it, a Ray that is started listens on loopback only. A Ray that is joined must be joined outside of it."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before, enabled = os.environ.get(_CLUSTERS), constants.ENABLE_RAY_CLUSTER
    os.environ[_CLUSTERS] = "0"  # for the processes that Ray starts
    constants.ENABLE_RAY_CLUSTER = False  # for this process: Ray reads the variable when it is imported
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = enabled
        if before is None:
            del os.environ[_CLUSTERS]
        else:
            os.environ[_CLUSTERS] = before


def make_token_private(folder: Path | None = None) -> None:
    """Make the token that Ray reads by default, or restrict an existing one: Ray would make it readable for everybody.

    A token that the environment names is left as it is, and so is a home folder that cannot be written.

    Args:
        folder: of the token; None: `~/.ray`.
    """
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    with suppress(OSError, RuntimeError):
        folder = folder or Path.home() / ".ray"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        token = folder / "auth_token"
        with suppress(FileExistsError):
            descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        token.chmod(0o600)
