"""One driver at work on one sweep: what its parts are given, and what runs beside the trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cost.charges.power import PowerMeter
from cost.clock import FakeClock, SystemClock
from cost.ledger.ledger import Ledger
from cost.money import money_text
from cost.reports.by_trial import Report, sweep_report, trial_costs
from sweeps.config.types import SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.journal.events import DriverEnd
from sweeps.journal.journal import Journal, SweepRecord
from sweeps.machines import lease
from sweeps.machines.preemption import PreemptionWatch, probe_of
from sweeps.machines.pricing import Pricing
from sweeps.report.mlflow_store import default_uri
from sweeps.report.mlflow_tracker import MlflowTracker
from sweeps.storage.uploads import Uploader

TRACKING_DRAIN_SECONDS = 60.0
INTERRUPTED_DRAIN_SECONDS = 5.0
INTERRUPTED_UPLOAD_SECONDS = 30.0


@dataclass(frozen=True)
class Session:
    """What is decided once, before the first trial."""

    cfg: SweepConfig
    typed: Sequence[str]
    """The overrides of the command, for the commands that are proposed."""
    console: Console
    ledger: Ledger
    journal: Journal
    clock: SystemClock | FakeClock
    pricing: Pricing
    time: StepTime | None
    cards: Sequence[int]
    """Indices of those that trials may use."""
    still_held: Callable[[], None]
    """To be called at each heartbeat: raises where another process drives the sweep by now."""

    @property
    def root(self) -> Path:
        return Path(self.cfg.paths.root)

    @property
    def record(self) -> SweepRecord:
        return self.journal.record

    @property
    def sweep_dir(self) -> Path:
        return self.root / self.record.sweep_id

    @property
    def database(self) -> str | Path:
        return self.cfg.database

    def read_ledger(self) -> Ledger:
        """One more, for a thread of its own."""
        return Ledger.open(self.database, create=False, read_only=True)

    def report(self) -> Report:
        return sweep_report(self.ledger, self.pricing.book, self.record.sweep_id, self.ledger.now_ns())

    def costs(self) -> Mapping[str, str]:
        """What each trial has cost by now, for people."""
        sweep_id = self.record.sweep_id
        if self.pricing.row is None:
            return dict.fromkeys((u.key.trial_id for u in self.ledger.usages.find(sweep_id=sweep_id)), "UNPRICED")
        now_ns = self.ledger.now_ns()
        return {k: money_text(v) for k, v in trial_costs(self.ledger, self.pricing.book, sweep_id, now_ns).items()}

    def tell(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)


@dataclass(frozen=True)
class Undelivered:
    """What was not delivered when a sweep's driver ended."""

    tracked: bool
    """MLflow has everything."""
    unsaved: Sequence[str]
    """What is not off this machine, where there is a bucket."""


class BackgroundServices:
    """The threads beside the trials: MLflow's tracker, the upload, the look-out for a preemption, the power meter."""

    def __init__(self, session: Session) -> None:
        self._session = session
        cfg, sweep_id = session.cfg, session.record.sweep_id
        self._preemption = PreemptionWatch(probe_of(cfg.machine.preemption), session.warn)
        self._tracker = MlflowTracker(
            uri=cfg.tracking.uri or default_uri(session.root),
            experiment=cfg.tracking.experiment,
            artifacts=session.root / "mlartifacts",
            open_ledger=session.read_ledger,
            sweep_id=sweep_id,
            warn=session.warn,
        )

    @cached_property
    def _uploader(self) -> Uploader | None:
        session = self._session
        if session.cfg.storage.bucket is None:
            return None
        return Uploader(
            session.cfg.storage,
            session.record.sweep_id,
            session.sweep_dir,
            open_ledger=session.read_ledger,
            warn=session.warn,
        )

    @cached_property
    def _meter(self) -> PowerMeter | None:
        """Own hardware with cards that tell what they draw."""
        cfg = self._session.cfg
        measurable = cfg.machine.device == "cuda" and not cfg.simulated
        return PowerMeter() if measurable and self._session.pricing.by_energy else None

    def start(self) -> None:
        for thread in (self._preemption, self._tracker, self._uploader, self._meter):
            if thread is not None:
                thread.start()

    def notice(self) -> str | None:
        """That the machine will be taken away, once its provider has said so."""
        return self._preemption.notice

    def stop_watching(self) -> None:
        """Before the books are closed: what is measured is written down, and nothing more is heard."""
        self._preemption.close()
        if self._meter is not None:
            session = self._session
            self._meter.close(session.ledger, lease.machine_instance(session.cfg, session.record.sweep_id))

    def drain(self, end: DriverEnd) -> Undelivered:
        """After the books are closed: deliver what waits. Who interrupts a sweep does not wait for long."""
        hurried, seconds = end is DriverEnd.INTERRUPTED, self._session.cfg.storage.wait_seconds
        upload_seconds = min(seconds, INTERRUPTED_UPLOAD_SECONDS) if hurried else seconds
        unsaved = self._uploader.close(upload_seconds) if self._uploader else []
        tracked = self._tracker.close(INTERRUPTED_DRAIN_SECONDS if hurried else TRACKING_DRAIN_SECONDS)
        return Undelivered(tracked, unsaved)
