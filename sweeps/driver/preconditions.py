"""Checks before anything is billed: whatever would stop every trial is reported as a configuration error.

Tested in tests/sweeps/machines/test_cards.py and tests/e2e/test_sweep_command.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from cost.copies.s3 import BucketError
from rl.spec import ConfigurationError
from sweeps.config.axes import recipes
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.machines.cards import ray_address
from sweeps.machines.release import rent_hint
from sweeps.storage.sweep_bucket import check_bucket


def check_can_run(cfg: SweepConfig, console: Console, per_hour: str = "UNPRICED") -> None:
    """
    Args:
        per_hour: what the machine costs, for a person who has to rent it.

    Raises:
        ConfigError: what is wrong, where, and what would be right.
    """
    if cfg.search.cards_per_trial > 1 and cfg.trainer.name == "native":
        raise ConfigError(
            f"stage {cfg.stage.name} gives each trial {cfg.search.cards_per_trial} cards, and trainer=native uses one. "
            "Plan and price it with dry_run=true, simulate it with trainer=simulated, or run it on one card with "
            "search.cards_per_trial=1"
        )
    _check_writable(Path(cfg.paths.root))
    try:
        check_bucket(cfg.storage)
    except BucketError as error:
        raise ConfigError(f"storage.bucket={cfg.storage.bucket}: {error}; or storage=local keeps all here") from error
    if cfg.simulated:
        return
    if cfg.machine.device == "cuda" and not cfg.machine.up:
        _check_cuda_devices(cfg, per_hour)
    from rl.models import prepare
    from rl.tasks import load_task

    try:
        for at in recipes(cfg):
            load_task(at.task)
            prepare(at.model, at.task, Path(cfg.paths.cache), lambda line: console.print(f"  model: {line}"))
    except ConfigurationError as error:
        raise ConfigError(str(error)) from error


def _check_cuda_devices(cfg: SweepConfig, per_hour: str) -> None:
    import torch

    found = torch.cuda.device_count()
    if found < cfg.machine.cards and ray_address(cfg) == "local":
        raise ConfigError(
            f"machine={cfg.machine.name} has {cfg.machine.cards} x {cfg.machine.card_name}, and this host has {found} "
            f"CUDA devices: {rent_hint(cfg.machine, per_hour)}; or choose another machine with machine="
        )


def _check_writable(root: Path) -> None:
    existing = root.absolute()
    while not existing.exists():
        existing = existing.parent
    probe = existing / f".write-test-{os.getpid()}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"paths.root={root} cannot be written ({error.strerror} at {existing}): "
            "make it writable, or choose another folder with paths.root=DIR"
        ) from error
