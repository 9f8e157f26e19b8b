"""Measure the power draw of this host's cards while a sweep runs, and store the mean for the next lease of the machine.

A lease's watts are fixed when it is opened, while the cards are still idle. The price of own hardware therefore uses
the mean that the last sweep on the same machine measured under load, or the configured watts if there is none. Only
the cards are measured, through NVIDIA's driver, not the rest of the host. A card that cannot be measured is no error.
"""

from __future__ import annotations

import subprocess
import threading
from decimal import Decimal, InvalidOperation

from cost.ledger.ledger import Ledger

STREAM = "power"
EVERY_SECONDS = 10.0
_COMMAND = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


def cards_watts() -> Decimal | None:
    """The present power draw of all cards of this host together; None if the driver or a card does not report it."""
    try:
        output = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=10, check=True).stdout
        watts = [Decimal(text) for text in output.split()]
    except (OSError, subprocess.SubprocessError, InvalidOperation):
        return None
    if not watts or not all(w.is_finite() and w >= 0 for w in watts):
        return None
    return sum(watts, Decimal(0))


class PowerMeter:
    """Samples the power draw of this host's cards in a thread, from `start` to `close`."""

    def __init__(self) -> None:
        self._samples: list[Decimal] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start sampling if the cards can be measured."""
        if cards_watts() is not None:
            self._thread = threading.Thread(target=self._run, name="power", daemon=True)
            self._thread.start()

    def sample(self) -> None:
        """Take one sample."""
        if (watts := cards_watts()) is not None:
            self._samples.append(watts)

    @property
    def mean(self) -> Decimal | None:
        """The mean in watts, to one decimal place; None if nothing was measured."""
        if not self._samples:
            return None
        return (sum(self._samples, Decimal(0)) / len(self._samples)).quantize(Decimal("0.1"))

    def close(self, ledger: Ledger, instance_id: str) -> None:
        """Stop sampling and store the mean for the next lease of this machine."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self.mean:
            body = {"instance_id": instance_id, "watts": str(self.mean), "samples": len(self._samples)}
            ledger.events.append(STREAM, "measured", body, f"{instance_id}:{ledger.now_ns()}")

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            self.sample()


def measured_watts(ledger: Ledger, instance_id: str) -> Decimal | None:
    """The mean that was last measured under load on a machine; None if there is none."""
    watts = [e.body["watts"] for e in ledger.events.read(STREAM) if e.body["instance_id"] == instance_id]
    return Decimal(watts[-1]) if watts else None
