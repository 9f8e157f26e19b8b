"""Whatever drivers do, in whatever order: the books stay whole, and every lease's parts sum to its charge."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cost.charges import metered
from cost.charges.attribution import attribute
from cost.charges.commitments import Commitment, add_commitment
from cost.charges.metered import MeteredResource
from cost.clock import FakeClock
from cost.close.check import run_checks
from cost.ledger.ledger import Ledger
from cost.ledger.machine_states import StateChange, set_state
from cost.money import Money, pico_of
from cost.periods import zone_of
from cost.prices.billing import BillingRule
from cost.prices.book import PriceBook, PriceRow
from cost.records import OUTCOMES, PHASES, IntegrityError, Lease, LedgerError, UsageKey
from cost.reports import focus
from cost.reports.by_trial import sweep_report
from cost.reports.grouped import GROUPINGS, ReportScope, grouped_report

SECOND = 10**9
STATES = ("running", "standby")
RULES = (BillingRule("cloud", 60, 120, "up", False, STATES, "moment", 0, "while_running", "page", "2025-12-01"),)
CHEAP = PriceRow(
    *("cloud", "box", "", "card_hour", 0, "on_demand", "USD", Decimal("0.333333"), False, Decimal("0.19")),
    *("2025-01-01", "2026-01-02", "https://example.org", "2025-12-01"),
)
DEAR = PriceRow(
    *("cloud", "box", "", "card_hour", 0, "on_demand", "USD", Decimal("1.97"), False, Decimal("0.07")),
    *("2026-01-02", "", "https://example.org", "2025-12-01"),
)
AGREED = replace(CHEAP, kind="contracted", price=Decimal("0.29"), valid_to="")
DISK = replace(AGREED, sku="disk", per="gib_month", kind="list")
BOOK = PriceBook((CHEAP, DEAR, AGREED, DISK))

leases = st.sampled_from(["L1", "L2"])
sweeps = st.sampled_from(["s1", "s2"])
trials = st.sampled_from(["t1", "t2", "t3"])


class Story(RuleBasedStateMachine):
    """Drivers that may do anything; what the ledger refuses is part of the story."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.ledger = Ledger.open(Path(self.folder.name) / "ledger.db", self.clock)
        self.opened: dict[str, int] = {}
        self.attempts: dict[str, int] = {}
        self.reports = 0
        self.reported: dict[UsageKey, int] = {}
        start, paid = self.clock.utc + 3600 * SECOND, Money.parse("77.77 USD")
        add_commitment(self.ledger, Commitment("cb", "reserved", "cloud", "box", 2, paid, start, start + 10**14), ())

    def lease_id(self, name: str) -> str:
        return f"{name}.{self.opened.get(name, 0)}"

    @rule(name=leases, cards=st.integers(1, 4), by=st.sampled_from(["sweep", "hand"]))
    def open_lease(self, name, cards, by):
        self.open_lease_of(name, cards, by)

    def open_lease_of(self, name: str, cards: int = 2, by: Any = "sweep") -> None:
        state = self.ledger.leases.open_on(name)
        if state is None:
            self.opened[name] = self.opened.get(name, 0) + 1
            # The first machine is charged at the contracted price, the second by its commitment while that lasts.
            price, tags = (AGREED.hash, {}) if name == "L1" else (CHEAP.hash, {"commitment": "cb"})
            lease = Lease(self.lease_id(name), name, "m", "box", "cloud", cards, "USD", price, opened_by=by, tags=tags)
            self.ledger.leases.open(lease)

    @rule(name=leases, sweep=sweeps)
    def attach(self, name, sweep):
        self.attach_to(name, sweep)

    def attach_to(self, name, sweep):
        with contextlib.suppress(IntegrityError):
            self.ledger.leases.attach(self.lease_id(name), sweep)

    @rule(name=leases, sweep=sweeps)
    def detach(self, name, sweep):
        with contextlib.suppress(IntegrityError):
            self.ledger.leases.detach(self.lease_id(name), sweep, "done")

    @rule(name=leases)
    def close(self, name):
        with contextlib.suppress(IntegrityError):
            self.ledger.leases.close(self.lease_id(name), "by hand")

    @rule(name=leases, state=st.sampled_from(["stopped", "standby", "running"]))
    def stop_or_start(self, name, state):
        with contextlib.suppress(LedgerError):
            set_state(self.ledger, StateChange(self.lease_id(name), state, self.ledger.now_ns()), RULES)

    @rule(name=leases, gib=st.integers(1, 999))
    def keep_a_disk(self, name, gib):
        with contextlib.suppress(LedgerError):
            start, number = self.ledger.leases.get(self.lease_id(name)).from_ns, sum(self.opened.values())
            terms = ("disk", DISK.purchase, DISK.region, DISK.kind, Decimal(gib), start, self.ledger.now_ns())
            metered.add_resource(
                self.ledger, MeteredResource(f"{name}-{number}-{gib}", self.lease_id(name), *terms), DISK, ()
            )

    @rule(name=leases, sweep=sweeps, trial=trials, cards=st.sampled_from(["0.25", "0.333333", "1", "2", "4"]))
    def start(self, name, sweep, trial, cards):
        self.open_lease_of(name)
        self.attach_to(name, sweep)
        number = self.attempts.get(trial, 0) + 1
        with contextlib.suppress(IntegrityError):
            self.ledger.usages.start(
                UsageKey(self.lease_id(name), trial, number), sweep, Decimal(cards), {"stage": sweep}
            )
            self.attempts[trial] = number

    @rule(which=st.integers(0, 5), shares=st.dictionaries(st.sampled_from(PHASES), st.integers(1, 9), max_size=4))
    def report(self, which, shares):
        """A trial reports durations that fit into the time since it began."""
        running = self.ledger.usages.find(only_open=True)
        if not running or not shares:
            return
        usage = running[which % len(running)]
        self.reports += 1
        held = int((self.ledger.now_ns() - usage.from_ns) * usage.cards)
        done = self.reported.get(usage.key, 0)
        left = (held - done) // 10 // sum(shares.values())
        parts = {kind: left * share for kind, share in shares.items()}
        self.reported[usage.key] = done + sum(parts.values())
        self.ledger.usages.add_phases(usage.key, self.reports, parts)

    @rule(which=st.integers(0, 5), outcome=st.sampled_from(OUTCOMES))
    def end(self, which, outcome):
        running = self.ledger.usages.find(only_open=True)
        if running:
            self.ledger.usages.end(running[which % len(running)].key, outcome)

    @rule(name=leases)
    def beat(self, name):
        with contextlib.suppress(IntegrityError):
            keys = [u.key for u in self.ledger.usages.find(only_open=True) if u.key.lease_id == self.lease_id(name)]
            self.ledger.heartbeat(self.lease_id(name), keys)

    @rule(ns=st.integers(1, 40_000 * SECOND))
    def wait(self, ns):
        self.clock.advance(ns)

    @rule(ns=st.integers(-(10**14), 10**14))
    def set_the_clock(self, ns):
        self.clock.step_wall(ns)

    @rule(name=leases, sweep=sweeps)
    def die_inside_a_transaction(self, name, sweep):
        with contextlib.suppress(IntegrityError, RuntimeError), self.ledger.transaction():
            self.ledger.leases.attach(self.lease_id(name), sweep)
            self.ledger.events.append("journal", "half", {}, f"{self.reports}")
            raise RuntimeError

    @invariant()
    def nothing_half_written(self):
        assert list(self.ledger.events.read("journal")) == []

    def teardown(self):
        now = self.ledger.now_ns()
        findings = run_checks(self.ledger, BOOK, now, rules=RULES)
        assert [f for f in findings if f.check != "closed" and "but only 2 were bought" not in f.what] == []
        totals, costs = set(), set()
        for by in GROUPINGS:
            scope = ReportScope(by=by, zone=zone_of("Asia/Kathmandu"))
            report = grouped_report(self.ledger, BOOK, scope, now, rules=RULES)
            totals.add(report.total_pico)
            costs.add(tuple(report.costs_in("USD").values()))
        assert len(totals) == len(costs) == 1, "every grouping has the same total, and the same at each kind of price"
        found = attribute(self.ledger, BOOK, now, cuts=focus.month_cuts(self.clock.utc - 10**17, now), rules=RULES)
        names, rows = ("ContractedCost", "EffectiveCost", "BilledCost"), list(focus.rows(found))
        contracted, *others = (sum(pico_of(Decimal(row[name])) for row in rows) for name in names)
        _, contracted_here, *others_here = costs.pop()
        bought = sum(line.paid_pico for line in found.lines)
        assert (contracted - bought, *others) == (contracted_here, *others_here), "and in the finance file"
        mine = sum(sweep_report(self.ledger, BOOK, sweep, now, rules=RULES).total_pico for sweep in ("s1", "s2"))
        nobody = grouped_report(self.ledger, BOOK, ReportScope(by="sweep"), now, rules=RULES)
        assert mine + sum(row.pico for row in nobody.rows if row.name == "(none)") == totals.pop()
        self.ledger.close()
        self.folder.cleanup()


TestStory: Any = Story.TestCase
TestStory.settings = settings(
    max_examples=25,
    # Shrinking a story takes minutes, and the story is printed as it is.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
