"""What FOCUS 1.2 demands of every row, column by column, as a table; and a function that holds a row against it.

Written out from the specification (its tag v1.2, specification/columns and specification/attributes), not taken from
the code: formats, allowed values, when a column must have a value and when it must not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

Row = Mapping[str, str]
Has = Callable[[Row], bool | None]
"""Whether a column must have a value in a row (True), must be null (False), or may be either (None)."""

FORMATS: dict[str, Callable[[str], Any]] = {
    "decimal": lambda text: re.fullmatch(r"-?\d+(\.\d+)?(E-?\d+)?", text),
    "moment": lambda text: re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text),
    "currency": lambda text: re.fullmatch(r"[A-Z]{3}", text),
    "text": lambda text: text.strip() == text and text not in ("None", "null", "NULL", "Not Applicable", "N/A"),
    "pairs": lambda text: (
        isinstance(pairs := json.loads(text), dict)
        and not any(isinstance(value, (dict, list)) for value in pairs.values())
    ),
    # A unit, a unit by time, or units by a time: GB, GB-Hours, GB/Hour; money committed is counted in its currency.
    "unit": lambda text: re.fullmatch(r"[A-Za-z]+(-[A-Z][a-z]+s)?|[A-Za-z]+/[A-Z][a-z]+", text),
}

SUBCATEGORIES = {
    "Compute": ("Containers", "End User Computing", "Quantum Compute", "Serverless Compute", "Virtual Machines"),
    "Networking": (
        *("Application Networking", "Content Delivery", "Network Connectivity", "Network Infrastructure"),
        *("Network Routing", "Network Security"),
    ),
    "Storage": ("Backup Storage", "Block Storage", "File Storage", "Object Storage", "Storage Platforms"),
    "AI and Machine Learning": ("AI Platforms", "Bots", "Generative AI", "Machine Learning"),
}
"""Those of the categories that machines, disks and traffic can fall into; each has `Other (CATEGORY)` besides."""


def always(_: Row) -> bool:
    return True


def maybe(_: Row) -> None:
    return None


def priced(row: Row) -> bool | None:
    """Null for tax; a value for usage and purchases that are no corrections."""
    if row["ChargeCategory"] == "Tax":
        return False
    return True if row["ChargeCategory"] in ("Usage", "Purchase") and not row.get("ChargeClass") else None


def consumed(row: Row) -> bool | None:
    if row["ChargeCategory"] != "Usage" or row.get("CommitmentDiscountStatus") == "Unused":
        return False
    return None if row.get("ChargeClass") else True


def committed_usage(row: Row) -> bool:
    return bool(row.get("CommitmentDiscountId")) and row["ChargeCategory"] == "Usage"


def committed_quantity(row: Row) -> bool | None:
    if not row.get("CommitmentDiscountId") or row["ChargeCategory"] not in ("Usage", "Purchase"):
        return False
    return None if row.get("ChargeClass") else True


def with_column(name: str) -> Has:
    """As that column is: a value beside a value, null beside null."""
    return lambda row: bool(row.get(name))


def only_with(name: str) -> Has:
    """Null beside null."""
    return lambda row: None if row.get(name) else False


@dataclass(frozen=True)
class Rule:
    """`level` says whether every file has the column, or one whose provider knows of such a thing."""

    level: Literal["mandatory", "conditional", "recommended"]
    form: str
    has: Has = always
    allowed: tuple[str, ...] = ()


RULES: dict[str, Rule] = {
    "AvailabilityZone": Rule("recommended", "text", maybe),
    "BilledCost": Rule("mandatory", "decimal"),
    "BillingAccountId": Rule("mandatory", "text"),
    "BillingAccountName": Rule("mandatory", "text", maybe),
    "BillingCurrency": Rule("mandatory", "currency"),
    "BillingPeriodEnd": Rule("mandatory", "moment"),
    "BillingPeriodStart": Rule("mandatory", "moment"),
    "ChargeCategory": Rule("mandatory", "text", always, ("Usage", "Purchase", "Tax", "Credit", "Adjustment")),
    "ChargeClass": Rule("mandatory", "text", maybe, ("Correction",)),
    "ChargeDescription": Rule("mandatory", "text"),
    "ChargeFrequency": Rule("recommended", "text", always, ("One-Time", "Recurring", "Usage-Based")),
    "ChargePeriodEnd": Rule("mandatory", "moment"),
    "ChargePeriodStart": Rule("mandatory", "moment"),
    "CommitmentDiscountCategory": Rule("conditional", "text", with_column("CommitmentDiscountId"), ("Spend", "Usage")),
    "CommitmentDiscountId": Rule("conditional", "text", maybe),
    "CommitmentDiscountName": Rule("conditional", "text", only_with("CommitmentDiscountId")),
    "CommitmentDiscountQuantity": Rule("conditional", "decimal", committed_quantity),
    "CommitmentDiscountStatus": Rule("conditional", "text", committed_usage, ("Used", "Unused")),
    "CommitmentDiscountType": Rule("conditional", "text", with_column("CommitmentDiscountId")),
    "CommitmentDiscountUnit": Rule("conditional", "unit", with_column("CommitmentDiscountQuantity")),
    "ConsumedQuantity": Rule("conditional", "decimal", consumed),
    "ConsumedUnit": Rule("conditional", "unit", with_column("ConsumedQuantity")),
    "ContractedCost": Rule("mandatory", "decimal"),
    "ContractedUnitPrice": Rule("conditional", "decimal", priced),
    "EffectiveCost": Rule("mandatory", "decimal"),
    "InvoiceId": Rule("recommended", "text", maybe),
    "InvoiceIssuerName": Rule("mandatory", "text"),
    "ListCost": Rule("mandatory", "decimal"),
    "ListUnitPrice": Rule("conditional", "decimal", priced),
    "PricingCategory": Rule("conditional", "text", priced, ("Standard", "Dynamic", "Committed", "Other")),
    "PricingQuantity": Rule("mandatory", "decimal", priced),
    "PricingUnit": Rule("mandatory", "unit", with_column("PricingQuantity")),
    "ProviderName": Rule("mandatory", "text"),
    "PublisherName": Rule("mandatory", "text"),
    "RegionId": Rule("conditional", "text", maybe),
    "RegionName": Rule("conditional", "text", with_column("RegionId")),
    "ResourceId": Rule("conditional", "text", maybe),
    "ResourceName": Rule("conditional", "text", only_with("ResourceId")),
    "ResourceType": Rule("conditional", "text", with_column("ResourceId")),
    "ServiceCategory": Rule("mandatory", "text", always, tuple(SUBCATEGORIES)),
    "ServiceName": Rule("mandatory", "text"),
    "ServiceSubcategory": Rule("recommended", "text"),
    "SkuId": Rule("conditional", "text", priced),
    "SkuMeter": Rule("conditional", "text", with_column("SkuId")),
    "SkuPriceDetails": Rule("conditional", "pairs", only_with("SkuPriceId")),
    "SkuPriceId": Rule("conditional", "text", priced),
    "SubAccountId": Rule("conditional", "text", maybe),
    "SubAccountName": Rule("conditional", "text", with_column("SubAccountId")),
    "Tags": Rule("conditional", "pairs", maybe),
}
"""Left out are the columns of things that no machine here has: types of billing and sub accounts, capacity
reservations apart from commitments, and prices in another currency than the bill's."""


