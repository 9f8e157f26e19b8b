"""The Ray cluster that runs the trials: starts or joins one, and counts the cards of its nodes.

Ray reads its tokens itself, from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or `~/.ray/auth_token`; they never appear in a
message.

Tested in tests/sweeps/executors/test_local_ray.py and tests/e2e/test_cluster.py.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sweeps.config.types import ConfigError
from sweeps.executors.ray_access import loopback_only, make_token_private

CARD = "card"
"""The custom Ray resource that stands for a card where there are no GPUs."""

START_TRIES = 3
"""How often starting a local Ray is tried."""

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # 15 by default: beside other programs, a trial would get almost no CPU
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_THRESHOLD_S": "30",
    # Otherwise attempts start one after the other. The controller decides how many run at once.
    "TUNE_MAX_PENDING_TRIALS_PG": "1000",
}


@dataclass(frozen=True)
class Node:
    """A node of the cluster that is alive."""

    node_id: str
    address: str
    cards: int
    cpus: float


def resource_of(device: str) -> str:
    """The name of Ray's resource for a card of this device."""
    return "GPU" if device == "cuda" else CARD


def start_local(cards: Sequence[int], device: str) -> None:
    """Start a Ray on this host with these cards, for this host only.

    After a failed start, its processes are ended and it starts again.
    """
    local: dict[str, Any] = {"include_dashboard": False}
    if device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, cards))
        local["num_gpus"] = len(cards)
    else:
        local["resources"] = {CARD: len(cards)}
    import psutil

    make_token_private()
    before = set(psutil.Process().children(recursive=True))
    for left in reversed(range(START_TRIES)):
        try:
            with loopback_only():
                _init("local", **local)
            return
        except Exception:  # Ray gives its processes 30 s to start: too short on a busy machine
            for process in set(psutil.Process().children(recursive=True)) - before:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            if not left:
                raise


@contextmanager
def joined(address: str, device: str, cards_per_trial: int, named_by: str) -> Iterator[int]:
    """Connects to the Ray at `address`; yields how many of its cards trials of this size can use.

    Args:
        named_by: the key and value that give the address, for messages.

    Raises:
        ConfigError: there is no Ray, it refuses the token, or no node can ever run a trial.
    """
    import ray

    no_answer = (
        f"{named_by}: no Ray answers at {address}; start one there with `ray start --head`, or use "
        "machine.cluster=local to start one on this host"
    )
    if not _listens(address):
        raise ConfigError(no_answer)
    _check_token(address, named_by)
    try:
        _init(address)
    except ConnectionError as error:
        raise ConfigError(no_answer) from error
    try:
        found = alive_nodes(device)
        usable = usable_cards(found, cards_per_trial)
        if not usable:
            raise ConfigError(_never_fits_text(found, device, cards_per_trial, f"{named_by}: the Ray at {address}"))
        yield usable
    finally:
        if ray.is_initialized():
            ray.shutdown()


def alive_nodes(device: str) -> list[Node]:
    """The nodes that Ray reports as alive."""
    import ray

    kind = resource_of(device)
    return [
        Node(n["NodeID"], n["NodeManagerAddress"], int(n["Resources"].get(kind, 0)), n["Resources"].get("CPU", 0.0))
        for n in ray.nodes()
        if n["Alive"]
    ]


def usable_cards(nodes: Sequence[Node], cards_per_trial: int) -> int:
    """Cards that trials can use at once: a trial needs all its cards, and a CPU, on one node."""
    trials = [min(n.cards // cards_per_trial, int(n.cpus)) for n in nodes]
    return sum(trials) * cards_per_trial


def named(node_id: str) -> str:
    """A node for a person: its address, and the start of its id since nodes may share one. Empty id: none yet."""
    return f"{_address(node_id) or 'node'} ({node_id[:8]})" if node_id else "before it began"


def on_node(node_id: str) -> dict[str, float]:
    """A small amount of the resource that only this node has, to place something there."""
    address = _address(node_id)
    return {f"node:{address}": 0.001} if address else {}


def _address(node_id: str) -> str | None:
    import ray

    return next((n["NodeManagerAddress"] for n in ray.nodes() if n["NodeID"] == node_id), None)


def _never_fits_text(nodes: Sequence[Node], device: str, cards_per_trial: int, where: str) -> str:
    kind = resource_of(device)
    wanted = f"a trial needs a CPU and {cards_per_trial} x {kind} of one node (search.cards_per_trial)"
    there = "; ".join(f"{n.address}: {n.cards} x {kind}, {n.cpus:g} x CPU" for n in nodes) or "no node"
    resources = "--num-gpus=N" if kind == "GPU" else f"--resources='{{\"{CARD}\": N}}'"
    return (
        f"{where} can never run a trial: {wanted}, and there is {there}. Use fewer cards, or add nodes that have "
        f"enough: `ray start --address=... {resources}`"
    )


def _init(address: str, **settings: Any) -> None:
    os.environ.update({k: v for k, v in _ENVIRONMENT.items() if k not in os.environ})
    import ray

    # The executor reports a trial that died; Tune would log a traceback of its own code.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}
    ray.init(address=address, **quiet, **settings)


def _listens(address: str) -> bool:
    """Whether a server listens at this HOST:PORT; other forms of address (`auto`, `ray://...`) are left to Ray."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or "/" in host:
        return True
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return True
    except OSError:
        return False


def _check_token(address: str, named_by: str) -> None:
    """Check the token before connecting: Ray retries a refused token for 20 s and then reports that nothing answered.

    Raises:
        ConfigError: the cluster refuses the token, or needs one and there is none.
    """
    from ray.exceptions import AuthenticationError, RpcError

    raylet: Any = importlib.import_module("ray._raylet")
    mode = os.environ.get("RAY_AUTH_MODE", "")
    where = "RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH=FILE, or ~/.ray/auth_token"
    if mode.lower() == "token" and not raylet.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
        raise ConfigError(
            f"{named_by}: RAY_AUTH_MODE=token, and there is no token: put the cluster's token into {where}"
        )
    if not address.rpartition(":")[2].isdigit() or "/" in address:
        return
    try:
        raylet.GcsClient(address=address).internal_kv_get(b"", None)
    except AuthenticationError as error:
        given = "the token of this process is not the cluster's" if mode.lower() == "token" else "none was sent"
        raise ConfigError(
            f"{named_by}: the Ray at {address} needs a token, and {given}: set RAY_AUTH_MODE=token, and put the "
            f"cluster's token into {where}"
        ) from error
    except RpcError:
        return  # connecting reports it better
