"""Services that run beside the trials, in threads: MLflow, checkpoint uploads, preemption notices, the power meter.

Tested in tests/sweeps/machines/test_preemption.py and tests/sweeps/storage/test_uploads.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cost.charges.power import PowerMeter
from sweeps.driver.context import DriverContext
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines.lease import machine_instance
from sweeps.machines.preemption import PreemptionWatch, probe_of
from sweeps.report.mlflow_store import default_uri
from sweeps.report.mlflow_tracker import MlflowTracker
from sweeps.storage.uploads import Uploader

MLFLOW_CLOSE_SECONDS = 60.0
MLFLOW_CLOSE_SECONDS_INTERRUPTED = 5.0
UPLOAD_CLOSE_SECONDS_INTERRUPTED = 30.0


@dataclass(frozen=True)
class Undelivered:
    """What was not delivered when a driver ended."""

    mlflow_complete: bool
    """MLflow has everything."""
    not_uploaded: Sequence[str]
    """Checkpoints and artifacts that are not in the bucket, a line each; empty where there is no bucket."""


def mlflow_tracker(context: DriverContext) -> MlflowTracker:
    """Delivers the sweep's journal to the store that its configuration names."""
    return MlflowTracker(
        uri=context.cfg.tracking.uri or default_uri(context.root),
        experiment=context.cfg.tracking.experiment,
        artifacts=context.root / "mlartifacts",
        open_ledger=context.read_ledger,
        sweep_id=context.record.sweep_id,
        warn=context.warn,
    )


def deliver_backlog(context: DriverContext) -> None:
    """Deliver what a driver that was killed after the end of its sweep has not delivered to MLflow."""
    tracker = mlflow_tracker(context)
    tracker.start()
    tracker.close(MLFLOW_CLOSE_SECONDS)


class BackgroundServices:
    """Starts and closes the services of one driver."""

    def __init__(self, context: DriverContext) -> None:
        self._context = context
        self._preemption = PreemptionWatch(probe_of(context.cfg.machine.preemption), context.warn)
        self._tracker = mlflow_tracker(context)

    @cached_property
    def _uploader(self) -> Uploader | None:
        context = self._context
        if context.cfg.storage.bucket is None:
            return None
        return Uploader(
            context.cfg.storage,
            context.record.sweep_id,
            context.sweep_dir,
            open_ledger=context.read_ledger,
            warn=context.warn,
        )

    @cached_property
    def _meter(self) -> PowerMeter | None:
        """Only for own hardware, with cards that report their power."""
        cfg = self._context.cfg
        measurable = cfg.machine.device == "cuda" and not cfg.simulated
        return PowerMeter() if measurable and self._context.pricing.by_energy else None

    def start(self) -> None:
        for service in (self._preemption, self._tracker, self._uploader, self._meter):
            if service is not None:
                service.start()

    def preemption_notice(self) -> str | None:
        """What the machine's provider announced; None: nothing."""
        return self._preemption.notice

    def stop_watching(self) -> None:
        """Stop looking for preemption notices, and write the measured power into the ledger."""
        self._preemption.close()
        if self._meter is not None:
            instance = machine_instance(self._context.cfg, self._context.record.sweep_id)
            self._meter.close(self._context.ledger, instance)

    def close(self, end: DriverEnd) -> Undelivered:
        """Deliver what waits, for a limited time, which is shorter where a person interrupted the sweep."""
        interrupted, upload_seconds = end is DriverEnd.INTERRUPTED, self._context.cfg.storage.wait_seconds
        if interrupted:
            upload_seconds = min(upload_seconds, UPLOAD_CLOSE_SECONDS_INTERRUPTED)
        not_uploaded = self._uploader.close(upload_seconds) if self._uploader else []
        mlflow_seconds = MLFLOW_CLOSE_SECONDS_INTERRUPTED if interrupted else MLFLOW_CLOSE_SECONDS
        return Undelivered(self._tracker.close(mlflow_seconds), not_uploaded)
