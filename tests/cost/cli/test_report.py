"""`python -m cost report` on a ledger of two small sweeps."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.cli.main import app
from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.prices.book import PriceBook
from cost.records import Correction, Lease, UsageKey
from tests.cost.cli.conftest import run


@pytest.fixture
def report(root: Path, pricing: Path):
    return lambda *more, **how: run("report", "--root", root, "--pricing", pricing, *more, **how)


def test_the_latest_sweep_is_reported_by_trial_within_100_columns(report):
    text = report()
    assert "sweep-2-a" in text
    assert "sweep-1-a" not in text
    assert "startup" in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[1:] == report("--sweep", "sweep-2").splitlines()[1:]


def test_json_trials_and_overheads_add_up_to_the_total(report):
    body = json.loads(report("--json"))
    assert [t["trial_id"] for t in body["trials"]] == ["sweep-2-a", "sweep-2-b"]
    assert sum(Decimal(r["cost"]) for r in body["trials"] + body["overheads"]) == Decimal(body["total"])
    assert all(isinstance(r["cost"], str) for r in body["trials"])


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("stage", ["single", "smoke"]),
        ("sweep", ["sweep-1", "sweep-2"]),
        ("day", ["2026-11-28", "2026-11-29"]),
        ("week", ["2026-W48"]),
        ("month", ["2026-11"]),
        ("user", ["user1", "user2"]),
        ("project", ["(none)"]),
        ("machine", ["h100x8"]),
        ("tag:team", ["rl"]),
        ("tag:other", ["(none)"]),
        ("category", ["billing_increment", "other", "startup"]),
    ],
)
def test_every_grouping_has_the_same_total(report, by, names):
    body = json.loads(report("--by", by, "--json"))
    assert [g["name"] for g in body["groups"]] == names
    whole = json.loads(report("--by", "trial", "--json"))
    assert Decimal(body["total"]) == sum(Decimal(g["cost"]) for g in body["groups"]) == Decimal(whole["total"])


def test_days_of_any_time_zone_sum_to_the_whole_range(report):
    whole = Decimal(json.loads(report("--by", "trial", "--json"))["total"])
    for zone in ("UTC", "Asia/Shanghai", "America/Los_Angeles", "Pacific/Chatham"):
        days = json.loads(report("--by", "day", "--tz", zone, "--json"))["groups"]
        assert sum(Decimal(d["cost"]) for d in days) == whole
        parts = [
            Decimal(json.loads(report("--by", "day", "--tz", zone, "--json", *span))["total"])
            for span in (("--to", "2026-11-29"), ("--from", "2026-11-29"))
        ]
        assert sum(parts) == whole


def test_a_converted_report_names_rate_day_and_source(report):
    body = json.loads(report("--by", "sweep", "--currency", "EUR", "--json"))
    assert body["currency"] == "EUR"
    assert [note.split(": ")[1] for note in body["notes"] if "EUR" in note] == [
        "1 EUR = 1.25 USD on 2026-11-01 (a bank)"
    ]
    dollars = Decimal(json.loads(report("--by", "sweep", "--json"))["total"])
    assert Decimal(body["total"]) == pytest.approx(dollars / Decimal("1.25"), abs=Decimal("1e-9"))
    assert "no exchange rate" in report("--by", "sweep", "--currency", "CNY", code=2)


def test_idle_time_is_separate_or_spread_over_trials_or_left_to_the_owner(report):
    apart, spread, owner = (json.loads(report("--idle", how, "--json")) for how in ("apart", "spread", "owner"))
    assert [r["name"] for r in apart["overheads"]] == ["billing_increment", "startup"]
    assert spread["overheads"] == []
    assert spread["total"] == apart["total"]
    assert owner["overheads"] == []
    assert Decimal(owner["total"]) == sum(Decimal(t["cost"]) for t in apart["trials"])
    assert "unknown policy for idle time" in report("--idle", "hide", code=2)


def test_the_csv_file_has_the_rows_of_the_printed_csv(report, tmp_path):
    out = tmp_path / "out" / "cost.csv"
    assert report("--out", out) == ""
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    assert rows == list(csv.DictReader(io.StringIO(report("--format", "csv"))))
    assert [r["row"] for r in rows][:2] == ["trial", "trial"]


def test_focus_rows_sum_to_the_total_of_all_sweeps(report, tmp_path):
    out = tmp_path / "focus.csv"
    assert report("--format", "focus", "--out", out) == ""
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    whole = json.loads(report("--by", "sweep", "--json"))
    assert sum(Decimal(r["EffectiveCost"]) for r in rows) == Decimal(whole["total"])
    assert out.read_text(encoding="utf-8") == report("--format", "focus").replace("\r\n", "\n")
    assert "AllocatedMethodId" in report("--format", "focus", "--focus-version", "1.3").splitlines()[0]
    assert "FOCUS version '2.0' is not supported" in report("--format", "focus", "--focus-version", "2.0", code=2)


def test_as_of_reproduces_an_earlier_report_and_names_later_changes(report, root, pricing, clock):
    options = ("--sweep", "sweep-1", "--as-of", "2026-11-28T12:00", "--json")
    before = json.loads(report(*options))
    assert before["notes"] == []
    with Ledger.open(root / "ledger.db", clock) as ledger:
        correction = Correction("c", "L1", "credit", -(10**12), "USD", clock.utc, "credit note", "sweep-1")
        ledger.corrections.add(correction)
    after = json.loads(report(*options))
    assert after.pop("notes") == ["lease L1: 16.2 USD then, 15.2 USD now: corrections -1"]
    assert after == {name: value for name, value in before.items() if name != "notes"}
    now = json.loads(report("--sweep", "sweep-1", "--json"))
    assert ("credit", "-1") in [(r["name"], r["cost"]) for r in now["overheads"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "nope"], "there is no sweep 'nope'"),
        (["--by", "colour"], "unknown grouping 'colour'"),
        (["--tz", "Mars/Olympus"], "no time zone"),
        (["--from", "yesterday"], "is not a date"),
        (["--format", "xml"], "unknown format 'xml'"),
        (["--currency", "dollars"], "not a currency"),
    ],
)
def test_an_invalid_option_is_refused_with_one_message(report, arguments, message):
    assert message in report(*arguments, code=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--format focus --by day", "--by with --format focus"),
        ("--format focus --currency EUR", "in the currency in which it is billed"),
        ("--json --format csv", "choose one"),
        ("--focus-version 1.3", "it applies to --format focus only"),
        ("--from 2026-12-02 --to 2026-12-01", "the range is empty"),
    ],
)
def test_options_that_the_format_ignores_are_refused(root, pricing, options, message):
    assert message in run("report", "--root", root, "--pricing", pricing, *options.split(), code=2)


def test_only_the_report_of_a_simulated_sweep_includes_its_cost(root, pricing, clock, make_lease):
    place = ("--root", root, "--pricing", pricing)
    whole = run("report", *place, "--by", "sweep", "--json")
    budget = run("budget", *place, "--json")
    with Ledger.open(root / "ledger.db", clock) as ledger:
        state = ledger.leases.get("L1").lease
        more = {"sku": "box", "provider": "cloud", "price_hash": state.price_hash, "tags": {"simulated": "true"}}
        ledger.leases.open(make_lease("L9", **more))
        ledger.leases.attach("L9", "simulated-1")
        clock.advance_seconds(3600)
        ledger.leases.detach("L9", "simulated-1", "done")
    text = run("report", *place)
    assert "sweep simulated-1" in text
    assert "no money was spent" in text
    (row,) = json.loads(run("report", *place, "--json"))["overheads"]
    assert (row["cost"], row["billed_cost"], row["flags"]) == ("8.1", "0", ["simulated"])
    again = json.loads(run("report", *place, "--by", "sweep", "--json"))
    assert again["groups"] == json.loads(whole)["groups"]
    assert run("budget", *place, "--json") == budget


@pytest.fixture
def lease_without_sweep(tmp_path: Path, clock: FakeClock, make_lease, pricing: Path) -> Path:
    """The root folder of one lease, opened by hand and closed after an hour, without a sweep."""
    folder = tmp_path / "by-hand"
    with Ledger.open(folder / "ledger.db", clock) as ledger:
        ledger.leases.open(make_lease(sku="box", provider="cloud", opened_by="hand"))
        clock.advance_seconds(3600)
        ledger.leases.close("L1", "done")
    return folder


def test_without_sweeps_the_report_is_by_category(lease_without_sweep, pricing):
    found = json.loads(run("report", "--root", lease_without_sweep, "--pricing", pricing, "--json"))
    assert found["title"] == "all leases by category"
    assert [(row["name"], row["cost"]) for row in found["groups"]] == [("unassigned", "8.1")]


def test_a_missing_and_an_empty_ledger_give_the_same_message(tmp_path, pricing):
    with Ledger.open(tmp_path / "none1" / "ledger.db"):
        pass
    texts = [run("report", "--root", tmp_path / name, "--pricing", pricing, code=2) for name in ("none1", "none2")]
    assert texts[0].replace("none1", "none2") == texts[1]
    assert "there is nothing in the ledger at" in texts[0]


@pytest.fixture
def simulated(tmp_path: Path, clock: FakeClock, make_lease, pricing: Path) -> Path:
    """The root folder of one simulated sweep whose clock runs decades ahead."""
    folder, ahead = tmp_path / "simulated", FakeClock(utc=4_000_000_000 * 10**9)
    with Ledger.open(folder / "ledger.db", ahead) as ledger:
        ledger.leases.open(make_lease(sku="box", provider="cloud", tags={"simulated": "true"}))
        ledger.leases.attach("L1", "s1")
        ahead.advance_seconds(3600)
        ledger.leases.detach("L1", "s1", "done")
    return folder


def test_a_report_notes_that_it_leaves_out_simulated_sweeps(simulated, pricing):
    text = run("report", "--root", simulated, "--pricing", pricing, "--by", "category")
    assert text.splitlines()[-1].startswith(
        "Simulated sweeps are left out; see one with: python -m cost report --sweep"
    )


def test_the_report_of_a_simulated_sweep_is_dated_at_its_end(simulated, pricing):
    found = json.loads(run("report", "--root", simulated, "--pricing", pricing, "--json"))
    assert found["at"] == "2096-10-02T08:06:40Z"


def test_an_old_exchange_rate_gives_a_warning_with_its_day(root, pricing):
    text = run("report", "--root", root, "--pricing", pricing, "--by", "sweep", "--currency", "EUR")
    (note,) = [line for line in text.splitlines() if "1 EUR" in line]
    assert note.startswith("warning: 1 EUR = 1.25 USD on 2026-11-01 (a bank): 2")
    assert note.endswith("days older than what it converts; add a newer rate to conf/pricing/fx.yaml")


def test_a_file_that_leaves_out_simulated_sweeps_prints_a_note_to_standard_error(tmp_path, clock, make_lease):
    root = tmp_path / "runs"
    with Ledger.open(root / "ledger.db", clock) as ledger:
        ledger.leases.open(make_lease(tags={"simulated": "true"}, sku="lambda-h100x8", provider="lambda"))
        ledger.leases.attach("L1", "s1")
        clock.advance_seconds(60)
    for more in (["--format", "focus"], ["--format", "csv", "--by", "day"]):
        for out in ([], ["--out", str(tmp_path / "new" / "file.csv")]):
            result = CliRunner().invoke(app, ["report", *more, *out, "--root", str(root)], catch_exceptions=False)
            assert result.exit_code == 0
            assert "Simulated sweeps are left out" in result.stderr
            assert "Simulated" not in result.stdout
    result = CliRunner().invoke(
        app, ["report", "--format", "focus", "--out", str(root / "ledger.db" / "x.csv"), "--root", str(root)]
    )
    assert (result.exit_code, "cannot be written" in result.output) == (2, True)


def test_a_focus_file_with_an_unpriced_lease_has_no_output(root, pricing, clock, make_lease):
    with Ledger.open(root / "ledger.db", clock) as ledger:
        ledger.leases.open(make_lease("L9", sku="without-price", price_hash=None))
        clock.advance_seconds(3600)
        ledger.leases.close("L9", "done")
    text = run("report", "--format", "focus", "--root", root, "--pricing", pricing, code=2)
    assert text.startswith("lease L9 has no price")


def test_the_report_of_a_sweep_says_what_its_machine_cost_without_any_sweep(tmp_path, pricing):
    """A machine that idles for 9 of 10 hours: the idle hours are no sweep's, and the default view names them."""
    folder, clock = tmp_path / "runs", FakeClock(utc=1_795_860_000 * 10**9)
    digest = PriceBook.load(pricing).rows[0].hash
    with Ledger.open(folder / "ledger.db", clock) as ledger:
        lease = Lease("L1", "i-1", "box", "box", "cloud", 8, "USD", digest, opened_by="hand")
        ledger.leases.open(lease)
        clock.advance_seconds(9 * 3600)
        ledger.leases.attach("L1", "s1")
        key = UsageKey("L1", "t1", 1)
        ledger.usages.start(key, "s1", Decimal(8), {})
        clock.advance_seconds(3600)
        ledger.usages.end(key, "COMPLETED")
        ledger.leases.close("L1", "done")
    text = run("report", "--root", folder, "--pricing", pricing)
    assert "8.10 USD went to other 100 %." in text
    assert "Its machines cost 72.90 USD more while no sweep was attached" in text
    assert "81.00 USD went to idle 90 %, other 10 %." in run(
        "report", "--root", folder, "--pricing", pricing, "--by", "category"
    )


