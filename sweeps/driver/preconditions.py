"""Checks before anything is billed: everything that would stop every trial is a configuration error.

Tested in tests/sweeps/driver/test_preconditions.py and tests/e2e/test_sweep_command.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from cost.copies.s3 import BucketError
from rl.spec import ConfigurationError
from sweeps.config.axes import recipes
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.driver.trial_check import cannot_be_written, read_inputs, trial_problems
from sweeps.machines.cards import ray_address
from sweeps.machines.release import rent_hint
from sweeps.planning.plan import Plan
from sweeps.storage.sweep_bucket import check_bucket


def check_can_run(cfg: SweepConfig, plan: Plan, console: Console, per_hour: str = "UNPRICED") -> None:
    """Check what this host and its services must offer, and make or download the models.

    `sweeps.driver.trial_check` has checked the rest already, except for models that did not exist yet.

    Args:
        per_hour: what the machine costs, for a person who has to rent it.

    Raises:
        ConfigError: what is wrong, where, and what would be right.
    """
    check_writable(Path(cfg.paths.root))
    try:
        check_bucket(cfg.storage)
    except BucketError as error:
        raise ConfigError(f"storage.bucket={cfg.storage.bucket}: {error}; or storage=local keeps all here") from error
    if cfg.simulated:
        return
    if cfg.machine.device == "cuda" and not cfg.machine.up:
        _check_cuda_devices(cfg, per_hour)
    from rl.models import describe, prepare

    cache, made = Path(cfg.paths.cache), False
    try:
        for at in recipes(cfg):
            made = made or describe(at.model, at.task, cache) is None
            prepare(at.model, at.task, cache, lambda line: console.print(f"  model: {line}"))
    except ConfigurationError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:  # such as a full disk
        raise ConfigError(cannot_be_written("paths.cache", cache, _reason(error))) from error
    if made and (problems := trial_problems(cfg, plan, read_inputs(cfg))):
        raise ConfigError("\n".join(problems))


def _check_cuda_devices(cfg: SweepConfig, per_hour: str) -> None:
    import torch

    found = torch.cuda.device_count()
    if found < cfg.machine.cards and ray_address(cfg) == "local":
        raise ConfigError(
            f"machine={cfg.machine.name} has {cfg.machine.cards} x {cfg.machine.card_name}, and this host has {found} "
            f"CUDA devices: {rent_hint(cfg.machine, per_hour)}; or choose another machine with machine="
        )


def check_writable(root: Path) -> None:
    """Raises ConfigError where nothing can be written below `root`."""
    existing = root.absolute()
    while not existing.exists():
        existing = existing.parent
    probe = existing / f".write-test-{os.getpid()}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ConfigError(cannot_be_written("paths.root", root, f"{error.strerror} at {existing}")) from error


def _reason(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return f"{error.strerror} at {error.filename}" if error.filename else error.strerror
