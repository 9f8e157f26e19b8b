"""`python -m cost` as a user types it, on books that a small sweep left behind."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.cli.main import app
from cost.clock import FakeClock
from cost.ledger.ledger import Ledger
from cost.records import UsageKey

HOUR = 3600


def run(*arguments: object, code: int = 0) -> str:
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
    """Two sweeps on two machines, each of one hour of start-up and of two trials; the first ran past midnight."""
    from cost.prices.book import PriceBook

    digest = PriceBook.load(pricing).rows[0].hash
    folder = tmp_path / "runs"
    with Ledger.open(folder / "ledger.db", clock) as ledger:
        for number, stage in enumerate(("smoke", "single"), 1):
            lease, sweep = f"L{number}", f"sweep-{number}"
            more = {"sku": "box", "provider": "cloud", "owner": f"user{number}", "tags": {"team": "rl"}}
            ledger.leases.open(make_lease(lease, price_hash=digest, **more))
            ledger.leases.attach(lease, sweep)
            clock.advance_seconds(HOUR)
            for trial in ("a", "b"):
                key = UsageKey(lease, f"{sweep}-{trial}", 1)
                labels = {"stage": stage, "state": "COMPLETED", "acc": "0.75"}
                ledger.usages.start(key, sweep, Decimal(8), labels)
                clock.advance(13 * 1800 * 10**9 + 1)
                ledger.usages.end(key, "COMPLETED")
            ledger.leases.detach(lease, sweep, "done")
    return folder


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


def test_days_of_any_zone_add_up_to_the_range(report):
    whole = Decimal(json.loads(report("--by", "trial", "--json"))["total"])
    for zone in ("UTC", "Asia/Shanghai", "America/Los_Angeles", "Pacific/Chatham"):
        days = json.loads(report("--by", "day", "--tz", zone, "--json"))["groups"]
        assert sum(Decimal(d["cost"]) for d in days) == whole
        parts = [
            Decimal(json.loads(report("--by", "day", "--tz", zone, "--json", *span))["total"])
            for span in (("--to", "2026-11-29"), ("--from", "2026-11-29"))
        ]
        assert sum(parts) == whole


def test_another_currency_names_rate_day_and_source(report):
    body = json.loads(report("--by", "sweep", "--currency", "EUR", "--json"))
    assert body["currency"] == "EUR"
    assert [note.split(": ")[1] for note in body["notes"] if "EUR" in note] == [
        "1 EUR = 1.25 USD on 2026-11-01 (a bank)"
    ]
    dollars = Decimal(json.loads(report("--by", "sweep", "--json"))["total"])
    assert Decimal(body["total"]) == pytest.approx(dollars / Decimal("1.25"), abs=Decimal("1e-9"))
    assert "no exchange rate" in report("--by", "sweep", "--currency", "CNY", code=2)


def test_idle_time_is_kept_apart_or_spread_or_left_to_the_owner(report):
    apart, spread, owner = (json.loads(report("--idle", how, "--json")) for how in ("apart", "spread", "owner"))
    assert [r["name"] for r in apart["overheads"]] == ["billing_increment", "startup"]
    assert spread["overheads"] == []
    assert spread["total"] == apart["total"]
    assert owner["overheads"] == []
    assert Decimal(owner["total"]) == sum(Decimal(t["cost"]) for t in apart["trials"])
    assert "unknown policy for idle time" in report("--idle", "hide", code=2)


def test_csv_goes_to_a_file_whole(report, tmp_path):
    out = tmp_path / "out" / "cost.csv"
    assert report("--out", out) == ""
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    assert rows == list(csv.DictReader(io.StringIO(report("--format", "csv"))))
    assert [r["row"] for r in rows][:2] == ["trial", "trial"]


def test_focus_rows_sum_to_the_books_of_all_sweeps(report, tmp_path):
    out = tmp_path / "focus.csv"
    assert report("--format", "focus", "--out", out) == ""
    with out.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    whole = json.loads(report("--by", "sweep", "--json"))
    assert sum(Decimal(r["EffectiveCost"]) for r in rows) == Decimal(whole["total"])
    assert out.read_text(encoding="utf-8") == report("--format", "focus").replace("\r\n", "\n")
    assert "AllocatedMethodId" in report("--format", "focus", "--focus-version", "1.3").splitlines()[0]
    assert "FOCUS version '2.0' is not supported" in report("--format", "focus", "--focus-version", "2.0", code=2)


def test_an_earlier_report_is_reproduced_as_of_its_day(report, root, pricing, clock):
    asked = ("--sweep", "sweep-1", "--as-of", "2026-11-28T12:00", "--json")
    before = json.loads(report(*asked))
    assert before["notes"] == []
    with Ledger.open(root / "ledger.db", clock) as ledger:
        from cost.records import Correction

        correction = Correction("c", "L1", "credit", -(10**12), "USD", clock.utc, "credit note", "sweep-1")
        ledger.corrections.add(correction)
    after = json.loads(report(*asked))
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
        (["--format", "xml"], "no format 'xml'"),
        (["--currency", "dollars"], "not a currency"),
    ],
)
def test_what_cannot_be_reported_is_said_in_one_message(report, arguments, message):
    assert message in report(*arguments, code=2)


@pytest.mark.parametrize("command", ["report", "check", "leases list"])
def test_without_a_ledger_the_message_says_how_to_start_one(command, tmp_path):
    text = run(*command.split(), "--root", tmp_path / "nothing", code=2)
    assert "there is nothing in the ledger at" in text
    assert "python sweep.py +stage=smoke" in text
    assert not (tmp_path / "nothing").exists()


def test_whole_books_are_checked_in_silence(root, pricing):
    assert run("check", "--root", root, "--pricing", pricing) == ""


def test_a_missing_price_names_the_sku_and_the_command_that_adds_it(root, pricing):
    (pricing / "cloud.yaml").write_text("prices: []\n", encoding="utf-8")
    text = run("check", "--root", root, "--pricing", pricing, code=1)
    assert "priced: lease L1" in text
    assert "python -m cost prices add box" in text
    assert "prices add box" in run("report", "--root", root, "--pricing", pricing, code=2)


def test_a_machine_is_opened_extended_and_closed_by_hand(root, pricing):
    place = ("--root", root)
    opening = ["leases", "open", *place, "--pricing", pricing, "--machine", "rented", "--sku", "box", "--cards", "8"]
    opening += ["--instance", "i-123", "--from", "2026-11-28T08:00", "--owner", "ann", "--tag", "team=rl"]
    lease_id = run(*opening).strip()
    assert "still open" in run(*opening[:-2], "--from", "2026-11-28T08:30", code=2)
    run("leases", "extend", *place, lease_id)
    listing = ("leases", "list", *place, "--pricing", pricing)
    (body,) = [b for b in json.loads(run(*listing, "--json"))["leases"] if b["lease_id"] == lease_id]
    assert (body["from"], body["to"], body["tags"]) == ("2026-11-28T08:00:00Z", None, {"team": "rl"})
    run("leases", "close", *place, lease_id, "--at", "2026-11-28T10:00")
    (body,) = [b for b in json.loads(run(*listing, "--json"))["leases"] if b["lease_id"] == lease_id]
    assert (body["cost"], body["how"]) == ("16.2", "closed by hand")
    assert max(map(len, run(*listing).splitlines())) <= 100


def test_a_machine_that_nobody_looks_after_is_shown_with_what_it_has_cost_since(root, pricing):
    place = ("--root", root, "--pricing", pricing)
    opening = ("leases", "open", *place, "--machine", "rented", "--sku", "box", "--cards", 8, "--from", "2026-11-20")
    lease_id = run(*opening, "--instance", "i-9").strip()
    text = run("leases", "list", *place)
    assert f"lease {lease_id} is open, but no driver has sent a heartbeat since 2026-11-20T00:00:00Z" in text
    assert "194.40 USD a day" in text
    assert f"python -m cost leases close {lease_id}" in text
    assert run("check", *place) == "", "a lease opened by hand is looked after by hand"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--sku", "nope"], "no price for SKU 'nope'"),
        (["--cards", "4"], "machine of 8 cards, not of 4"),
        (["--cards", "0"], "machine of 8 cards, not of 0"),
        (["--from", "2036-01-01"], "at 2036-01-01T00:00:00Z, in the future"),
        (["--tag", "team"], "NAME=VALUE"),
        (["--watts", "1,000"], "not a plain decimal number"),
    ],
)
def test_a_machine_that_cannot_be_opened_leaves_nothing_behind(tmp_path, pricing, change, message):
    place = ("--root", tmp_path / "runs", "--pricing", pricing)
    opening = ("leases", "open", *place, "--machine", "rented", "--sku", "box", "--cards", 8)
    assert message in run(*opening, *change, code=2)
    assert json.loads(run("leases", "list", *place, "--json")) == {"leases": []}


def test_an_unpriced_machine_is_opened_only_when_told_and_shown_as_unpriced(tmp_path, pricing):
    place = ("--root", tmp_path / "runs", "--pricing", pricing)
    run("leases", "open", *place, "--machine", "m", "--sku", "nope", "--cards", 8, "--allow-unpriced")
    assert "UNPRICED" in run("leases", "list", *place)
    assert "UNPRICED" in run("check", *place, code=1)


def test_help_needs_nothing_heavy():
    code = (
        "import sys; from cost.cli.main import app; "
        "print([m for m in ('sqlalchemy', 'alembic', 'rich.table', 'pandas', 'numpy', 'torch') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_budget_shows_limit_spent_and_free_idle_included(root, pricing):
    place = ("--root", root, "--pricing", pricing)
    run("budget", *place, "--set", "sweep:sweep-1=100 USD", "--set", "stage:single=200 USD", "--set", "month=100 EUR")
    run("budget", *place, "--set", "sweep:sweep-1=150.50 USD")
    found = {b["scope"]: b for b in json.loads(run("budget", *place, "--json"))["budgets"]}
    spent = json.loads(run("report", *place, "--sweep", "sweep-1", "--json"))["total"]
    assert found["sweep:sweep-1"]["limit"] == "150.5 USD"
    assert found["sweep:sweep-1"]["spent"] == f"{spent} USD"
    assert Decimal(found["sweep:sweep-1"]["free"].split()[0]) == Decimal("150.5") - Decimal(spent)
    assert found["month"]["spent"].endswith("EUR")
    assert "sweep sweep-1" in run("budget", *place)


@pytest.mark.parametrize("setting", ["month", "month=500", "month=-5 USD", "year=5 USD", "stage:=5 USD", "month=0 USD"])
def test_a_budget_that_means_nothing_is_refused(root, pricing, setting):
    run("budget", "--root", root, "--pricing", pricing, "--set", setting, code=2)


def test_a_month_is_closed_once_it_is_over(root, pricing):
    place = ("--root", root, "--pricing", pricing)
    text = run("close", "--period", "2026-10", *place)
    assert text == "2026-10 is closed: 0 leases, nothing\n"
    assert "not over" in run("close", "--period", "2099-01", *place, code=2)
    assert "is not a month" in run("close", "--period", "2026-13", *place, code=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--format focus --by day", "--by with --format focus"),
        ("--format focus --currency EUR", "in the currency it is billed in"),
        ("--json --format csv", "choose one"),
        ("--focus-version 1.3", "see --format focus"),
        ("--from 2026-12-02 --to 2026-12-01", "nothing lies between them"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(root, pricing, options, said):
    assert said in run("report", "--root", root, "--pricing", pricing, *options.split(), code=2)


def test_what_was_simulated_is_reported_by_its_sweep_and_counted_nowhere_else(root, pricing, clock, make_lease):
    place = ("--root", root, "--pricing", pricing)
    whole = run("report", *place, "--by", "sweep", "--json")
    budget = run("budget", *place, "--json")
    with Ledger.open(root / "ledger.db", clock) as ledger:
        state = ledger.leases.get("L1").lease
        more = {"sku": "box", "provider": "cloud", "price_hash": state.price_hash, "tags": {"simulated": "true"}}
        ledger.leases.open(make_lease("L9", **more))
        ledger.leases.attach("L9", "pretended")
        clock.advance_seconds(HOUR)
        ledger.leases.detach("L9", "pretended", "done")
    text = run("report", *place)
    assert "sweep pretended" in text
    assert "no money was spent" in text
    (row,) = json.loads(run("report", *place, "--json"))["overheads"]
    assert (row["cost"], row["billed_cost"], row["flags"]) == ("8.1", "0", ["simulated"])
    again = json.loads(run("report", *place, "--by", "sweep", "--json"))
    assert again["groups"] == json.loads(whole)["groups"]
    assert run("budget", *place, "--json") == budget


def test_a_correction_by_hand_is_an_entry_of_its_own_and_written_once(root, pricing):
    place = ("--root", root)
    total = Decimal(json.loads(run("report", *place, "--pricing", pricing, "--sweep", "sweep-1", "--json"))["total"])
    note = ("correct", "L1", *place, "--amount", "-5.25 USD", "--category", "credit", "--sweep", "sweep-1")
    for _ in range(2):
        run(*note, "--reason", "credit note 17", "--id", "cn-17", "--at", "2026-11-28")
    after = json.loads(run("report", *place, "--pricing", pricing, "--sweep", "sweep-1", "--json"))
    assert Decimal(after["total"]) == total - Decimal("5.25")
    assert run("check", *place, "--pricing", pricing) == ""
    assert "exists with other content" in run(
        *note, "--reason", "credit note 18", "--id", "cn-17", "--at", "2026-11-28", code=2
    )
    for wrong, message in (
        (("--amount", "5.25"), "not an amount and a currency"),
        (("--amount", "5.25 EUR"), "is in USD"),
        (("--category", "bribe"), "'bribe' is not a category"),
        (("--reason", " "), "needs a reason"),
    ):
        assert message in run(*note, "--reason", "x", *wrong, code=2)
    assert "lease L7 does not exist" in run("correct", "L7", *place, "--amount", "1 USD", "--reason", "x", code=2)


def test_every_command_takes_a_server_instead_of_a_file(any_database, pricing):
    place = ("--db", any_database, "--pricing", pricing)
    opening = ("--machine", "m", "--sku", "box", "--cards", 8, "--from", "2026-11-28T08:00")
    lease_id = run("leases", "open", *place, *opening).strip()
    run("leases", "extend", "--db", any_database, lease_id)
    run("leases", "close", "--db", any_database, lease_id, "--at", "2026-11-28T10:00")
    run("correct", lease_id, "--db", any_database, "--amount", "-1 USD", "--reason", "note")
    run("budget", *place, "--set", "month=500 USD")
    body = json.loads(run("report", *place, "--by", "category", "--json"))
    assert [(g["name"], g["cost"]) for g in body["groups"]] == [("adjustment", "-1"), ("unassigned", "16.2")]
    assert run("check", *place) == ""


def test_a_ledger_is_copied_and_put_back(root, pricing):
    place = ("--root", root)
    before = json.loads(run("report", *place, "--pricing", pricing, "--by", "sweep", "--json"))["total"]
    copy = Path(run("backup", *place).strip())
    assert copy.suffix == ".bak"
    run("correct", "L1", *place, "--amount", "1 USD", "--reason", "a mistake")
    text = run("restore", copy, *place)
    assert f"the one before is {root / 'ledger.db.aside1'}" in text
    assert json.loads(run("report", *place, "--pricing", pricing, "--by", "sweep", "--json"))["total"] == before
    assert "no whole ledger" in run("restore", pricing / "fx.yaml", *place, code=2)


@pytest.fixture
def by_hand(tmp_path: Path, clock: FakeClock, make_lease, pricing: Path) -> Path:
    """Books of one machine that a hand opened and closed after an hour."""
    folder = tmp_path / "by-hand"
    with Ledger.open(folder / "ledger.db", clock) as ledger:
        ledger.leases.open(make_lease(sku="box", provider="cloud", opened_by="hand"))
        clock.advance_seconds(HOUR)
        ledger.leases.close("L1", "done")
    return folder


def test_a_report_on_machines_that_no_sweep_used_is_by_category(by_hand, pricing):
    found = json.loads(run("report", "--root", by_hand, "--pricing", pricing, "--json"))
    assert found["title"] == "all leases by category"
    assert [(row["name"], row["cost"]) for row in found["groups"]] == [("unassigned", "8.1")]


def test_no_ledger_and_an_empty_one_are_the_same_message(tmp_path, pricing):
    with Ledger.open(tmp_path / "none1" / "ledger.db"):
        pass
    said = [run("report", "--root", tmp_path / name, "--pricing", pricing, code=2) for name in ("none1", "none2")]
    assert said[0].replace("none1", "none2") == said[1]
    assert "there is nothing in the ledger at" in said[0]


@pytest.fixture
def simulated(tmp_path: Path, clock: FakeClock, make_lease, pricing: Path) -> Path:
    """Books of one simulated sweep, which ended long after the world's now."""
    folder, ahead = tmp_path / "simulated", FakeClock(utc=4_000_000_000 * 10**9)
    with Ledger.open(folder / "ledger.db", ahead) as ledger:
        ledger.leases.open(make_lease(sku="box", provider="cloud", tags={"simulated": "true"}))
        ledger.leases.attach("L1", "s1")
        ahead.advance_seconds(HOUR)
        ledger.leases.detach("L1", "s1", "done")
    return folder


