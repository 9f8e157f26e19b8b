"""Passwords in URLs are masked, whatever characters they have, and other texts are left as they are."""

from __future__ import annotations

import pytest

from cost.ledger.database import shown_place
from cost.secrets import is_masked, mask_secrets


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://me:pa55@host/db", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:p/a#5@5@host:5432/db", "postgresql+psycopg://me:***@host:5432/db"),
        (
            "postgresql://host/db?user=me&password=pa/55&sslmode=require",
            "postgresql://host/db?user=me&password=***&sslmode=require",
        ),
        ("http://me:pa55@mlflow:5000", "http://me:***@mlflow:5000"),
        ("http://:pa55@mlflow:5000", "http://:***@mlflow:5000"),
        ("https://mlflow/?access_token=abc#x", "https://mlflow/?access_token=***"),
        ("storage.database_url=postgresql://me:pa55@host/db", "storage.database_url=postgresql://me:***@host/db"),
        ("sqlite:////runs/mlflow.db", "sqlite:////runs/mlflow.db"),
        ("http://mlflow:5000/path", "http://mlflow:5000/path"),
        ("a:b@c", "a:b@c"),
    ],
)
def test_the_password_of_a_url_is_masked(given, expected):
    assert mask_secrets(given) == expected
    assert is_masked(mask_secrets(given)) == (given != expected)


def test_the_place_of_a_ledger_shows_no_password():
    for url in ("postgresql://me:s3cr3t@host/db", "postgresql://host/db?user=me&password=s3cr3t"):
        assert "s3cr3t" not in shown_place(url)
