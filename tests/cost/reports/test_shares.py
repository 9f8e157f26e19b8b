"""The sentence that says where the money of a report went."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest

from cost.money import pico_of
from cost.records import CATEGORIES
from cost.reports.csv_json import as_json, csv_text
from cost.reports.report import Report, ReportRow
from cost.reports.shares import PURPOSES, shares, shares_text


def report(*rows: dict[str, str], currency: str = "USD", **changes) -> Report:
    made = []
    for number, categories in enumerate(rows):
        amounts = {name: pico_of(Decimal(amount)) for name, amount in categories.items()}
        name, total = f"t{number}", sum(amounts.values())
        fields = {"micro_card_ns": 0, "categories": amounts, "trial_id": name, **changes}
        made.append(ReportRow("trial", name, "s1", currency, total, total, **fields))
    return Report("sweep s1", 0, tuple(made), ())


def test_a_report_says_where_the_money_went_in_shares_that_sum_to_100_percent():
    crashed = report(
        {"rollout": "2.00", "train": "0.80", "logprob": "0.10", "lost_work": "2.00", "recovery": "0.40"},
        {"idle": "4.00", "unassigned": "0.70", "evaluation": "0.0001"},
    )
    assert shares_text(crashed, "USD") == (
        "10.00 USD went to idle 47 %, lost work 20 %, rollout 20 %, training 9 %, recovery 4 %, evaluation 0 %."
    )


@pytest.mark.parametrize("amounts", [("1", "1", "1"), ("0.000001", "7", "13"), ("3.333333", "3.333333", "3.333334")])
def test_shares_sum_to_100_percent_whatever_the_amounts(amounts):
    found = shares(report(dict(zip(("rollout", "train", "idle"), amounts, strict=True))), "USD")
    assert sum(found.values()) == 100
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_credits_are_named_beside_the_shares_of_what_was_spent():
    found = report({"rollout": "6", "train": "2", "credit": "-3"})
    assert shares_text(found, "USD") == (
        "8.00 USD went to rollout 75 %, training 25 %. Credits of 3.00 USD are not in these shares."
    )


def test_nothing_spent_and_nothing_priced_have_no_shares():
    assert shares_text(report({}), "USD") == ""
    assert shares(report({"rollout": "0"}), "USD") == {}
    assert shares(report({"rollout": "5"}, unpriced=True), "USD") == {}


def test_every_category_of_cost_is_in_one_purpose_or_in_other():
    named = [category for categories in PURPOSES.values() for category in categories]
    assert len(named) == len(set(named))
    assert set(named) <= set(CATEGORIES)
    assert set(CATEGORIES) - set(named) == {"other", "credit", "refund", "fx", "adjustment", "purchase"}


def test_json_has_the_shares_as_decimal_texts():
    body = json.loads(as_json(report({"rollout": "1", "train": "2"})))
    assert body["shares"] == {"USD": {"training": "66.7", "rollout": "33.3"}}


def test_every_column_of_the_csv_holds_what_its_name_says():
    place = {"provider": "runpod", "account": "team-1", "from_ns": 0, "to_ns": 3600 * 10**9}
    trial = report({"rollout": "1"}, **place).rows[0]
    month = ReportRow("group", "2026-11", "", "USD", 5, 5, 0, {"rollout": 5}, **place)
    first, second = csv.DictReader(io.StringIO(csv_text(Report("all", 0, (trial, month), ()))))
    assert (first["trial_id"], first["group"]) == ("t0", "")
    assert (second["trial_id"], second["group"]) == ("", "2026-11")
    for row in (first, second):
        assert (row["provider"], row["account"]) == ("runpod", "team-1")
        assert row["period"] == "1970-01-01T00:00:00Z/1970-01-01T01:00:00Z"
