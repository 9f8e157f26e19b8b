"""Speed of the ledger's writes and reports, and the error of the same bill computed in floats. Does not use `runs/`.

    python benchmarks/ledger.py                    # 1e5, 3e5 and 1e6 usage rows; a few minutes
    python benchmarks/ledger.py --rows 100000 --json

Each size runs in a separate process, so that its peak memory is measured alone. Usage rows are phase durations as a
driver writes them: 100 per transaction, on disk with full synchronisation. 1e6 rows are 10,000 trials on 100 leases.
Compare figures of one run on one machine with each other, not with those of another machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cost.charges.attribution import attribute
from cost.clock import NS_PER_SECOND, FakeClock
from cost.ledger.ledger import Ledger
from cost.money import Money
from cost.prices.book import PriceBook
from cost.records import Lease, UsageKey
from cost.reports.by_trial import trial_rows

PHASES = ("rollout", "reward", "logprob", "train", "sync")
ROWS_PER_TRIAL = 100
TRIALS_PER_LEASE = 100
GROUP = 100
CARDS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="only this size")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args()
    if options.rows:
        results = [measure(options.rows)]
    else:
        results = []
        for rows in (100_000, 300_000, 1_000_000):
            command = [sys.executable, __file__, "--rows", str(rows), "--json"]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results += json.loads(output)
        for result in results[1:]:
            result["growth"] = growth(results[0], result)
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for result in results:
        print("  ".join(f"{name} {value}" for name, value in result.items()))


def growth(small: dict[str, Any], large: dict[str, Any]) -> str:
    """Time and memory per row relative to a smaller ledger: 1 where they grow linearly with the rows."""
    larger = large["rows"] / small["rows"]
    times = {name: large[f"{name}_s"] / max(small[f"{name}_s"], 0.01) for name in ("report_by_trial", "focus")}
    times |= {"append": larger * small["append_rows_per_s"] / large["append_rows_per_s"]}
    times |= {"memory": large["peak_mb"] / small["peak_mb"]}
    each = ", ".join(f"{name} x{value / larger:.2f}" for name, value in times.items())
    return f"x{larger:g} rows; per row, 1 is linear: {each}"


def measure(rows: int) -> dict[str, Any]:
    """Write `rows` usage rows, report them by trial and as FOCUS, and compare with pandas."""
    with tempfile.TemporaryDirectory(prefix="ledger-bench-") as folder:
        path = Path(folder) / "ledger.db"
        clock = FakeClock(utc=1_795_860_000 * NS_PER_SECOND)
        seconds = fill(path, clock, rows)
        result: dict[str, Any] = {"rows": rows, "append_rows_per_s": round(rows / seconds)}
        book = PriceBook.load()
        with Ledger.open(path, clock, read_only=True) as ledger:
            began = time.perf_counter()
            found = attribute(ledger, book, ledger.now_ns())
            report = trial_rows(found.lines, found)
            result["report_by_trial_s"] = round(time.perf_counter() - began, 2)
            result["trials"] = sum(row.kind == "trial" for row in report)
            began = time.perf_counter()
            write_focus(ledger, book, Path(folder) / "focus.csv")
            result["focus_s"] = round(time.perf_counter() - began, 2)
            # ru_maxrss is in KiB on Linux.
            result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            exact = sum(row.pico for row in report)
            increments = sum(row.categories.get("billing_increment", 0) for row in report)
        began = time.perf_counter()
        naive = in_pandas(path, book)
        result["pandas_float_s"] = round(time.perf_counter() - began, 2)
        total, left_out = Money(exact, "USD").amount, Money(increments, "USD").amount
        result |= {"total": str(total), "pandas_total": repr(naive), "pandas_off_by": str(Decimal(naive) - total)}
        # The naive sum ignores billing increments. The remaining difference is the error of the floats.
        result["off_by_floats"] = str(Decimal(naive) - (total - left_out))
        return result


def fill(path: Path, clock: FakeClock, rows: int) -> float:
    """Write leases of 100 trials. Eight trials run at once, and each reports five phases twenty times.

    Returns the seconds that writing the phases took.
    """
    trials = rows // ROWS_PER_TRIAL
    leases = max(trials // TRIALS_PER_LEASE, 1)
    quote = PriceBook.load().in_force("runpod-h100", clock.utc)
    appending = 0.0
    with Ledger.open(path, clock) as ledger:
        for number in range(leases):
            lease_id, sweep_id = f"lease-{number:04d}", f"sweep-{number:04d}"
            lease = Lease(
                *(
                    lease_id,
                    f"machine-{number}",
                    "h100x8",
                    quote.sku,
                    quote.provider,
                    CARDS,
                    quote.currency,
                    quote.hash,
                ),
                region=quote.region,
                purchase=quote.purchase,
                owner=f"user{number % 7}",
            )
            ledger.leases.open(lease)
            ledger.leases.attach(lease_id, sweep_id)
            clock.advance_seconds(61.7)
            for first in range(0, TRIALS_PER_LEASE, CARDS):
                keys = [
                    UsageKey(lease_id, f"{number:04d}-{trial:03d}", 1)
                    for trial in range(first, min(first + CARDS, TRIALS_PER_LEASE))
                ]
                with ledger.transaction():
                    for key in keys:
                        ledger.usages.start(key, sweep_id, Decimal(1), {"stage": "smoke", "lr": "1e-5", "steps": "20"})
                appending += _report(ledger, clock, keys)
                with ledger.transaction():
                    for key in keys:
                        ledger.usages.set_labels(key, {"state": "COMPLETED", "acc": "0.5"})
                        ledger.usages.end(key, "COMPLETED")
            ledger.leases.detach(lease_id, sweep_id, "done")
    return appending


def _report(ledger: Ledger, clock: FakeClock, keys: list[UsageKey]) -> float:
    """Write the reports of the trials in transactions of GROUP rows. Returns the seconds that this took."""
    began = time.perf_counter()
    reports = [(sequence, key) for sequence in range(ROWS_PER_TRIAL // len(PHASES)) for key in keys]
    per_transaction = GROUP // len(PHASES)
    for start in range(0, len(reports), per_transaction):
        with ledger.transaction():
            for sequence, key in reports[start : start + per_transaction]:
                seconds = {kind: (n + 1) * 1_234_567_891 for n, kind in enumerate(PHASES)}
                ledger.usages.add_phases(key, sequence, seconds)
        clock.advance(20 * 987_654_321)
    return time.perf_counter() - began


def write_focus(ledger: Ledger, book: PriceBook, path: Path) -> None:
    from cost.reports import focus

    now = ledger.now_ns()
    first = min(state.from_ns for state in ledger.leases.find())
    focus.write(attribute(ledger, book, now, cuts=focus.month_cuts(first, now)), path)


def in_pandas(path: Path, book: PriceBook) -> float:
    """The same bill in floats: hours times price per card-hour, summed with pandas."""
    import sqlite3

    import pandas

    with sqlite3.connect(path) as connection:
        usage = pandas.read_sql(
            "SELECT u.usage_id, u.lease_id, u.cards_micro / 1e6 AS cards, u.from_ns, e.to_ns "
            "FROM usage u JOIN usage_end e USING (usage_id)",
            connection,
        )
        lease = pandas.read_sql(
            "SELECT l.lease_id, l.cards, l.sku, l.from_ns, e.to_ns FROM lease l JOIN lease_end e USING (lease_id)",
            connection,
        )
        phase = pandas.read_sql("SELECT usage_id, kind, sequence, card_ns / 1e9 AS seconds FROM phase", connection)
    price = {sku: float(book.series(sku)[-1].price) for sku in lease.sku.unique()}
    usage["hours"] = (usage.to_ns / 1e9 - usage.from_ns / 1e9) / 3600 * usage.cards
    by_phase = phase.groupby(["usage_id", "kind"]).seconds.sum().reset_index()
    by_phase["share"] = by_phase.seconds / by_phase.groupby("usage_id").seconds.transform("sum")
    joined = by_phase.merge(usage, on="usage_id").merge(lease[["lease_id", "sku"]], on="lease_id")
    trials = (joined.hours * joined.share * joined.sku.map(price)).sum()
    used = usage.groupby("lease_id").hours.sum()
    lease["hours"] = (lease.to_ns / 1e9 - lease.from_ns / 1e9) / 3600 * lease.cards
    idle = ((lease.hours - lease.lease_id.map(used).fillna(0.0)) * lease.sku.map(price)).sum()
    return float(trials + idle)


if __name__ == "__main__":
    main()
