"""Reports of random ledgers against `oracle`, a second implementation of the rules that shares no code with `cost`."""

from __future__ import annotations

import ast
import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from cost.charges.metered import MeteredResource, add_resource
from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import StateChange, set_state
from cost.money import PICO_PER_UNIT
from cost.periods import instant_text, zone_of
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow
from cost.records import Correction, Lease, UsageKey
from cost.reports.csv_json import as_json
from cost.reports.grouped import ReportScope, grouped_report
from tests.cost import oracle
from tests.cost.oracle import HOUR, SECOND, Disk, Entry, Hold, Machine, Price, Rule, Use

START = 1_761_350_400 * SECOND
"""2025-10-25T00:00:00Z: clocks change in Berlin on the next day and in New York on November 2, and a month ends."""
SPAN = 12 * 24 * HOUR
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Shanghai", "Australia/Lord_Howe")
PHASES = ("startup", "rollout", "reward", "logprob", "train", "sync", "evaluation", "checkpoint", "other")
OUTCOMES = ("COMPLETED", "COMPLETED", "PRUNED", "FAILED", "PREEMPTED", "CANCELLED")
CREDITS = ("credit", "refund", "fee", "adjustment", "tax")


@pytest.mark.parametrize("seed", range(200))
def test_oracle_agrees_with_the_report_of_a_random_ledger_to_the_last_unit(seed, tmp_path):
    machines, now_ns = random_machines(random.Random(seed))
    zone = ZONES[seed % len(ZONES)]
    clock = FakeClock(utc=START)
    with Ledger.open(str(tmp_path / "ledger.db"), clock) as ledger:
        book, rules = record(machines, ledger, clock, now_ns)

        def report(by: str) -> dict:
            scope = ReportScope(by=by, zone=zone_of(zone))
            return json.loads(as_json(grouped_report(ledger, book, scope, now_ns, rules=rules)))

        by_trial, by_day = report("trial"), report("day")

    expected = oracle.amounts(machines, now_ns)
    found: dict[tuple[str, str, str, str], int] = {}
    for row in by_trial["trials"] + by_trial["overheads"]:
        for category, amount in row["categories"].items():
            key = (row["currency"], row["sweep_id"], row.get("trial_id", ""), category)
            found[key] = found.get(key, 0) + pico(amount)
    assert {k: v for k, v in found.items() if v} == {k: v for k, v in expected.by_category.items() if v}

    days: dict[tuple[str, str], int] = {(row["currency"], row["name"]): pico(row["cost"]) for row in by_day["groups"]}
    by_zone = oracle.amounts_by_day(machines, now_ns, zone).by_day
    assert {k: v for k, v in days.items() if v} == {k: v for k, v in by_zone.items() if v}

    totals: dict[str, int] = defaultdict(int)
    for (currency, *_), amount in expected.by_category.items():
        totals[currency] += amount
    for report_of in (by_trial, by_day):
        assert {k: pico(v["cost"]) for k, v in report_of["totals"].items()} == dict(totals)


def test_oracle_ledgers_contain_every_rule_that_the_oracle_knows():
    """A generator that stopped making stops, taxes or lost work would make the comparison above pass for nothing."""
    every = [machine for seed in range(200) for machine in random_machines(random.Random(seed))[0]]
    assert any(len(machine.prices) > 2 for machine in every)
    assert any(machine.prices[0].tax and not machine.prices[0].tax_included for machine in every)
    assert any(machine.changes and "stopped" in machine.rule.billed_states for machine in every)
    assert any(machine.changes and "stopped" not in machine.rule.billed_states for machine in every)
    assert {machine.rule.rounding for machine in every} == {"up", "down", "nearest"}
    assert {machine.rule.charged_ahead for machine in every} == {True, False}
    assert {machine.rule.hourly_price for machine in every} == {True, False}
    assert any(machine.to_ns is None for machine in every)
    assert any(machine.taken_back and machine.rule.waiver_s for machine in every)
    categories = {key[3] for seed in range(200) for key in amounts_of(seed)}
    assert categories >= {*PHASES, "recovery", "lost_work", "idle", "startup", "teardown", "unassigned", "stopped"}
    assert categories >= {"billing_increment", "tax", "credit", "refund", "storage"}
    with_disk = [machine for machine in every if machine.disks]
    assert {machine.rule.storage for machine in with_disk} == {"none", "while_running", "while_stopped", "daily"}
    assert any(disk.to_ns is None and machine.to_ns is None for machine in with_disk for disk in machine.disks)


