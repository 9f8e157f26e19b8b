"""Delivers a running sweep's journal to MLflow in a background thread.

Tested in tests/sweeps/report/test_mlflow_sync.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sweeps.report.mlflow_sync import MlflowSync

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger

POLL_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 60.0


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
        # MLflow imports this module in the thread; imported here first, the driver never sees it half imported.
        import sqlalchemy.orm  # noqa: F401

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
        warned, wait = False, POLL_SECONDS
        with self._open_ledger() as ledger:
            while True:
                last_round = self._closing.is_set()
                try:
                    if sync is None:
                        sync = MlflowSync(self._uri, self._experiment, self._artifacts, self._sweep_id)
                        self.experiment_id = sync.experiment_id
                    sync.deliver(ledger)
                    wait = POLL_SECONDS
                    if last_round:
                        self.delivered = True
                        return
                except Exception as error:
                    if not warned:
                        warned = True
                        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                        self._warn(
                            f"MLflow at {self._uri} does not answer ({reason[:160]}); the sweep continues without it"
                        )
                    if last_round:
                        return
                    wait = min(wait * 2, MAX_BACKOFF_SECONDS)
                self._closing.wait(wait)
