"""Trainers by name."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from rl.spec import ConfigurationError, TrainerSpec
from rl.trainers import NAMES, create_trainer


@pytest.mark.parametrize("name", NAMES)
def test_every_name_creates_a_trainer(name: str) -> None:
    assert callable(create_trainer(name).run)


def test_names_are_those_of_the_specification() -> None:
    assert set(NAMES) == set(get_args(get_type_hints(TrainerSpec)["name"]))


def test_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigurationError, match="there is no trainer 'trl'; there are: native, simulated"):
        create_trainer("trl")
