"""A sweep on the fake clock, in this process: real ledger, real journal, simulated trainer."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.prices.book import PriceRow
from cost.records import Lease
from rl.spec import Event
from sweeps.config.build import canonical, compose
from sweeps.config.types import SweepConfig
from sweeps.driver.controller import SweepController
from sweeps.executors.in_process import InProcessExecutor
from sweeps.journal.events import DriverStarted, GateVerdict, SweepPlanned
from sweeps.journal.journal import Journal, TrialRecord
from sweeps.journal.trial_reports import TrialReports, trial_reports
from sweeps.planning.plan import make_plan
from sweeps.protocol.gates import metric_gate
from sweeps.protocol.stage_rules import stage_rules


class Silent:
    """A view that shows nothing."""

    def changed(self, trial: TrialRecord, message: Event | None) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def tick(self) -> None:
        pass


@dataclass
class Sweep:
    cfg: SweepConfig
    clock: FakeClock
    ledger: Ledger
    journal: Journal
    controller: SweepController
    executor: InProcessExecutor

    def run(self) -> Sweep:
        self.executor.run(self.controller)
        return self

    def verdict(self) -> GateVerdict:
        """What the gate decides about the sweep so far."""
        return metric_gate(self.journal.record, self.cfg.stage.steps, self.cfg.gate, self.controller.trial_rules)

    def reports(self) -> dict[str, TrialReports]:
        """The reports of each trial, by trial, from the journal."""
        return trial_reports(self.ledger, self.journal.record.sweep_id)


def a_sweep(
    folder: Path, *overrides: str, stage: str = "smoke", price: PriceRow | None = None, **controller_settings
) -> Sweep:
    """A planned sweep with an open lease, not yet run. Without `price`, the machine is unpriced."""
    cfg = compose([f"+stage={stage}", "trainer=simulated", f"paths.root={folder}", *overrides])
    clock = FakeClock(price.from_ns) if price else FakeClock()
    ledger = Ledger.open(folder / "ledger.db", clock)
    journal = Journal(ledger, "smoke-test-1")
    config = canonical(cfg)
    journal.append(SweepPlanned.from_plan(make_plan(cfg), cfg.stage.name, cfg.machine.name, config))
    lease = Lease(
        lease_id="lease-1",
        instance_id="simulated:smoke-test-1",
        machine=cfg.machine.name,
        sku=cfg.machine.sku,
        provider="own",
        cards=cfg.machine.cards,
        currency="USD",
        price_hash=price.hash if price else None,
        purchase=cfg.machine.purchase,
        watts=Decimal(str(cfg.machine.watts)),
    )
    ledger.leases.open(lease)
    ledger.leases.attach("lease-1", "smoke-test-1")
    journal.append(DriverStarted("lease-1", pid=1))
    journal.catch_up()
    rules = stage_rules(cfg).rules
    settings = {"cards": cfg.machine.cards, "view": Silent(), "rules": rules, **controller_settings}
    controller = SweepController(cfg, ledger=ledger, journal=journal, lease_id="lease-1", sweep_dir=folder, **settings)
    return Sweep(
        cfg, clock, ledger, journal, controller, InProcessExecutor(clock, silence_seconds=cfg.retry.hung_after_seconds)
    )
