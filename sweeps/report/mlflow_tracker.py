"""Delivers a running sweep's journal to MLflow in a background thread.

Tested in tests/sweeps/report/test_mlflow_sync.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cost.secrets import mask_secrets
from sweeps.journal.journal import sweep_ids
from sweeps.report.mlflow_store import load_mlflow
from sweeps.report.mlflow_sync import MlflowSync, first_line, tracking_of

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

POLL_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 60.0
EARLIER_SWEEPS = 20
"""How many of the newest sweeps are completed in MLflow, where their drivers were killed before."""


class MlflowTracker:
    """Delivers one sweep's journal to MLflow until `close`. MLflow may be slow or unavailable."""

    def __init__(
        self,
        *,
        uri: str,
        experiment: str,
        artifacts: Path,
        open_ledger: Callable[[], Ledger],
        sweep_id: str,
        warn: Callable[[str], None],
    ) -> None:
        self._uri, self._experiment, self._artifacts = uri, experiment, artifacts
        self._open_ledger, self._sweep_id, self._warn = open_ledger, sweep_id, warn
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        self.delivered = False
        """MLflow has everything that was in the journal when `close` was called."""
        self.experiment_id: str | None = None

    def start(self) -> None:
        load_mlflow()
        self._thread.start()

    def close(self, timeout_seconds: float) -> bool:
        """Deliver the rest within this time; whether MLflow has everything."""
        self._closing.set()
        self._thread.join(timeout_seconds)
        return self.delivered

    def _run(self) -> None:
        # With MLflow's defaults, a server that does not answer costs minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        sync: MlflowSync | None = None
        warned, wait, refused_before, earlier_delivered = False, POLL_SECONDS, 0, False
        with self._open_ledger() as ledger:
            while True:
                last_round = self._closing.is_set()
                try:
                    if sync is None:
                        sync = MlflowSync(self._uri, self._experiment, self._artifacts, self._sweep_id)
                        self.experiment_id = sync.experiment_id
                    sync.deliver(ledger)
                    wait = POLL_SECONDS
                    refused_before = self._report_refused(sync, refused_before)
                    if last_round:
                        self.delivered = True
                        return
                    if not earlier_delivered:
                        earlier_delivered = True
                        self._deliver_earlier(ledger)
                except Exception as error:
                    if not warned:
                        warned = True
                        self._warn(
                            f"MLflow at {mask_secrets(self._uri)} does not answer ({first_line(error)}); the sweep "
                            "continues without it"
                        )
                    if last_round:
                        return
                    wait = min(wait * 2, MAX_BACKOFF_SECONDS)
                self._closing.wait(wait)

    def _deliver_earlier(self, ledger: Ledger) -> None:
        """Deliver what drivers that were killed have not delivered: the newest sweeps of the same store."""
        for sweep_id in reversed(sweep_ids(ledger)[-EARLIER_SWEEPS:]):
            if self._closing.is_set():
                return
            tracking = tracking_of(ledger, sweep_id)
            if sweep_id == self._sweep_id or tracking["uri"] not in (None, mask_secrets(self._uri)):
                continue
            sync = MlflowSync(self._uri, tracking["experiment"], self._artifacts, sweep_id)
            if not sync.is_complete(ledger):
                sync.deliver(ledger)

    def _report_refused(self, sync: MlflowSync, before: int) -> int:
        """Warn when MLflow has refused further values for good; how many it has refused."""
        if len(sync.refused) > before:
            name, reason = next(reversed(sync.refused.items()))
            self._warn(f"MLflow refuses {len(sync.refused)} values, such as {name!r} ({reason}); they are left out")
        return len(sync.refused)