def test_oracle_imports_nothing_of_the_product():
    tree = ast.parse(Path(oracle.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.split(".")[0] for node in imports for name in module_names(node)}
    assert names
    assert not names & {"cost", "rl", "sweeps", "tests"}


def module_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]


def amounts_of(seed: int) -> dict:
    machines, now_ns = random_machines(random.Random(seed))
    return oracle.amounts(machines, now_ns).by_category


def pico(amount: str) -> int:
    return int(Decimal(amount) * PICO_PER_UNIT)


# Random machines


def random_machines(rng: random.Random) -> tuple[list[Machine], int]:
    """One to three machines within some days, and the moment of the report."""
    now_ns = START + rng.randrange(2 * 24 * HOUR, SPAN)
    return [random_machine(rng, f"L{number}", now_ns) for number in range(rng.randint(1, 3))], now_ns


def random_machine(rng: random.Random, name: str, now_ns: int) -> Machine:
    from_ns = START + rng.randrange(now_ns - START - 12 * HOUR)
    end = min(now_ns, from_ns + rng.choice([rng.randrange(60 * SECOND, 2 * HOUR), rng.randrange(HOUR, 5 * 24 * HOUR)]))
    is_open = rng.random() < 0.2
    end = now_ns if is_open else end
    cards = rng.choice([1, 1, 2, 3, 8])
    rule = random_rule(rng)
    holds, uses, changes = _Timeline(rng, cards, from_ns, end, is_open).run()
    entries = tuple(random_entry(rng, holds, uses, from_ns, end) for _ in range(rng.choice([0, 0, 1, 3])))
    return Machine(
        name=name,
        cards=cards,
        currency=rng.choice(["USD", "USD", "EUR"]),
        from_ns=from_ns,
        to_ns=None if is_open else end,
        taken_back=not is_open and rng.random() < 0.2,
        prices=random_prices(rng),
        rule=rule,
        holds=holds,
        uses=uses,
        changes=changes,
        entries=entries,
        disks=tuple(random_disk(rng, from_ns, end) for _ in range(rng.choice([0, 0, 1, 2]))),
    )


def random_disk(rng: random.Random, from_ns: int, end: int) -> Disk:
    """Some GiB from a moment of the lease on, until the lease ends or until an earlier moment."""
    start = rng.randrange(from_ns, end)
    stop = None if rng.random() < 0.5 else rng.randrange(start + 1, end + 1)
    prices = tuple(replace(price, per_card=False) for price in random_prices(rng))
    return Disk(Fraction(rng.randrange(1, 5000), 4), start, stop, prices)


def random_rule(rng: random.Random) -> Rule:
    granularity = rng.choice([1, 1, 60, 900, 3600])
    return Rule(
        granularity_s=granularity,
        minimum_s=rng.choice([0, 60, 3600]),
        rounding=rng.choice(["up", "up", "down", "nearest"]),
        charged_ahead=rng.random() < 0.25,
        billed_states=rng.choice([("running",), ("running",), ("running", "stopped")]),
        hourly_price=rng.random() < 0.3,
        waiver_s=rng.choice([0, 3600]),
        least=rng.choice([Fraction(0), Fraction(1, 100), Fraction(40)]),
        storage=rng.choice(["none", "while_running", "while_stopped", "daily"]),
        zone=rng.choice(ZONES),
    )


