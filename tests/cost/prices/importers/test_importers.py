"""Importers: what is read from catalogues and from AWS, what is left out, and that a snapshot is written whole."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import boto3
import pytest
from botocore.stub import Stubber

from cost.periods import instant_ns
from cost.prices.book import MissingPriceError, PriceBook, PriceError, as_mapping, read_row
from cost.prices.importers import aws, gpuhunt, skypilot
from cost.prices.importers.snapshot import Snapshot, write

DATA = Path(__file__).parents[5] / "shared" / "data" / "skypilot_catalog"
needs_data = pytest.mark.skipif(not DATA.exists(), reason="the shared catalogue samples are not here")
DAY = "2026-11-29"
HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,SpotPrice,Price,AvailabilityZone,GpuInfo\n"
)


def info(count: int = 1, mib: int = 81920, total: int = 81920) -> str:
    """GpuInfo as the catalogues write it, quoted for CSV."""
    gpus = [{"Name": "A", "Count": count, "MemoryInfo": {"SizeInMiB": mib}}]
    text = json.dumps({"Gpus": gpus, "TotalGpuMemoryInMiB": total})
    return '"' + text.replace('"', '""') + '"'


def catalogue(folder: Path, *lines: str, name: str = "cloud_vms.csv") -> Path:
    file = folder / name
    file.write_text(HEADER + "".join(line + "\n" for line in lines), encoding="utf-8")
    return file


def prices(snapshot: Snapshot) -> dict[tuple[str, str, str], Decimal]:
    return {(r.sku, r.purchase, r.region): r.price for r in snapshot.rows}


# SkyPilot ---------------------------------------------------------------------------------------------------------


@needs_data
def test_a_catalogue_with_json_info_is_read_and_unknown_prices_are_left_out_not_zero():
    """skypilot#6680, skypilot-catalog PR#50: unknown was shown as $0."""
    snapshot = skypilot.read(DATA / "verda_vms.csv", day_read=DAY)
    found = prices(snapshot)
    assert found[("verda-1h100.80s.32v", "on_demand", "FIN-02")] == Decimal("2.29")
    assert found[("verda-4b300.120v", "spot", "FIN-03")] == Decimal("9.786")
    assert ("verda-2b300.60v", "on_demand", "FIN-03") not in found
    assert min(found.values()) > 0
    assert "11 lines without a card left out" in snapshot.reports
    assert "5 lines without a price on_demand: unknown, left out" in snapshot.reports


@needs_data
def test_a_catalogue_with_python_literals_is_read_and_a_wrong_memory_size_is_reported_and_not_used():
    snapshot = skypilot.read(DATA / "runpod_vms_sample.csv", day_read=DAY)
    assert prices(snapshot)[("runpod-2x_a100-80gb_secure", "on_demand", "IN")] == Decimal("2.78")
    assert {r.cards for r in snapshot.rows} == {1, 2}
    assert snapshot.reports == ("A100-80GB: a card of 80 MiB (3 lines); not used",)


@needs_data
def test_a_snapshot_bears_the_sha256_of_the_file_and_rows_are_per_machine():
    file = DATA / "verda_vms.csv"
    snapshot = skypilot.read(file, day_read=DAY, version="v8")
    assert snapshot.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (snapshot.version, snapshot.day_read) == ("v8", DAY)
    assert {r.per for r in snapshot.rows} == {"machine_hour"}
    assert all(r.valid_from == DAY and snapshot.sha256[:12] in r.source for r in snapshot.rows)


def test_rows_repeated_per_zone_are_one_row_unless_the_zones_differ_in_price(tmp_path):
    same = catalogue(tmp_path, "m,A100,8.0,8,8,us,,20.0,us-1,", "m,A100,8.0,8,8,us,,20.00,us-2,")
    assert prices(skypilot.read(same, day_read=DAY)) == {("cloud-m", "on_demand", "us"): Decimal("20.0")}
    other = catalogue(tmp_path, "m,A100,8.0,8,8,us,5.1,20.0,us-1,", "m,A100,8.0,8,8,us,6.2,20.0,us-2,")
    assert prices(skypilot.read(other, day_read=DAY)) == {
        ("cloud-m", "on_demand", "us"): Decimal("20.0"),
        ("cloud-m", "spot", "us/us-1"): Decimal("5.1"),
        ("cloud-m", "spot", "us/us-2"): Decimal("6.2"),
    }


