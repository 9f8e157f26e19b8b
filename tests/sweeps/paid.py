"""A sweep on the fake clock with a budget, on a machine whose price the test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.prices.book import PriceBook, hourly
from cost.records import Lease
from rl.spec import Event
from sweeps.config.build import canonical, compose
from sweeps.config.types import SweepConfig
from sweeps.driver.controller import SweepController
from sweeps.executors.in_process import InProcessExecutor
from sweeps.forecast.step_time import StepTime
from sweeps.journal.events import DriverEnded, DriverStarted, SweepPlanned
from sweeps.journal.journal import Journal, TrialRecord
from sweeps.journal.outcomes import DriverEnd
from sweeps.machines.pricing import Pricing
from sweeps.planning.plan import make_plan
from sweeps.scheduling.budget_controller import BudgetController
from sweeps.scheduling.cost_bound import TrialForecast

PRICES = """prices:
  - {{provider: test, sku: box, per: card_hour, cards: 0, purchase: on_demand, currency: {currency}, price: "{price}",
     tax_included: true, tax_rate: "0", valid_from: 2020-01-01, day_read: 2020-01-01, source: page}}
"""
BILLING = """rules:
  - {{provider: test, granularity_s: {granularity_s}, minimum_s: {minimum_s}, rounding: up, charged_ahead: {ahead},
     billed_states: [running], spot_price_rule: moment, interruption_waiver_s: 0, storage_rule: none, source: page,
     day_read: 2020-01-01}}
"""
RATES = """rates:
  - {base: EUR, quote: USD, rate: "2", day: 2020-01-01, source: page, day_read: 2020-01-01}
"""


@dataclass
class View:
    """Keeps the warnings."""

    warnings: list[str] = field(default_factory=list)

    def changed(self, trial: TrialRecord, message: Event | None) -> None:
        pass

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def tick(self) -> None:
        pass


@dataclass
class PaidSweep:
    cfg: SweepConfig
    clock: FakeClock
    ledger: Ledger
    journal: Journal
    budget: BudgetController
    controller: SweepController
    view: View
    executor: InProcessExecutor
    pricing: Pricing

    def run(self) -> PaidSweep:
        """Run to the end, as a driver does; the lease is closed."""
        self.executor.run(self.controller)
        sweep_id = self.journal.record.sweep_id
        for lease_id in [s.lease.lease_id for s in self.ledger.leases.find(only_open=True) if sweep_id in s.sweeps]:
            self.ledger.leases.detach(lease_id, sweep_id, "done")
        self.journal.append(DriverEnded(DriverEnd.DONE))
        return self

    @property
    def states(self) -> list[str]:
        return [str(t.state) for t in self.journal.record.trials.values()]


def a_book(
    folder: Path, *, price: str, currency: str = "USD", granularity_s: int = 1, minimum_s: int = 0, ahead: bool = False
) -> PriceBook:
    """`price`: of a card and hour."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prices.yaml").write_text(PRICES.format(price=price, currency=currency))
    rule = BILLING.format(granularity_s=granularity_s, minimum_s=minimum_s, ahead=str(ahead).lower())
    (folder / "billing.yaml").write_text(rule)
    (folder / "fx.yaml").write_text(RATES)
    return PriceBook.load(folder)


def a_config(folder: Path, *overrides: str) -> SweepConfig:
    typed = ["+stage=smoke", "trainer=simulated", f"paths.root={folder}", "machine.sku=box", "machine.provider=test"]
    return compose([*typed, "machine.purchase=on_demand", *overrides])


def a_paid_sweep(
    folder: Path,
    *overrides: str,
    book: PriceBook,
    sweep_id: str = "smoke-test-1",
    place: Path | str | None = None,
    clock: FakeClock | None = None,
    time: StepTime | None = None,
    forecast: TrialForecast | None = None,
    wait: Callable[[], None] = lambda: None,
    cfg: SweepConfig | None = None,
) -> PaidSweep:
    """A planned sweep with an open lease, not yet run; resumed, if the ledger has it. `cfg` replaces `overrides`."""
    cfg = cfg or a_config(folder, *overrides)
    clock = clock or FakeClock()
    ledger = Ledger.open(place or folder / "ledger.db", clock)
    journal = Journal(ledger, sweep_id)
    if not journal.record.trials:
        config = canonical(cfg)
        journal.append(SweepPlanned.from_plan(make_plan(cfg), cfg.stage.name, cfg.machine.name, config))
    row = book.in_force("box", clock.utc_ns())
    pricing = Pricing(book, row, hourly(row, cfg.machine.cards))
    budget = BudgetController(cfg, ledger, journal.record, pricing, time, forecast=forecast, wait=wait)
    lease = Lease(
        lease_id=f"{sweep_id}-{clock.utc_ns()}",
        instance_id=f"simulated:{sweep_id}",
        machine=cfg.machine.name,
        sku="box",
        provider="test",
        cards=cfg.machine.cards,
        currency=row.currency,
        price_hash=row.hash,
        tags={"simulated": "true"},
    )
    ledger.leases.open(lease)
    ledger.leases.attach(lease.lease_id, sweep_id)
    journal.append(DriverStarted(lease.lease_id, pid=1))
    budget.use_lease(lease)
    view = View()
    settings = {"ledger": ledger, "journal": journal, "lease_id": lease.lease_id, "sweep_dir": folder / sweep_id}
    controller = SweepController(cfg, view=view, cards=cfg.machine.cards, budget=budget, **settings)
    executor = InProcessExecutor(clock, silence_seconds=cfg.retry.hung_after_seconds)
    return PaidSweep(cfg, clock, ledger, journal, budget, controller, view, executor, pricing)


def reserved(sweep: PaidSweep) -> dict[str, int]:
    """What is reserved now, by trial."""
    return {r.key.trial_id: r.amount.pico for r in sweep.ledger.reservations.find_open()}
