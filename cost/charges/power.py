"""What own hardware draws: measured while a sweep runs, through NVIDIA's driver, and kept for the next lease's price.

A lease's watts are fixed when it is opened, while the cards still idle; so what was measured under load on the same
machine before is taken, and what is configured where nothing was. Only the cards are measured, not the host around
them. Nothing is priced here, and a card that cannot be measured is no error.
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
    """The draw of all cards of this host together, now; None where the driver or a card does not say."""
    try:
        said = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=10, check=True).stdout.split()
        watts = [Decimal(text) for text in said]
    except (OSError, subprocess.SubprocessError, InvalidOperation):
        return None
    if not watts or not all(w.is_finite() and w >= 0 for w in watts):
        return None
    return sum(watts, Decimal(0))


class PowerMeter:
    """The mean draw of this host's cards between `start` and `close`, sampled in a thread of its own."""

    def __init__(self) -> None:
        self._samples: list[Decimal] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, where there is anything to measure."""
        if cards_watts() is not None:
            self._thread = threading.Thread(target=self._run, name="power", daemon=True)
            self._thread.start()

    def sample(self) -> None:
        """Note what is drawn now."""
        if (watts := cards_watts()) is not None:
            self._samples.append(watts)

    @property
    def mean(self) -> Decimal | None:
        """Watts, to a tenth; None: nothing was measured."""
        if not self._samples:
            return None
        return (sum(self._samples, Decimal(0)) / len(self._samples)).quantize(Decimal("0.1"))

    def close(self, ledger: Ledger, instance_id: str) -> None:
        """End, and keep the mean for the next lease of this machine."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.mean:
            body = {"instance_id": instance_id, "watts": str(self.mean), "samples": len(self._samples)}
            ledger.append_event(STREAM, "measured", body, f"{instance_id}:{ledger.now_ns()}")

    def _run(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self.sample()


def measured_watts(ledger: Ledger, instance_id: str) -> Decimal | None:
    """The mean draw under load that was measured last on a machine; None: none was."""
    found = [e.body["watts"] for e in ledger.events(STREAM) if e.body["instance_id"] == instance_id]
    return Decimal(found[-1]) if found else None