@pytest.mark.parametrize("price", ["nan", "-1.5", "1,5", "$2", "abc"])
def test_a_bad_price_in_a_catalogue_is_an_error_that_names_the_line(tmp_path, price):
    file = catalogue(tmp_path, "ok,A100,1.0,8,8,us,,1.5,us-1,", f'm,A100,1.0,8,8,us,,"{price}",us-1,')
    with pytest.raises(PriceError, match=r"cloud_vms\.csv line 3: price"):
        skypilot.read(file, day_read=DAY)


def test_a_price_of_zero_is_unknown_and_is_left_out_and_counted(tmp_path):
    lines = [f"m{n},A100,1.0,8,8,us,{zero},{n}.5,us-1," for n, zero in enumerate(("0.00", "0.0", "0", "0E-8"), 1)]
    found = skypilot.read(catalogue(tmp_path, *lines, "m9,A100,1.0,8,8,us,,0.00,us-1,"), day_read=DAY)
    assert {purchase for _, purchase, _ in prices(found)} == {"on_demand"}
    assert len(found.rows) == 4
    assert "4 lines with a price spot of 0: unknown, left out" in found.reports
    assert "1 lines with a price on_demand of 0: unknown, left out" in found.reports


@pytest.mark.parametrize(
    ("written", "price"),
    [
        ("0.36979999999999996", "0.3698"),
        ("2.4000000000000004", "2.4"),
        ("98.32000000000001", "98.32"),
        ("0.30000000000000004", "0.3"),
        ("1.1102230246251565", "1.11022302462516"),
        ("1E+1", "10"),
        ("1.50000000000000000", "1.5"),
        ("5e-05", "0.00005"),
        ("0.3698", "0.3698"),
    ],
)
def test_float_noise_in_a_price_is_rounded_and_named(tmp_path, written, price):
    found = skypilot.read(catalogue(tmp_path, f"m,A100,1.0,8,8,us,,{written},us-1,"), day_read=DAY)
    (row,) = found.rows
    expected = Decimal(price).quantize(Decimal("1e-12")).normalize()
    assert row.price == expected
    assert read_row(as_mapping(row), "again") == row
    rounded = [report for report in found.reports if "float noise" in report]
    assert bool(rounded) == (Decimal(written) != row.price)
    assert all(written in report for report in rounded)


def test_parts_of_a_card_and_cards_priced_apart_from_their_machine_are_left_out_and_counted(tmp_path):
    """Azure's machines with a sixth of a card; GCP's lines for cards, without the machine that they go into."""
    lines = ["m,A100,1.0,8,8,us,,1.5,us-1,", "nv6,A10,0.167,6,55,us,,0.4,us-1,", ",T4,1.0,,,us,,0.35,us-1,"]
    lines += [",V100,1.0,,,us,,2.48,us-1,"]
    found = skypilot.read(catalogue(tmp_path, *lines), day_read=DAY)
    assert list(prices(found).values()) == [Decimal("1.5")]
    assert "2 lines that price cards apart from their machine left out" in found.reports
    assert "1 lines for a part of a card left out" in found.reports


@pytest.mark.parametrize("count", ["eight", "0.0", "-1", "nan"])
def test_a_count_that_is_no_number_of_cards_is_refused(tmp_path, count):
    with pytest.raises(PriceError, match="line 2: AcceleratorCount"):
        skypilot.read(catalogue(tmp_path, f"m,A100,{count},8,8,us,,1.5,us-1,"), day_read=DAY)


def test_one_machine_at_two_prices_in_one_zone_is_refused(tmp_path):
    file = catalogue(tmp_path, "m,A100,1.0,8,8,us,,1.5,us-1,", "m,A100,1.0,8,8,us,,1.6,us-1,")
    with pytest.raises(PriceError, match=r"line 3: m in us-1 costs 1\.6, but 1\.5 at cloud_vms\.csv line 2"):
        skypilot.read(file, day_read=DAY)


@pytest.mark.parametrize(
    ("described", "report"),
    [
        (info(), ""),
        ('"{not json"', "GpuInfo is neither JSON nor a Python literal"),
        ('"{""Gpus"": []}"', "GpuInfo lacks"),
        (info(2, 40960), "counts 2 cards, AcceleratorCount 1"),
        (info(1, 80, 80), "a card of 80 MiB"),
        (info(total=9), "81920 MiB in the cards but 9 in total"),
    ],
)
def test_doubtful_card_descriptions_are_reported_and_the_price_kept(tmp_path, described, report):
    snapshot = skypilot.read(catalogue(tmp_path, f"m,A100,1.0,8,8,us,1.0,1.5,us-1,{described}"), day_read=DAY)
    assert prices(snapshot)[("cloud-m", "on_demand", "us")] == Decimal("1.5")
    assert (report in snapshot.reports[0]) if report else (snapshot.reports == ())


