"""A ledger of two small sweeps with its price book, for tests of the commands."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.cli.main import app
from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.prices.book import PriceBook
from cost.records import UsageKey


def run(*arguments: object, code: int = 0) -> str:
    """The output of a command that must exit with `code`; only standard output if that is 0."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output + result.stderr
    return result.stdout if code == 0 else result.output


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(utc=1_795_860_000 * 10**9)  # 2026-11-28T10:00:00Z


@pytest.fixture
def pricing(tmp_path: Path) -> Path:
    folder = tmp_path / "pricing"
    folder.mkdir()
    rule = (
        "granularity_s: 1, minimum_s: 0, rounding: up, charged_ahead: false, billed_states: [running], "
        "spot_price_rule: moment, interruption_waiver_s: 0, storage_rule: none, source: a page, day_read: 2026-11-29"
    )
    (folder / "billing.yaml").write_text(f"rules:\n  - {{provider: cloud, {rule}}}\n", encoding="utf-8")
    row = (
        "provider: cloud, sku: box, per: machine_hour, cards: 8, currency: USD, price: '8.10', valid_from: 2026-01-01, "
        "source: 'https://example.org', day_read: 2026-11-29"
    )
    (folder / "cloud.yaml").write_text(f"prices:\n  - {{{row}}}\n", encoding="utf-8")
    fx = "base: EUR, quote: USD, rate: '1.25', day: 2026-11-01, source: a bank, day_read: 2026-11-29"
    (folder / "fx.yaml").write_text(f"rates:\n  - {{{fx}}}\n", encoding="utf-8")
    return folder


@pytest.fixture
def root(tmp_path: Path, clock: FakeClock, make_lease, pricing: Path) -> Path:
    """The root folder of two sweeps on two machines, each with an hour of startup and two trials over midnight."""
    digest = PriceBook.load(pricing).rows[0].hash
    folder = tmp_path / "runs"
    with Ledger.open(folder / "ledger.db", clock) as ledger:
        for number, stage in enumerate(("smoke", "single"), 1):
            lease, sweep = f"L{number}", f"sweep-{number}"
            more = {"sku": "box", "provider": "cloud", "owner": f"user{number}", "tags": {"team": "rl"}}
            ledger.leases.open(make_lease(lease, price_hash=digest, **more))
            ledger.leases.attach(lease, sweep)
            clock.advance_seconds(3600)
            for trial in ("a", "b"):
                key = UsageKey(lease, f"{sweep}-{trial}", 1)
                labels = {"stage": stage, "state": "COMPLETED", "acc": "0.75"}
                ledger.usages.start(key, sweep, Decimal(8), labels)
                clock.advance(13 * 1800 * 10**9 + 1)
                ledger.usages.end(key, "COMPLETED")
            ledger.leases.detach(lease, sweep, "done")
    return folder
