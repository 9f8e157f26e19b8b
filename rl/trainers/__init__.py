"""Trainers by name. Light to import: a trainer's libraries are loaded when it is created or run."""

from __future__ import annotations

from rl.spec import ConfigurationError, Trainer

NAMES = ("native", "simulated")


def create(name: str) -> Trainer:
    """The trainer of that name.

    Raises:
        ConfigurationError: there is none.
    """
    if name == "native":
        from rl.trainers.native import NativeTrainer

        return NativeTrainer()
    if name == "simulated":
        from rl.trainers.simulated import SimulatedTrainer

        return SimulatedTrainer()
    raise ConfigurationError(f"there is no trainer {name!r}; there are: {', '.join(NAMES)}")
