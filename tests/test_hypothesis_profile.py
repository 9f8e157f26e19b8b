"""The time that a property test takes on a busy machine never fails it."""

from __future__ import annotations

from hypothesis import settings


def test_property_tests_have_no_deadline():
    assert settings().deadline is None
