"""Bills as providers export them: encodings, delimiters, column orders, total rows, and what cannot be read."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from cost.bills.bill import BillError
from cost.bills.column_map import FIELDS, load_maps, read_map
from cost.bills.reader import read_bill
from cost.money import PICO_PER_UNIT
from cost.periods import instant_ns

CONF = Path(__file__).parents[3] / "conf" / "pricing"
MAPS = load_maps(CONF)
PLAIN = "instance_id,start,end,amount,currency\n"


def bill_of(folder: Path, text: str, *, encoding: str = "utf-8", name: str = ""):
    file = folder / "bill.csv"
    file.write_bytes(text.encode(encoding))
    return read_bill(file, MAPS, name=name)


def test_each_shipped_map_names_all_facts_and_explains_its_keys():
    assert {m.name for m in MAPS} == {"focus", "aws_cur2", "runpod", "instances", "autodl"}
    for one in MAPS:
        assert set(one.columns) == set(FIELDS)
    for file in (CONF / "bills").glob("*.yaml"):
        lines = file.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if line.strip() and not line.lstrip().startswith("#"):
                assert lines[number - 1].lstrip().startswith("#"), f"{file.name}:{number + 1}"


def test_a_plain_list_of_machines_is_read_with_its_exact_times(tmp_path):
    bill = bill_of(tmp_path, PLAIN + "i-1,2026-11-01T10:00:00Z,2026-11-01T12:30:00Z,9.98,USD\n")
    (line,) = bill.lines
    assert bill.map.name == "instances"
    assert (line.resource, line.pico, line.currency, line.kind) == ("i-1", 9_980_000_000_000, "USD", "machine")
    assert line.seconds == 2.5 * 3600
    assert line.quantum == PICO_PER_UNIT // 100


def test_columns_may_come_in_any_order_with_others_between(tmp_path):
    text = "note,amount,end,who,start,Instance ID\nx,9.98,2026-11-01 12:00:00,me,2026-11-01 10:00:00,i-1\n"
    (line,) = bill_of(tmp_path, text).lines
    assert (line.resource, line.from_ns) == ("i-1", instant_ns("2026-11-01T10:00:00Z"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_a_bill_in_another_encoding_is_read(tmp_path, encoding):
    text = '实例ID,开始时间,结束时间,金额,类型\na-1,2026-11-01 08:00:00,2026-11-01 09:00:00,"1,234.50",按量计费\n'
    bill = bill_of(tmp_path, text, encoding=encoding)
    (line,) = bill.lines
    assert bill.map.name == "autodl"
    assert (line.pico, line.currency) == (1_234_500_000_000_000, "CNY")
    assert line.from_ns == instant_ns("2026-11-01T00:00:00Z")


def test_a_decimal_comma_is_not_read_as_a_thousands_separator(tmp_path):
    text = '实例ID,开始时间,结束时间,金额,类型\na-1,2026-11-01 08:00:00,2026-11-01 09:00:00,"{}",按量计费\n'
    with pytest.raises(BillError, match="amount '2,48' is not a plain number"):
        bill_of(tmp_path, text.format("2,48"))
    assert bill_of(tmp_path, text.format("1,234,567.89")).lines[0].pico == 1_234_567_890_000_000_000


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_usual_delimiters_are_detected(tmp_path, delimiter):
    text = (PLAIN + "i-1,2026-11-01,2026-11-02,1.5,USD\n").replace(",", delimiter)
    assert len(bill_of(tmp_path, text).lines) == 1


@pytest.mark.parametrize("label", ["Total", "Grand total", "合计", "TOTAL (USD)"])
def test_a_total_row_is_checked_and_not_counted(tmp_path, label):
    lines = "i-1,2026-11-01,2026-11-02,1.5,USD\ni-2,2026-11-01,2026-11-02,2.5,USD\n"
    bill = bill_of(tmp_path, PLAIN + lines + f"{label},,,4.0,\n")
    assert [line.resource for line in bill.lines] == ["i-1", "i-2"]
    with pytest.raises(BillError, match=r"bill\.csv line 4: the total differs from the sum of the lines by -0.5"):
        bill_of(tmp_path, PLAIN + lines + f"{label},,,4.5,\n")


def test_empty_lines_are_skipped(tmp_path):
    assert len(bill_of(tmp_path, "\n" + PLAIN + "\ni-1,2026-11-01,2026-11-02,1.5,USD\n,,,,\n").lines) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("i-1,2026-11-01,2026-11-02,$1.5,USD", r"line 2: amount '\$1.5' is not a plain number"),
        ('i-1,2026-11-01,2026-11-02,"1,234.5",USD', r"line 2: amount '1,234.5' is not a plain number"),
        ("i-1,2026-11-01,2026-11-02,nan,USD", r"line 2: amount 'nan'"),
        ("i-1,2026-11-01,2026-11-02,,USD", r"line 2: amount ''"),
        ("i-1,soon,2026-11-02,1,USD", r"line 2: 'soon' is not a date"),
        ("i-1,2026-11-02,2026-11-01,1,USD", r"line 2: ends before it starts"),
        ("i-1,2026-11-01,2026-11-02,1,dollars", r"line 2: currency 'dollars'"),
        ("i-1,2026-11-01,2026-11-02,1", r"line 2: 4 fields where the header has 5"),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_that_names_it(tmp_path, row, message):
    with pytest.raises(BillError, match=message):
        bill_of(tmp_path, PLAIN + row + "\n")


def test_a_file_that_is_not_a_bill_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(BillError, match=r"no column map fits in the columns a, b; copy conf/pricing/bills/instances"):
        bill_of(tmp_path, "a,b\n1,2\n")
    with pytest.raises(BillError, match="map runpod finds no column for resource"):
        bill_of(tmp_path, PLAIN + "i-1,2026-11-01,2026-11-02,1,USD\n", name="runpod")
    with pytest.raises(BillError, match="no column map is called 'x'"):
        bill_of(tmp_path, PLAIN, name="x")
    with pytest.raises(BillError, match="is empty"):
        bill_of(tmp_path, "\n\n")
    with pytest.raises(BillError, match="has no lines"):
        bill_of(tmp_path, PLAIN)
    with pytest.raises(BillError, match="cannot be read"):
        read_bill(tmp_path / "none.csv", MAPS)


def test_aws_cur_2_lines_have_their_kinds(tmp_path):
    head = "line_item_line_item_type,line_item_usage_type,line_item_resource_id,line_item_usage_start_date,"
    head += "line_item_usage_end_date,line_item_unblended_cost,line_item_currency_code,line_item_usage_amount,"
    head += "pricing_unit\n"
    hour = "2026-11-01T10:00:00Z,2026-11-01T11:00:00Z"
    text = head
    text += f"Usage,BoxUsage:p5.48xlarge,i-0abc,{hour},55.04,USD,1.0,Hrs\n"
    text += f"Usage,EBS:VolumeUsage.gp3,vol-1,{hour},0.11,USD,1.37,GB-Mo\n"
    text += f"Usage,DataTransfer-Out-Bytes,i-0abc,{hour},0.9,USD,10,GB\n"
    text += f"Tax,,,{hour},10.45,USD,,\n"
    text += f"Credit,BoxUsage:p5.48xlarge,i-0abc,{hour},-5,USD,,\n"
    bill = bill_of(tmp_path, text)
    assert bill.map.name == "aws_cur2"
    assert [line.kind for line in bill.lines] == ["machine", "storage", "egress", "tax", "credit"]
    assert [line.seconds for line in bill.lines] == [3600, None, None, None, None]


def test_focus_lines_are_read_with_hours_of_the_machine_or_of_cards(tmp_path):
    head = "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodEnd,ChargePeriodStart,PricingQuantity,PricingUnit,"
    head += "ResourceId,ServiceCategory\n"
    day = "2026-11-02T00:00:00Z,2026-11-01T00:00:00Z"
    text = head + f"63.84,USD,Usage,{day},2,Hours,i-1,Compute\n" + f"31.92,USD,Usage,{day},8,GPU-Hours,i-1,Compute\n"
    text += f"1.2,USD,Usage,{day},3,GiB-Months,i-1,Storage\n" + f"9,USD,Tax,{day},,,i-1,Compute\n"
    bill = bill_of(tmp_path, text)
    assert bill.map.name == "focus"
    assert [(x.kind, x.seconds, x.card_seconds) for x in bill.lines] == [
        ("machine", 7200, None),
        ("machine", None, 8 * 3600),
        ("storage", None, None),
        ("tax", None, None),
    ]


def test_runpod_history_gives_milliseconds_and_days(tmp_path):
    text = "amount,podId,gpuTypeId,time,timeBilledMs,diskSpaceBilledGB\n"
    text += "95.76000000000001,pod1,NVIDIA H100 80GB HBM3,2026-11-01 00:00:00,86400000,50\n"
    bill = bill_of(tmp_path, text)
    (line,) = bill.lines
    assert bill.map.name == "runpod"
    assert line.seconds == Fraction(86400)
    assert line.pico == 95_760_000_000_000
    assert bill.period == (instant_ns("2026-11-01"), instant_ns("2026-11-02"))


def test_a_column_map_with_a_wrong_kind_or_a_missing_key_is_refused(tmp_path):
    text = (CONF / "bills" / "runpod.yaml").read_text(encoding="utf-8")
    (tmp_path / "m.yaml").write_text(text.replace("categories: {}", "categories: {a: rent}"), encoding="utf-8")
    with pytest.raises(BillError, match=r"m\.yaml: kind 'rent' is not one of machine"):
        read_map(tmp_path / "m.yaml")
    (tmp_path / "m.yaml").write_text(text.replace("timezone: UTC", "timezone: Mars"), encoding="utf-8")
    with pytest.raises(BillError, match="not a column map"):
        read_map(tmp_path / "m.yaml")
    (tmp_path / "m.yaml").write_text("name: x\n")
    with pytest.raises(BillError, match="not a column map"):
        read_map(tmp_path / "m.yaml")