def random_prices(rng: random.Random) -> tuple[Price, ...]:
    """A series without a gap; tax can change with the price."""
    edges = sorted(START + rng.randrange(SPAN) // SECOND * SECOND for _ in range(rng.choice([0, 0, 1, 2, 6])))
    starts = [START - 24 * HOUR, *edges]
    per_card = rng.random() < 0.5
    taxes = [rng.choice([Fraction(0), Fraction(19, 100), Fraction(825, 10_000)]) for _ in starts]
    return tuple(
        Price(
            from_ns=start,
            to_ns=stop,
            amount=Fraction(rng.randrange(1, 9_999_999), 10 ** rng.choice([3, 6])),
            per_card=per_card,
            tax=tax,
            tax_included=rng.random() < 0.1,
        )
        for start, stop, tax in zip(starts, [*starts[1:], None], taxes, strict=True)
        if start != stop
    )


def random_entry(rng: random.Random, holds: tuple[Hold, ...], uses: tuple[Use, ...], from_ns: int, end: int) -> Entry:
    sweep, trial = "", ""
    if uses and rng.random() < 0.5:
        use = rng.choice(uses)
        sweep, trial = use.sweep, use.trial
    elif holds and rng.random() < 0.5:
        sweep = rng.choice(holds).sweep
    return Entry(sweep, trial, rng.choice(CREDITS), rng.randrange(-(10**13), 10**12), rng.randrange(from_ns, end + 1))


class _Timeline:
    """What happens on one machine: sweeps come and go, attempts use cards and report, the machine is stopped."""

    def __init__(self, rng: random.Random, cards: int, from_ns: int, end: int, is_open: bool) -> None:
        self.rng, self.free, self.at, self.end, self.is_open = rng, cards * 10**6, from_ns, end, is_open
        self.holds: list[Hold] = []
        self.uses: list[Use] = []
        self.changes: list[tuple[int, str]] = []
        self.attached: dict[str, int] = {}
        self.running: list[Use] = []
        self.attempts: dict[tuple[str, str], int] = defaultdict(int)
        self.stopped = False

    def run(self) -> tuple[tuple[Hold, ...], tuple[Use, ...], tuple[tuple[int, str], ...]]:
        length = self.end - self.at
        for _ in range(self.rng.choice([0, 3, 10, 25])):
            self.at += self.rng.randrange(1, max(2, length // 8))
            if self.at >= self.end:
                break
            self.rng.choice([self.attach, self.start, self.start, self.finish, self.finish, self.detach, self.stop])()
        self.at = self.end
        if not self.is_open:
            while self.running:
                self.finish()
            while self.attached:
                self.detach()
        uses = [*self.uses, *self.running]
        holds = [*self.holds, *(Hold(sweep, from_ns, None) for sweep, from_ns in self.attached.items())]
        order = {use.from_ns: use for use in uses}
        assert len(order) == len(uses)
        return (
            tuple(sorted(holds, key=lambda hold: hold.from_ns)),
            tuple(sorted(uses, key=lambda use: use.from_ns)),
            tuple(self.changes),
        )

    def attach(self) -> None:
        sweep = f"s{self.rng.randint(1, 3)}"
        if not self.stopped and sweep not in self.attached:
            self.attached[sweep] = self.at

    def detach(self) -> None:
        idle = [sweep for sweep in self.attached if all(use.sweep != sweep for use in self.running)]
        if idle:
            sweep = self.rng.choice(idle)
            self.holds.append(Hold(sweep, self.attached.pop(sweep), self.at))

    def start(self) -> None:
        if self.stopped or not self.free:
            return
        if not self.attached:
            self.attach()
            return
        sweep = self.rng.choice(sorted(self.attached))
        trial = f"{sweep}-t{self.rng.randint(1, 4)}"
        if any((use.sweep, use.trial) == (sweep, trial) for use in self.running):
            return
        sizes = [n for n in (10**6, 10**6, 2 * 10**6, 500_000, self.free) if n <= self.free]
        self.attempts[sweep, trial] += 1
        use = Use(sweep, trial, self.attempts[sweep, trial], self.rng.choice(sizes), self.at, None, "", ())
        self.free -= use.micro_cards
        self.running.append(use)

    def finish(self) -> None:
        if not self.running:
            return
        use = self.running.pop(self.rng.randrange(len(self.running)))
        self.free += use.micro_cards
        granted = use.micro_cards * (self.at - use.from_ns) // 10**6
        count = self.rng.choice([0, 2, 6])
        left, reports = granted * self.rng.choice([90, 100, 103]) // 100, []
        for number in range(1, count + 1):
            card_ns = self.rng.randrange(left // count + 1)
            if card_ns:
                reports.append((number, self.rng.choice(PHASES), card_ns))
        if count and self.rng.random() < 0.1:
            reports.append((count + 1, "train", granted))
        outcome = self.rng.choice(OUTCOMES)
        self.uses.append(
            Use(use.sweep, use.trial, use.attempt, use.micro_cards, use.from_ns, self.at, outcome, tuple(reports))
        )

    def stop(self) -> None:
        if self.running or (self.rng.random() < 0.5 and not self.stopped):
            return
        self.stopped = not self.stopped
        self.changes.append((self.at, "stopped" if self.stopped else "running"))


# Their ledger


def record(
    machines: list[Machine], ledger: Ledger, clock: FakeClock, now_ns: int
) -> tuple[PriceBook, list[BillingRule]]:
    """Write the machines into a ledger as drivers would, in the order of time; also their prices and rules."""
    rows = [row for machine in machines for row in (*price_rows(machine), *disk_rows(machine))]
    book = PriceBook(tuple(rows), folder=str(Path(ledger.place)))
    rules = [billing_rule(machine) for machine in machines]
    actions: list[tuple[int, int, Callable[[], object]]] = []

    def at(ns: int, action: Callable[..., object], *args: object) -> None:
        actions.append((ns, len(actions), lambda: action(*args)))

    for machine in machines:
        at(machine.from_ns, ledger.leases.open, lease_of(machine))
        for hold in machine.holds:
            at(hold.from_ns, ledger.leases.attach, machine.name, hold.sweep)
        for use in machine.uses:
            key = UsageKey(machine.name, use.trial, use.attempt)
            at(use.from_ns, ledger.usages.start, key, use.sweep, Decimal(use.micro_cards) / 10**6, {})
            if use.to_ns is not None:
                for number, phase, card_ns in use.reports:
                    at(use.to_ns, ledger.usages.add_phases, key, number, {phase: card_ns})
                at(use.to_ns, ledger.usages.end, key, use.outcome)
        for ns, state in machine.changes:
            at(ns, set_state, ledger, StateChange(machine.name, state, ns), rules)
        for hold in machine.holds:
            if hold.to_ns is not None:
                at(hold.to_ns, ledger.leases.detach, machine.name, hold.sweep, "done")
        if machine.to_ns is not None:
            at(machine.to_ns, ledger.leases.close, machine.name, "taken_back" if machine.taken_back else "done")
        for number, disk in enumerate(machine.disks):
            name, quantity = f"{machine.name}-disk-{number}", Decimal(disk.gib.numerator) / disk.gib.denominator
            kind = (lease_of(machine).purchase, "", "list")
            resource = MeteredResource(name, machine.name, name, *kind, quantity, disk.from_ns, disk.to_ns)
            row = next(row for row in rows if row.sku == name)
            at(now_ns, add_resource, ledger, resource, row, ())
        for number, entry in enumerate(machine.entries):
            correction = Correction(
                f"{machine.name}-{number}",
                *(machine.name, entry.category, entry.pico, machine.currency, entry.at_ns, "test"),
                sweep_id=entry.sweep,
                trial_id=entry.trial,
            )
            at(now_ns, ledger.corrections.add, correction)
    for ns, _, action in sorted(actions, key=lambda one: one[:2]):
        clock.advance(ns - clock.utc)
        action()
    clock.advance(now_ns - clock.utc)
    return book, rules


def lease_of(machine: Machine) -> Lease:
    return Lease(
        lease_id=machine.name,
        instance_id=machine.name,
        machine="box",
        sku=machine.name,
        provider=machine.name,
        cards=machine.cards,
        currency=machine.currency,
        price_hash=price_rows(machine)[0].hash,
        purchase="spot" if machine.rule.hourly_price else "on_demand",
        opened_by="hand",
        from_ns=machine.from_ns,
    )


def price_rows(machine: Machine) -> list[PriceRow]:
    per = "card_hour" if machine.prices[0].per_card else "machine_hour"
    return rows_of(machine, machine.name, per, machine.prices)


def disk_rows(machine: Machine) -> list[PriceRow]:
    return [
        row
        for number, disk in enumerate(machine.disks)
        for row in rows_of(machine, f"{machine.name}-disk-{number}", "gib_month", disk.prices)
    ]


def rows_of(machine: Machine, sku: str, per: str, prices: tuple[Price, ...]) -> list[PriceRow]:
    return [
        PriceRow(
            provider=machine.name,
            sku=sku,
            region="",
            per=per,
            cards=0 if per == "gib_month" else machine.cards,
            purchase="spot" if machine.rule.hourly_price else "on_demand",
            currency=machine.currency,
            price=exact(price.amount),
            tax_included=price.tax_included,
            tax_rate=exact(price.tax),
            valid_from=instant_text(price.from_ns),
            valid_to="" if price.to_ns is None else instant_text(price.to_ns),
            source="test",
            day_read="2025-10-01",
        )
        for price in prices
    ]


def billing_rule(machine: Machine) -> BillingRule:
    rule = machine.rule
    return BillingRule(
        provider=machine.name,
        granularity_s=rule.granularity_s,
        minimum_s=rule.minimum_s,
        rounding=rule.rounding,
        charged_ahead=rule.charged_ahead,
        billed_states=rule.billed_states,
        spot_price_rule="instance_hour" if rule.hourly_price else "moment",
        interruption_waiver_s=rule.waiver_s,
        storage_rule=rule.storage,
        source="test",
        day_read="2025-10-01",
        minimum_amount=exact(rule.least),
        timezone=rule.zone,
    )


def exact(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
