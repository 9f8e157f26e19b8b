"""Prices from AWS: the public price list (on demand) and the spot price history of a zone, both through boto3.

boto3 finds the credentials; none is asked for, stored or printed.

Tested in tests/cost/prices/importers/test_importers.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from cost.prices.book import MissingPriceError, PriceError, PriceRow, parse_price, price_instant
from cost.prices.importers.snapshot import Snapshot, clean_price

_PAGE = "https://aws.amazon.com/ec2/pricing/on-demand/"


def client(service: str, region: str) -> Any:
    """A boto3 client. The price list is served from few regions; us-east-1 is one of them."""
    import boto3

    return boto3.client(service, region_name=region)


def on_demand(instance_types: list[str], *, region: str, day_read: str, pricing: Any) -> Snapshot:
    """On-demand Linux prices of instance types in one region, from the price list service (`pricing` client).

    Raises MissingPriceError for a type that the list does not have.
    """
    rows: list[PriceRow] = []
    bodies: list[str] = []
    version = ""
    for instance in instance_types:
        filters = {
            "instanceType": instance,
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        request = {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1"}
        request["Filters"] = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in filters.items()]  # type: ignore[assignment]
        found = []
        for page in _pages(pricing.get_products, request):
            for body in page["PriceList"]:
                bodies.append(body)
                product = json.loads(body)
                version = product.get("publicationDate", version)
                found += list(_on_demand_rows(product, instance, region, day_read))
        if not found:
            raise MissingPriceError(f"AWS's price list has no on-demand Linux price of {instance} in {region}")
        rows += found
    source = f"AWS price list AmazonEC2, published {version or 'unknown'}"
    sha256 = hashlib.sha256("\n".join(bodies).encode()).hexdigest()
    return Snapshot(f"aws-{region}", source, version or "unknown", sha256, day_read, tuple(rows), ())


def _on_demand_rows(product: dict[str, Any], instance: str, region: str, day_read: str) -> Iterator[PriceRow]:
    attributes = product["product"]["attributes"]
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            price = clean_price(dimension["pricePerUnit"]["USD"], f"{instance} in {region}")
            if dimension["unit"] != "Hrs" or price == 0:
                continue
            yield _row(
                instance,
                region,
                "on_demand",
                price=dimension["pricePerUnit"]["USD"],
                cards=int(attributes.get("gpu", "0")),
                valid_from=term["effectiveDate"],
                day_read=day_read,
                source=f"{_PAGE} (price list {product.get('version', 'unknown')})",
            )


def spot_history(
    instance: str, *, cards: int, zone: str, start: datetime, end: datetime, day_read: str, ec2: Any
) -> Snapshot:
    """Spot prices of one instance type in one zone from `start` to `end` (UTC), oldest first.

    AWS returns the changes within the range and the last one before it, which is the price in force at `start`.
    Raises MissingPriceError when that one is missing, and PriceError for a range that ends before it starts.
    """
    if end <= start:
        raise PriceError(f"spot history: the end {end} must be after the start {start}")
    request = {
        "InstanceTypes": [instance],
        "ProductDescriptions": ["Linux/UNIX"],
        "AvailabilityZone": zone,
        "StartTime": start,
        "EndTime": end,
    }
    changes: dict[datetime, str] = {}
    for page in _pages(ec2.describe_spot_price_history, request):
        for item in page["SpotPriceHistory"]:
            changes[item["Timestamp"].astimezone(UTC)] = item["SpotPrice"]
    if not changes or min(changes) > start:
        raise MissingPriceError(
            f"AWS's spot history has no price of {instance} in {zone} in force at {start:%Y-%m-%dT%H:%M:%SZ}; "
            "it goes back 90 days"
        )
    first = max(moment for moment in changes if moment <= start)
    source = f"AWS spot price history of {instance}, Linux/UNIX, {zone}"
    region = zone.rstrip("abcdefghijklmnopqrstuvwxyz")
    rows = tuple(
        _row(
            instance,
            f"{region}/{zone}",
            "spot",
            price=changes[moment],
            cards=cards,
            valid_from=f"{moment:%Y-%m-%dT%H:%M:%SZ}",
            day_read=day_read,
            source=source,
        )
        for moment in sorted(changes)
        if moment >= first
    )
    body = json.dumps([(r.valid_from, str(r.price)) for r in rows])
    sha256 = hashlib.sha256(body.encode()).hexdigest()
    return Snapshot(f"aws-spot-{instance}-{zone}", source, "unversioned", sha256, day_read, rows, ())


def _pages(call: Any, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from botocore.exceptions import BotoCoreError, ClientError

    token = ""
    while True:
        try:
            page = call(**request, **({"NextToken": token} if token else {}))
        except (BotoCoreError, ClientError) as error:
            raise PriceError(
                f"AWS gave no prices: {error}; it needs credentials that boto3 finds (aws configure) and may read "
                "the price list and the spot price history"
            ) from error
        yield page
        token = page.get("NextToken", "")
        if not token:
            return


def _row(
    instance: str, region: str, purchase: str, *, price: str, cards: int, valid_from: str, day_read: str, source: str
) -> PriceRow:
    price_instant(valid_from)
    return PriceRow(
        provider="aws",
        sku=f"aws-{instance}",
        region=region,
        per="machine_hour",
        cards=cards,
        purchase=purchase,
        currency="USD",
        price=clean_price(price, f"{instance} in {region}"),
        tax_included=False,
        tax_rate=parse_price("0"),
        valid_from=valid_from,
        valid_to="",
        source=source,
        day_read=day_read,
    )
