"""The Ray that runs the trials, as the driver sees it: started or joined, and how many cards its nodes have.

Knows nothing of trials. Tokens are read by Ray itself, from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or `~/.ray/auth_token`,
and never appear in a message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sweeps.config_types import ConfigError

CARD = "card"
"""The custom Ray resource that stands for a card where there are no GPUs."""

_ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_THRESHOLD_S": "30",
}


@dataclass(frozen=True)
class Node:
    """A node that is alive."""

    node_id: str
    address: str
    cards: int
    cpus: float


def resource_of(device: str) -> str:
    """What Ray calls a card of this kind."""
    return "GPU" if device == "cuda" else CARD


def start_local(cards: Sequence[int], device: str) -> None:
    """A Ray of our own on this host, with these cards."""
    local: dict[str, Any] = {"include_dashboard": False}
    if device == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, cards))
        local["num_gpus"] = len(cards)
    else:
        local["resources"] = {CARD: len(cards)}
    _init("local", **local)


@contextmanager
def joined(address: str, device: str, cards_per_trial: int, named_by: str) -> Iterator[int]:
    """Connected to the Ray at `address`; gives how many of its cards trials of this size can use.

    Args:
        named_by: the key and value that named the address, for messages.

    Raises:
        ConfigError: nothing answers there, it wants another token, or no node of it can ever hold a trial.
    """
    import ray

    _check_token(address, named_by)
    try:
        _init(address)
    except ConnectionError as error:
        raise ConfigError(
            f"{named_by}: no Ray answers at {address}; start one there with `ray start --head`, or use "
            "machine.cluster=local for a Ray of our own on this host"
        ) from error
    try:
        found = alive_nodes(device)
        usable = usable_cards(found, cards_per_trial)
        if not usable:
            raise ConfigError(_never_fits(found, device, cards_per_trial, f"{named_by}: the Ray at {address}"))
        yield usable
    finally:
        if ray.is_initialized():
            ray.shutdown()


def alive_nodes(device: str) -> list[Node]:
    """Those that are alive now, by Ray's own count."""
    import ray

    kind = resource_of(device)
    return [
        Node(n["NodeID"], n["NodeManagerAddress"], int(n["Resources"].get(kind, 0)), n["Resources"].get("CPU", 0.0))
        for n in ray.nodes()
        if n["Alive"]
    ]


def usable_cards(nodes: Sequence[Node], cards_per_trial: int) -> int:
    """Cards that trials can hold at once: a trial's are all on one node, which also spares it a CPU."""
    trials = [min(n.cards // cards_per_trial, int(n.cpus)) for n in nodes]
    return sum(trials) * cards_per_trial


def _never_fits(nodes: Sequence[Node], device: str, cards_per_trial: int, where: str) -> str:
    kind = resource_of(device)
    wanted = f"a trial needs {cards_per_trial} {kind} and a CPU of one node (search.cards_per_trial)"
    there = "; ".join(f"{n.address}: {n.cards} {kind}, {n.cpus:g} CPU" for n in nodes) or "no node"
    resources = "--num-gpus=N" if kind == "GPU" else f"--resources='{{\"{CARD}\": N}}'"
    return (
        f"{where} can never hold a trial: {wanted}, and there is {there}. Ask for fewer cards, or join nodes that "
        f"have them: `ray start --address=... {resources}`"
    )


def _init(address: str, **settings: Any) -> None:
    os.environ.update({k: v for k, v in _ENVIRONMENT.items() if k not in os.environ})
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}
    ray.init(address=address, **quiet, **settings)


def _check_token(address: str, named_by: str) -> None:
    """See `joined`; before Ray's own connecting."""
