"""Every test of the ledger's stores runs on both databases."""

from __future__ import annotations

import pytest


@pytest.fixture
def place(any_database: str) -> str:
    return any_database
