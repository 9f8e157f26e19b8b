"""What the parts of a running driver are given: configuration, ledger, journal, clock, price and terminal.

Tested in tests/sweeps/driver/test_budget_run.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cost.clock import FakeClock, SystemClock
from cost.ledger.ledger import Ledger
from cost.money import money_text
from cost.reports.by_trial import Report, sweep_report, trial_costs
from sweeps.config.types import SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.journal.journal import Journal, SweepRecord
from sweeps.machines.pricing import Pricing
from sweeps.protocol.gate_rules import Rule


@dataclass(frozen=True)
class DriverContext:
    """Fixed before the first trial starts."""

    cfg: SweepConfig
    typed: Sequence[str]
    """The command's overrides, for the commands that are printed."""
    console: Console
    ledger: Ledger
    journal: Journal
    clock: SystemClock | FakeClock
    pricing: Pricing
    time: StepTime | None
    """None: nothing is known about how long a step takes."""
    cards: Sequence[int]
    """Indices of the cards that trials can use."""
    keep_lock: Callable[[], None]
    """Called at every heartbeat: raises where another driver has the sweep's lock."""
    rules: Sequence[Rule] = ()
    """The gate rules of the stage."""

    @property
    def root(self) -> Path:
        return Path(self.cfg.paths.root)

    @property
    def record(self) -> SweepRecord:
        return self.journal.record

    @property
    def sweep_dir(self) -> Path:
        return self.root / self.record.sweep_id

    def read_ledger(self) -> Ledger:
        """A read-only connection for another thread."""
        return Ledger.open(self.cfg.database, create=False, read_only=True)

    def report(self) -> Report:
        """What the sweep has cost by now."""
        return sweep_report(self.ledger, self.pricing.book, self.record.sweep_id, self.ledger.now_ns())

    def costs(self) -> Mapping[str, str]:
        """What each trial has cost by now, as text."""
        sweep_id = self.record.sweep_id
        if self.pricing.row is None:
            return dict.fromkeys((u.key.trial_id for u in self.ledger.usages.find(sweep_id=sweep_id)), "UNPRICED")
        now_ns = self.ledger.now_ns()
        return {k: money_text(v) for k, v in trial_costs(self.ledger, self.pricing.book, sweep_id, now_ns).items()}

    def show(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)
