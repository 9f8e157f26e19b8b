"""What budget, chargeback, gate, storage and tracking must satisfy.

Tested in tests/sweeps/config/test_messages.py and tests/sweeps/config/test_build.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sweeps.config.bounds import above_zero, at_least
from sweeps.config.types import MONEY_KEYS, SweepConfig


def budget_problems(config: SweepConfig) -> Iterator[str]:
    for check in (_amounts, _chargeback, _gate, _storage, _tracking):
        yield from check(config)


def _amounts(config: SweepConfig) -> Iterator[str]:
    for key in MONEY_KEYS:
        amount = getattr(config.budget, key)
        if amount is not None and amount.pico <= 0:
            yield f"budget.{key}={amount} should be above 0, or null for no limit"


def _chargeback(config: SweepConfig) -> Iterator[str]:
    budget = config.budget
    for name in ("owner", "project", "cost_center"):
        if name in budget.tags:
            yield f"budget.tags.{name} has a key of its own: write budget.{name}={budget.tags[name]}"
    for name in budget.required_tags:
        if not budget.charged_to.get(name, "").strip():
            key = f"budget.{name}" if name in budget.charged_to and name not in budget.tags else f"+budget.tags.{name}"
            yield f"budget.required_tags names {name}, and the sweep has none: add {key}=NAME"


def _gate(config: SweepConfig) -> Iterator[str]:
    yield from above_zero(config, "gate.ratio_tolerance")


def _storage(config: SweepConfig) -> Iterator[str]:
    storage = config.storage
    if storage.database_url is not None and not re.match(r"(sqlite|postgresql)(\+\w+)?://", storage.database_url):
        yield "storage.database_url should begin with sqlite:/// or postgresql+psycopg://, or be null for SQLite"
    yield from at_least(config, 1, "storage.keep_last")
    yield from at_least(config, 0, "storage.wait_seconds")
    if storage.bucket is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", storage.bucket):
        yield f"storage.bucket={storage.bucket} should be the name of an S3 bucket (3 to 63 of a-z, 0-9, . and -)"
    if storage.endpoint_url and not re.fullmatch(r"https?://[^@\s]+", storage.endpoint_url):
        yield (
            "storage.endpoint_url should be http://HOST:PORT or https://HOST, without user or password: credentials "
            "are read from the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE ...)"
        )


def _tracking(config: SweepConfig) -> Iterator[str]:
    uri = config.tracking.uri
    if uri is not None and "://" not in uri and uri != "databricks":
        yield f"tracking.uri={uri} should be a URI (sqlite:///FILE, http://HOST:PORT), or null for SQLite in paths.root"
    if not config.tracking.experiment.strip():
        yield "tracking.experiment is empty; it should be a name"