def findings(row: Row) -> list[str]:
    """What a row does otherwise than the specification says; nothing where all is well."""
    found = []
    for name, rule in RULES.items():
        value, has = row.get(name, ""), rule.has(row)
        if has is not None and has != bool(value):
            found.append(f"{name} must {'have a value' if has else 'be null'}, and is {value!r}")
        if value and not FORMATS[rule.form](value):
            found.append(f"{name}: {value!r} is no {rule.form}")
        if value and rule.allowed and value not in rule.allowed:
            found.append(f"{name}: {value!r} is not one of {', '.join(rule.allowed)}")
    return found or [text for text, holds in _together(row) if not holds]


def _together(row: Row) -> list[tuple[str, bool]]:
    """What columns say together."""
    category, amounts = row["ChargeCategory"], {k: Decimal(row[k]) for k in _COSTS}
    parent = row["ServiceCategory"]
    of_parent = (*SUBCATEGORIES[parent], f"Other ({parent})")
    found = [
        ("the charge lies within its billing period", _within(row)),
        ("no purchase is usage-based", category != "Purchase" or row["ChargeFrequency"] != "Usage-Based"),
        ("a purchase for later use has no effective cost", category != "Purchase" or amounts["EffectiveCost"] == 0),
        ("unit prices are not negative", all(Decimal(row.get(k) or 0) >= 0 for k in _UNIT_PRICES)),
        ("a subcategory is one of its category", row["ServiceSubcategory"] in of_parent),
        ("our own columns come with x_", all(k in RULES or k.startswith("x_") for k in row)),
        ("what a commitment pays for is committed", _pricing_category(row)),
    ]
    if category in ("Credit", "Adjustment"):
        found.append(("a charge by itself costs the same in every way", len(set(amounts.values())) == 1))
    if row.get("PricingQuantity") and not row.get("ChargeClass"):
        for price, cost in _UNIT_PRICES.items():
            product = Decimal(row["PricingQuantity"]) * Decimal(row[price])
            # What is kept is whole 1e-12: parts of a charge may be a few of them away from their own product.
            found.append((f"{price} x PricingQuantity is {cost}", abs(product - amounts[cost]) <= Decimal("1e-10")))
    return found


_COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
_UNIT_PRICES = {"ContractedUnitPrice": "ContractedCost", "ListUnitPrice": "ListCost"}


def _within(row: Row) -> bool:
    moments = (row[k] for k in ("BillingPeriodStart", "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodEnd"))
    first, start, end, last = moments
    return first <= start < end <= last


def _pricing_category(row: Row) -> bool:
    committed = bool(row.get("CommitmentDiscountId")) and row["ChargeCategory"] == "Usage"
    return (row.get("PricingCategory") == "Committed") == committed
