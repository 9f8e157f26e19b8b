"""The machine a sweep runs on, as money: its price in force, the lease that is held, the limit that is kept."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import floor

from cost.charges import commitments
from cost.charges.chargeback import COST_CENTER, Chargeback, required_names, set_chargeback
from cost.charges.power import measured_watts
from cost.clock import SystemClock
from cost.ledger.ledger import Ledger
from cost.ledger.release_requests import note_in_use
from cost.money import Money, money_text
from cost.prices.billing import load_rules
from cost.prices.book import MissingPriceError, PriceBook, PriceError, PriceRow, hourly
from cost.records import FORECASTS, Lease, LedgerError
from sweeps.config.overrides import CONF_DIR
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.forecast.step_time import StepTime
from sweeps.journal.journal import decisions, replay
from sweeps.planning.plan import PlannedTrial


@dataclass(frozen=True)
class Pricing:
    """What the machine costs; `row` is None where it runs unpriced by permission."""

    book: PriceBook
    row: PriceRow | None
    per_hour: Money | None

    def of(self, seconds: float) -> str:
        if self.per_hour is None:
            return "UNPRICED"
        nanos = round(seconds * 1e9)
        return money_text(Money(self.per_hour.pico * nanos // (3600 * 10**9), self.per_hour.currency))


def find_price(cfg: SweepConfig) -> Pricing:
    """The machine's price in force now.

    Raises:
        ConfigError: there is none, and the configuration does not allow to go on unpriced.
    """
    machine = cfg.machine
    try:
        book = PriceBook.load(CONF_DIR / "pricing")
        load_rules(CONF_DIR / "pricing")  # read by the reports: what is wrong in it is said before anything is billed
    except PriceError as error:
        raise ConfigError(f"machine={machine.name}: {error}") from error
    try:
        row = book.in_force(
            machine.sku,
            SystemClock().utc_ns(),
            purchase=machine.purchase,
            region=machine.region or None,
        )
        return Pricing(book, row, hourly(row, machine.cards, Decimal(str(machine.watts))))
    except MissingPriceError as error:
        if cfg.budget.allow_unpriced:
            return Pricing(book, None, None)
        raise ConfigError(f"machine={machine.name}: {error}; or budget.allow_unpriced=true runs it unpriced") from error
    except PriceError as error:
        raise ConfigError(f"machine={machine.name}: {error}") from error


def forecast_labels(cfg: SweepConfig, pricing: Pricing, trial: PlannedTrial, time: StepTime | None) -> dict[str, str]:
    """What a trial will cost at the machine's price per card, P50 and P90, as the ledger keeps it; empty where that is
    not known: nothing was measured on this machine, or it has no price."""
    seconds = time.forecast(trial, cfg.stage.steps) if time else None
    if seconds is None or pricing.per_hour is None:
        return {}
    hour, currency = pricing.per_hour.pico, pricing.per_hour.currency
    of_hour = Fraction(cfg.search.cards_per_trial, cfg.machine.cards * 3600)
    amounts = (str(Money(floor(hour * of_hour * Fraction(value)), currency)) for value in seconds)
    return dict(zip(FORECASTS, amounts, strict=True))


def machine_instance(cfg: SweepConfig, sweep_id: str) -> str:
    """The machine's own identity: this host's, by name; of a simulated one, the sweep's."""
    if cfg.trainer.name == "simulated":
        return f"simulated:{sweep_id}"
    return f"{socket.gethostname()}:{cfg.machine.name}"


def draws_power(pricing: Pricing) -> bool:
    """Own hardware, priced by the energy that it takes."""
    return pricing.row is not None and pricing.row.per == "kwh"


def hold_machine(cfg: SweepConfig, ledger: Ledger, sweep_id: str, pricing: Pricing) -> str:
    """Attach to the machine's open lease, or open one. A simulated machine is never a real one's instance.

    Sweeps that have ended, and answer for the machine only because it did not go with them, are detached: it works for
    this one now.

    Raises:
        ConfigError: the machine's lease says that it is stopped, or the books require a tag that the sweep lacks, or
            know nothing of the commitment that it names.
    """
    simulated = cfg.trainer.name == "simulated"
    instance = machine_instance(cfg, sweep_id)
    with ledger.transaction():
        budget = cfg.budget
        tags = {**budget.tags} | ({COST_CENTER: budget.cost_center} if budget.cost_center else {})
        whom = Chargeback(budget.owner, budget.project, tags)
        if not simulated:
            _check_whom(ledger, whom)
        set_chargeback(ledger, sweep_id, whom)
        state = ledger.open_lease_of(instance)
        if state is None:
            machine = cfg.machine
            watts = measured_watts(ledger, instance) if draws_power(pricing) else None
            if watts is None and machine.watts:
                watts = Decimal(str(machine.watts))
            lease = Lease(
                lease_id=f"{sweep_id}-{ledger.now_ns():x}",
                instance_id=instance,
                machine=machine.name,
                sku=machine.sku,
                provider=pricing.row.provider if pricing.row else machine.provider,
                cards=machine.cards,
                currency=pricing.row.currency if pricing.row else "USD",
                price_hash=pricing.row.hash if pricing.row else None,
                resource_id=machine.instance_id,
                region=machine.region,
                purchase=pricing.row.purchase if pricing.row else machine.purchase,
                watts=watts,
                owner=budget.owner,
                project=budget.project,
                tags=tags | ({"simulated": "true"} if simulated else {}),
            )
            ledger.open_lease(lease)
            ledger.remember_prices([pricing.row] if pricing.row else [])
            lease_id = lease.lease_id
        else:
            lease_id = state.lease.lease_id
            note_in_use(ledger, lease_id)
        try:
            ledger.attach(lease_id, sweep_id)
        except LedgerError as error:
            raise ConfigError(f"machine={cfg.machine.name}: {error}") from error
        for other in state.sweeps if state else ():
            if other != sweep_id and replay(other, decisions(ledger, other)).ended is not None:
                ledger.detach(lease_id, other, "done")
    return lease_id


def _check_whom(ledger: Ledger, whom: Chargeback) -> None:
    if lacking := whom.missing(required_names(ledger)):
        keys = (
            "budget." + name if name in ("owner", "project", COST_CENTER) else f"+budget.tags.{name}"
            for name in lacking
        )
        raise ConfigError(
            f"the books require {', '.join(lacking)} of every sweep, and this one has none: add "
            f"{' '.join(f'{key}=NAME' for key in keys)} (`python -m cost leases require` says what is required)"
        )
    if commitments.TAG in whom.tags:
        try:
            commitments.find_commitment(ledger, whom.tags[commitments.TAG])
        except LedgerError as error:
            raise ConfigError(f"budget.tags.{commitments.TAG}: {error}") from error


def ray_address(cfg: SweepConfig) -> str:
    """Where the Ray is that runs the trials; `local`: one of our own on this host."""
    cluster = cfg.machine.cluster
    return os.environ.get("RAY_ADDRESS", "local") if cluster == "auto" else cluster
