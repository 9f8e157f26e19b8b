"""Power measurement, with a script in place of `nvidia-smi` on PATH."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest

from cost.charges.power import PowerMeter, cards_watts, measured_watts


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A function that puts a script named `nvidia-smi` on PATH; the script prints a text and exits with a code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(text: str, code: int = 0) -> None:
        script = Path(folder) / "nvidia-smi"
        script.write_text(f"#!/bin/sh\n[ \"$1\" = --query-gpu=power.draw ] || exit 9\nprintf '{text}'\nexit {code}\n")
        script.chmod(0o755)

    return install


def test_the_power_of_a_hosts_cards_is_summed(nvidia_smi):
    nvidia_smi("71.25\\n80.50\\n")
    assert cards_watts() == Decimal("151.75")


@pytest.mark.parametrize(("text", "code"), [("[N/A]\\n", 0), ("", 0), ("70\\n", 1), ("nan\\n", 0), ("-1\\n", 0)])
def test_an_invalid_reading_is_none(nvidia_smi, text, code):
    nvidia_smi(text, code)
    assert cards_watts() is None


def test_without_nvidia_smi_nothing_is_measured_or_stored(ledger, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    meter = PowerMeter()
    meter.start()
    meter.close(ledger, "host:own")
    assert measured_watts(ledger, "host:own") is None


def test_the_mean_under_load_is_stored_for_the_next_lease_of_the_machine(any_database, ledger, nvidia_smi, clock):
    for mean, readings in (("300.0", ("200", "400")), ("150.3", ("100.1", "200.5"))):
        meter = PowerMeter()
        for reading in readings:
            nvidia_smi(reading)
            meter.sample()
        meter.close(ledger, "host:own")
        clock.advance_seconds(1)
        assert measured_watts(ledger, "host:own") == Decimal(mean)
    assert measured_watts(ledger, "host:other") is None
