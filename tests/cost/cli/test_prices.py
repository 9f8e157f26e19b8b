"""`prices` on the command line: exit codes, what is printed, and that nothing is half-written."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.cli.prices import prices_app
from cost.periods import instant_ns
from cost.prices.add import add_row
from cost.prices.book import PriceBook, read_row

CONF = Path(__file__).parents[3] / "conf" / "pricing"
RUNNER = CliRunner()


def run(*args: str, code: int = 0) -> str:
    result = RUNNER.invoke(prices_app, list(args))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "billing.yaml").write_text((CONF / "billing.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


ADD = ["--provider", "runpod", "--per", "card_hour", "--currency", "USD", "--source", "https://example.org"]


def test_lint_is_silent_and_exits_0_when_all_is_well(book):
    run("add", "runpod-x", *ADD, "--price", "1.23", "--valid-from", "2026-01-01", "--pricing", str(book))
    assert run("lint", "--pricing", str(book), "--machines", str(book / "none")) == ""


def test_lint_prints_its_findings_and_exits_1(book):
    run("add", "nobody-x", *ADD, "--provider", "nobody", "--price", "1.23", "--pricing", str(book))
    text = run("lint", "--pricing", str(book), "--machines", str(book / "none"), code=1)
    assert text.startswith("billing: nobody-x on_demand: no billing rule for provider nobody")
    found = json.loads(run("lint", "--json", "--pricing", str(book), "--machines", str(book / "none"), code=1))
    assert [f["check"] for f in found] == ["billing"]


def test_show_prints_the_row_in_force_with_the_price_of_the_machine():
    shown = json.loads(run("show", "runpod-h100", "--at", "2026-10-01", "--cards", "2", "--json"))
    assert (shown["price"], shown["per"], shown["machine_hour"]) == ("3.49", "card_hour", "6.98 USD")
    assert shown["hash"] == PriceBook.load(CONF).in_force("runpod-h100", instant_ns("2026-10-01")).hash
    assert "day_read      2026-11-29" in run("show", "electricity", "--at", "2026-11-29", "--watts", "350")


def test_show_of_an_unknown_sku_exits_2_and_names_the_command_that_adds_it():
    text = run("show", "h100", code=2)
    assert "no price for SKU 'h100' in conf/pricing; add it with: python -m cost prices add h100" in text
    assert "not a date" in run("show", "electricity", "--at", "soon", code=2)


def test_list_shows_every_row_as_a_table_and_as_json():
    rows = json.loads(run("list", "--json", "--provider", "lambda"))
    assert {r["provider"] for r in rows} == {"lambda"}
    table = run("list", "--sku", "lambda-h100x8").splitlines()
    assert table[0].split()[:3] == ["SKU", "price", "per"]
    assert len(table) == 2
    assert max(map(len, run("list").splitlines())) <= 100


def test_an_added_price_is_in_force_and_the_same_again_is_refused(book):
    run("add", "runpod-x", *ADD, "--price", "1.23", "--valid-from", "2026-01-01", "--pricing", str(book))
    run("add", "runpod-x", *ADD, "--price", "1.5", "--valid-from", "2026-02-01", "--pricing", str(book))
    text = run("add", "runpod-x", *ADD, "--price", "9", "--valid-from", "2026-02-01", "--pricing", str(book), code=2)
    assert "has a price of 1.5 USD from 2026-02-01 already" in text
    loaded = PriceBook.load(book)
    assert [str(r.price) for r in loaded.rows] == ["1.23", "1.5"]
    assert sorted(f.name for f in book.iterdir()) == ["added.yaml", "billing.yaml"]


def test_a_price_added_today_is_not_in_a_report_as_of_an_hour_ago(book):
    """To the second: the day on which it was read is too coarse for a report made on that day."""
    place = ["--valid-from", "2026-01-01", "--pricing", str(book)]
    before = instant_ns(datetime.now(UTC)) - 10**9
    run("add", "runpod-x", *ADD, "--price", "1.23", *place)
    (row,) = PriceBook.load(book).rows
    assert [row.known_at(at) for at in (before, instant_ns(datetime.now(UTC)))] == [False, True]


def test_rows_that_are_added_at_once_are_all_there(book):
    raw = {"provider": "runpod", "per": "card_hour", "currency": "USD", "price": "1", "source": "page"}
    raw |= {"valid_from": "2026-01-01", "day_read": "2026-01-01"}
    rows = [read_row({**raw, "sku": f"runpod-{number}"}, "test") for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda row: add_row(book, row), rows))
    assert set(PriceBook.load(book).skus()) == {row.sku for row in rows}


def test_a_tax_of_nineteen_is_no_share(book):
    assert "write 19 % as '0.19'" in run("add", "x", *ADD, "--price", "1", "--tax-rate", "19", code=2)


@pytest.mark.parametrize("price", ["NaN", "-1", "1,000", "$5", ""])
def test_a_bad_price_is_not_added(book, price):
    run("add", "runpod-x", *ADD, f"--price={price}", "--pricing", str(book), code=2)
    assert not (book / "added.yaml").exists()


def test_a_dry_run_writes_nothing(book):
    run("add", "runpod-x", *ADD, "--price", "1", "--dry-run", "--pricing", str(book))
    file = book / "cloud_vms.csv"
    file.write_text("InstanceType,AcceleratorName,AcceleratorCount,Region,Price\nm,A100,8.0,us,20.0\n")
    text = run("import", "skypilot", str(file), "--dry-run", "--pricing", str(book))
    assert "cloud: 1 prices" in text
    assert "20.0 USD  8 x A100" in text
    assert sorted(f.name for f in book.iterdir()) == ["billing.yaml", "cloud_vms.csv"]


def test_an_import_is_written_once_and_loaded(book):
    file = book / "cloud_vms.csv"
    file.write_text("InstanceType,AcceleratorName,AcceleratorCount,Region,Price\nm,A100,8.0,us,20.0\n")
    arguments = ["import", "skypilot", str(file), "--valid-from", "2026-11-01", "--pricing", str(book), "--json"]
    (summary,) = json.loads(run(*arguments))
    assert summary["written"].endswith("imported-cloud-2026-11-01.yaml")
    assert json.loads(run(*arguments))[0]["written"] == "already there"
    assert PriceBook.load(book).in_force("cloud-m", instant_ns("2026-11-29")).price == 20


def test_an_import_that_cannot_be_read_exits_2_and_writes_nothing(book):
    text = run("import", "skypilot", str(book / "none_vms.csv"), "--pricing", str(book), code=2)
    assert "cannot be read" in text
    assert "no gpuhunt catalogue" in run("import", "gpuhunt", str(book), "--pricing", str(book), code=2)
    assert [f.name for f in book.iterdir()] == ["billing.yaml"]


@pytest.mark.parametrize("command", ["list", "show", "lint", "add", "import skypilot", "import aws", "import gpuhunt"])
def test_help_contains_no_absolute_path(command):
    text = run(*command.split(), "--help")
    assert str(Path(__file__).parents[3]) not in "".join(text.split())
