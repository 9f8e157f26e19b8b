"""What the machine must satisfy: its cards, its description, how it is acquired and released; and the retries on it.

Tested in tests/sweeps/config/test_messages.py and tests/sweeps/config/test_text_values.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from sweeps.config.bounds import above_zero, at_least
from sweeps.config.overrides import CONF_DIR, options
from sweeps.config.types import SweepConfig


def machine_problems(config: SweepConfig) -> Iterator[str]:
    for check in (_cards, _machine, _release, _retry):
        yield from check(config)


def _cards(config: SweepConfig) -> Iterator[str]:
    machine, search, stage = config.machine, config.search, config.stage
    if machine.cards < 1 or search.cards_per_trial < 1:
        yield from at_least(config, 1, "machine.cards")
        yield from at_least(config, 0, "search.cards_per_trial")
    elif machine.cards < stage.min_cards:
        yield (
            f"stage {stage.name} needs {stage.min_cards} cards or more, and machine={machine.name} has "
            f"{machine.cards}; {_larger_machines(stage.min_cards)}"
        )
    elif search.cards_per_trial > machine.cards:
        yield (
            f"search.cards_per_trial={search.cards_per_trial} is more than the cards of machine={machine.name} "
            f"({machine.cards}); {_larger_machines(search.cards_per_trial)}"
        )


def _larger_machines(cards: int) -> str:
    fits = [f"machine={name}" for name, has in _cards_of_machines().items() if has >= cards]
    named = f"choose {' or '.join(fits)}, or " if fits else ""
    return f"{named}set machine.cards if yours has more"


@cache
def _cards_of_machines() -> dict[str, int]:
    import yaml

    return {
        name: yaml.safe_load((CONF_DIR / f"machine/{name}.yaml").read_text())["cards"] for name in options("machine")
    }


def _machine(config: SweepConfig) -> Iterator[str]:
    machine = config.machine
    yield from above_zero(config, "machine.memory_gib_per_card", "machine.memory_gb_per_s", "machine.tflops")
    yield from at_least(config, 0, "machine.interconnect_gb_per_s", "machine.watts")
    for key in ("name", "sku", "provider", "cluster"):
        if not getattr(machine, key).strip():
            yield f"machine.{key} is empty"
    if machine.sku.startswith("electricity") and machine.watts <= 0:
        yield (
            f"machine.watts={machine.watts} with machine.sku={machine.sku}: the price of electricity needs the "
            "machine's mean power draw under load, in watts"
        )
    if config.trainer.device == "cuda" and machine.device == "cpu":
        yield f"trainer.device=cuda, and machine={machine.name} has no CUDA card; use trainer.device=auto or cpu"


def _release(config: SweepConfig) -> Iterator[str]:
    machine = config.machine
    if machine.deadman and not machine.down:
        yield f"machine.deadman={machine.deadman} needs machine.down: how is the machine released?"
    if machine.down and machine.down.uses_ec2 and machine.provider != "aws":
        yield (
            f"machine.down={machine.down} works with machine.provider=aws only, and this is {machine.provider}: set a "
            "command that releases the machine there"
        )


def _retry(config: SweepConfig) -> Iterator[str]:
    yield from at_least(config, 0, "retry.crashes", "retry.backoff_seconds", "retry.out_of_memory", "retry.hangs")
    yield from above_zero(config, "retry.hung_after_seconds")
    if config.retry.preemptions is not None:
        yield from at_least(config, 0, "retry.preemptions")