def test_an_exchange_rate_is_added_once_and_converts_a_report(root, pricing):
    adding = (
        "prices",
        "add-rate",
        "EUR",
        "CNY",
        "8.0",
        "--source",
        "a bank",
        "--day",
        "2026-11-01",
        "--pricing",
        pricing,
    )
    assert json.loads(run(*adding, "--dry-run"))["rate"] == "8.0"
    assert "fx.yaml" in run(*adding)
    assert "in fx.yaml already" in run(*adding, code=2)
    text = run("report", "--root", root, "--pricing", pricing, "--currency", "CNY")
    assert "1 EUR = 8.0 CNY on 2026-11-01" in text
    for wrong in ("1,17", "-1", "0"):
        run("prices", "add-rate", "EUR", "GBP", "--source", "x", "--pricing", pricing, "--", wrong, code=2)


def test_a_report_warns_of_a_price_that_was_read_long_before_its_use(root, pricing):
    file = pricing / "cloud.yaml"
    old = file.read_text(encoding="utf-8").replace("day_read: 2026-11-29", "day_read: 2025-10-27")
    file.write_text(old, encoding="utf-8")
    text = run("report", "--root", root, "--pricing", pricing)
    assert "The price of box on_demand was read 39" in text
    assert "days before its use, on 2025-10-27: check https://example.org" in text