def test_simulated_sweeps_that_are_left_out_are_said_to_be(simulated, pricing):
    said = run("report", "--root", simulated, "--pricing", pricing, "--by", "category")
    assert said.splitlines()[-1].startswith(
        "Simulated sweeps are left out; see one with: python -m cost report --sweep"
    )


def test_a_report_on_a_simulated_sweep_is_of_no_moment_before_its_end(simulated, pricing):
    found = json.loads(run("report", "--root", simulated, "--pricing", pricing, "--json"))
    assert found["at"] == "2096-10-02T08:06:40Z"


def test_an_old_exchange_rate_is_named_with_its_day_and_warned_about(root, pricing):
    said = run("report", "--root", root, "--pricing", pricing, "--by", "sweep", "--currency", "EUR")
    (note,) = [line for line in said.splitlines() if "1 EUR" in line]
    assert note.startswith("warning: 1 EUR = 1.25 USD on 2026-11-01 (a bank): 2")
    assert note.endswith("days older than what it converts; add a newer rate to conf/pricing/fx.yaml")


@pytest.mark.parametrize("command", ["list", "show", "lint", "add", "import skypilot", "import aws", "import gpuhunt"])
def test_help_names_no_folder_of_this_machine(command):
    said = run("prices", *command.split(), "--help")
    assert str(Path(__file__).parents[3]) not in "".join(said.split())


