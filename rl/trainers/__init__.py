"""Trainers by name. Light to import: the libraries of a trainer are imported when it is created or run.

Tested in tests/rl/trainers/test_trainers.py.
"""

from __future__ import annotations

from rl.spec import ConfigurationError, Trainer

NAMES = ("native", "simulated")


def create_trainer(name: str) -> Trainer:
    """The trainer called `name`.

    Raises:
        ConfigurationError: `name` is not in `NAMES`.
    """
    if name == "native":
        from rl.trainers.native.trainer import NativeTrainer

        return NativeTrainer()
    if name == "simulated":
        from rl.trainers.simulated import SimulatedTrainer

        return SimulatedTrainer()
    raise ConfigurationError(f"there is no trainer {name!r}; there are: {', '.join(NAMES)}")