def test_a_file_that_is_no_catalogue_or_no_text_is_refused(tmp_path):
    (tmp_path / "cloud_vms.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PriceError, match="column InstanceType is missing"):
        skypilot.read(tmp_path / "cloud_vms.csv", day_read=DAY)
    (tmp_path / "cloud_vms.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PriceError, match="not UTF-8"):
        skypilot.read(tmp_path / "cloud_vms.csv", day_read=DAY)
    with pytest.raises(PriceError, match="cannot be read"):
        skypilot.read(tmp_path / "none_vms.csv", day_read=DAY)


def test_the_provider_is_that_of_the_path_or_must_be_said(tmp_path):
    line = "m,A100,1.0,8,8,us,,1.5,us-1,"
    (tmp_path / "lambda").mkdir()
    assert skypilot.read(catalogue(tmp_path / "lambda", line, name="vms.csv"), day_read=DAY).name == "lambda"
    with pytest.raises(PriceError, match="--provider"):
        skypilot.read(catalogue(tmp_path, line, name="prices.csv"), day_read=DAY)


# Writing ----------------------------------------------------------------------------------------------------------


def test_a_written_snapshot_is_part_of_the_price_book_and_writing_it_again_changes_nothing(tmp_path):
    snapshot = skypilot.read(catalogue(tmp_path, "m,A100,8.0,8,8,us,5,20.0,us-1,"), day_read=DAY)
    book_folder = tmp_path / "pricing"
    book_folder.mkdir()
    file = write(snapshot, book_folder)
    assert file is not None
    assert file.name == "imported-cloud-2026-11-29.yaml"
    book = PriceBook.load(book_folder)
    assert book.rows == snapshot.rows
    assert book.in_force("cloud-m", instant_ns("2026-11-30"), purchase="spot").price == 5
    before = file.read_bytes()
    assert write(snapshot, book_folder) is None
    assert file.read_bytes() == before
    assert [f.name for f in book_folder.iterdir()] == [file.name]


def test_another_import_of_the_same_day_is_refused_and_of_a_later_day_written_beside(tmp_path):
    line = "m,A100,8.0,8,8,us,,{},us-1,"
    first = skypilot.read(catalogue(tmp_path, line.format("20.0")), day_read=DAY)
    second = skypilot.read(catalogue(tmp_path, line.format("21.0")), day_read=DAY)
    later = skypilot.read(catalogue(tmp_path, line.format("21.0")), day_read=DAY, valid_from="2026-12-01")
    folder = tmp_path / "pricing"
    folder.mkdir()
    write(first, folder)
    with pytest.raises(PriceError, match="--valid-from"):
        write(second, folder)
    write(later, folder)
    book = PriceBook.load(folder)
    assert book.in_force("cloud-m", instant_ns("2026-11-30")).price == 20
    assert book.in_force("cloud-m", instant_ns("2026-12-01")).price == 21


# gpuhunt ----------------------------------------------------------------------------------------------------------

GPUHUNT = "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags\n"


def test_a_gpuhunt_folder_gives_a_snapshot_per_provider(tmp_path):
    (tmp_path / "version").write_text("20261128\n")
    (tmp_path / "runpod.csv").write_text(
        GPUHUNT
        + "NVIDIA H100,EU,2.39,16,125,1,H100,80.0,False,,nvidia,\n"
        + "NVIDIA H100,EU,1.20,16,125,1,H100,80.0,True,,nvidia,\n"
        + "NVIDIA A40,EU,,16,125,1,A40,48.0,False,,nvidia,\n"
        + "cpu5,EU,0.1,16,125,0,,,False,,,\n"
    )
    (tmp_path / "vastai.csv").write_text(
        GPUHUNT
        + "123,US,0.35,8,32,1,RTX4090,24.0,False,,nvidia,\n"
        + "123,US,0.40,8,32,1,RTX4090,24.0,False,,nvidia,\n"
    )
    runpod, vast = gpuhunt.read(tmp_path, day_read=DAY)
    assert runpod.version == "20261128"
    assert prices(runpod) == {
        ("runpod-nvidia-h100", "on_demand", "EU"): Decimal("2.39"),
        ("runpod-nvidia-h100", "spot", "EU"): Decimal("1.20"),
    }
    assert runpod.reports == ("1 lines without a card left out", "1 lines without a price: unknown, left out")
    assert prices(vast) == {("vast-123", "on_demand", "US"): Decimal("0.40")}


def test_a_folder_without_catalogues_is_refused(tmp_path):
    with pytest.raises(PriceError, match="no gpuhunt catalogue"):
        gpuhunt.read(tmp_path, day_read=DAY)
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(PriceError, match="column instance_name is missing"):
        gpuhunt.read(tmp_path, day_read=DAY)


# AWS --------------------------------------------------------------------------------------------------------------


def stubbed(service: str) -> tuple[object, Stubber]:
    client = boto3.client(
        service,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    return client, Stubber(client)


def product(price: str, unit: str = "Hrs") -> str:
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": "p5.48xlarge", "gpu": "8"}},
            "terms": {
                "OnDemand": {
                    "T": {
                        "effectiveDate": "2025-06-05T00:00:00Z",
                        "priceDimensions": {"D": {"unit": unit, "pricePerUnit": {"USD": price}}},
                    }
                }
            },
            "version": "20261120",
            "publicationDate": "2026-11-20T00:00:00Z",
        }
    )


def test_on_demand_prices_come_from_the_price_list_page_by_page_with_their_effective_date():
    client, stub = stubbed("pricing")
    stub.add_response(
        "get_products", {"FormatVersion": "aws_v1", "PriceList": [product("0.0000000000")], "NextToken": "n"}
    )
    stub.add_response("get_products", {"FormatVersion": "aws_v1", "PriceList": [product("55.0400000000")]})
    with stub:
        snapshot = aws.on_demand(["p5.48xlarge"], region="us-east-1", day_read=DAY, pricing=client)
    (row,) = snapshot.rows
    assert (row.sku, row.price, row.cards, row.per) == ("aws-p5.48xlarge", Decimal("55.04"), 8, "machine_hour")
    assert row.valid_from == "2025-06-05T00:00:00Z"
    assert snapshot.version == "2026-11-20T00:00:00Z"
    stub.assert_no_pending_responses()


def test_an_instance_type_that_the_price_list_lacks_is_an_error():
    client, stub = stubbed("pricing")
    stub.add_response("get_products", {"FormatVersion": "aws_v1", "PriceList": []})
    with stub, pytest.raises(MissingPriceError, match=r"p9\.huge in us-east-1"):
        aws.on_demand(["p9.huge"], region="us-east-1", day_read=DAY, pricing=client)


def test_what_aws_refuses_is_a_message_and_no_traceback():
    client, stub = stubbed("pricing")
    stub.add_client_error("get_products", "AccessDeniedException", "no")
    with stub, pytest.raises(PriceError, match=r"AWS gave no prices: .*AccessDenied.*aws configure"):
        aws.on_demand(["p5.48xlarge"], region="us-east-1", day_read=DAY, pricing=client)


def spot(moment: datetime, price: str) -> dict[str, object]:
    return {"Timestamp": moment, "SpotPrice": price, "InstanceType": "p5.48xlarge", "AvailabilityZone": "us-east-1f"}


def at(hour: int, day: int = 28) -> datetime:
    return datetime(2026, 11, day, hour, tzinfo=UTC)


def test_spot_history_keeps_the_last_change_before_the_start_and_drops_older_ones():
    client, stub = stubbed("ec2")
    stub.add_response(
        "describe_spot_price_history",
        {"SpotPriceHistory": [spot(at(12), "17.2"), spot(at(8), "16.9508")], "NextToken": "n"},
    )
    stub.add_response("describe_spot_price_history", {"SpotPriceHistory": [spot(at(3, 27), "15.0")], "NextToken": ""})
    with stub:
        snapshot = aws.spot_history(
            "p5.48xlarge", cards=8, zone="us-east-1f", start=at(10), end=at(20), day_read=DAY, ec2=client
        )
    assert [(r.valid_from, r.price) for r in snapshot.rows] == [
        ("2026-11-28T08:00:00Z", Decimal("16.9508")),
        ("2026-11-28T12:00:00Z", Decimal("17.2")),
    ]
    assert {r.region for r in snapshot.rows} == {"us-east-1/us-east-1f"}
    assert PriceBook(snapshot.rows).in_force("aws-p5.48xlarge", instant_ns(at(11))).price == Decimal("16.9508")


def test_spot_history_without_a_price_at_the_start_is_an_error_and_not_the_next_price():
    client, stub = stubbed("ec2")
    stub.add_response("describe_spot_price_history", {"SpotPriceHistory": [spot(at(12), "17.2")]})
    with stub, pytest.raises(MissingPriceError, match="in force at 2026-11-28T10:00:00Z"):
        aws.spot_history("p5.48xlarge", cards=8, zone="us-east-1f", start=at(10), end=at(20), day_read=DAY, ec2=client)
    with pytest.raises(PriceError, match="must be after the start"):
        aws.spot_history("p5.48xlarge", cards=8, zone="us-east-1f", start=at(10), end=at(9), day_read=DAY, ec2=client)