def test_the_help_of_a_limit_says_what_it_does_to_sweeps():
    said = " ".join(run("budget", "--help").split())
    assert "a trial that does not fit is not started" in said
    assert "budget.sweep_limit" in said


def test_a_file_without_what_was_simulated_says_so_beside_it(tmp_path, clock, make_lease):
    root = tmp_path / "runs"
    with Ledger.open(root / "ledger.db", clock) as ledger:
        ledger.leases.open(make_lease(tags={"simulated": "true"}, sku="lambda-h100x8", provider="lambda"))
        ledger.leases.attach("L1", "s1")
        clock.advance_seconds(60)
    for more in (["--format", "focus"], ["--format", "csv", "--by", "day"]):
        for out in ([], ["--out", str(tmp_path / "new" / "file.csv")]):
            said = CliRunner().invoke(app, ["report", *more, *out, "--root", str(root)], catch_exceptions=False)
            assert said.exit_code == 0
            assert "Simulated sweeps are left out" in said.stderr
            assert "Simulated" not in said.stdout
    said = CliRunner().invoke(
        app, ["report", "--format", "focus", "--out", str(root / "ledger.db" / "x.csv"), "--root", str(root)]
    )
    assert (said.exit_code, "cannot be written" in said.output) == (2, True)


def test_a_finance_file_that_cannot_be_told_whole_is_not_begun(root, pricing, clock, make_lease):
    with Ledger.open(root / "ledger.db", clock) as ledger:
        ledger.leases.open(make_lease("L9", sku="unheard-of", price_hash=None))
        clock.advance_seconds(HOUR)
        ledger.leases.close("L9", "done")
    said = run("report", "--format", "focus", "--root", root, "--pricing", pricing, code=2)
    assert said.startswith("lease L9 has no price")
