"""One charge as the row of a FOCUS file: a mapping from column to text.

Tested in tests/cost/reports/test_focus.py.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from cost.charges.attribution import CostLine
from cost.charges.charge_status import least_final
from cost.clock import NS_PER_HOUR
from cost.ledger.schema import MICRO_PER_CARD
from cost.money import PICO_PER_UNIT, pico_text
from cost.periods import instant_text
from cost.prices.book import TIME_UNITS, PriceRow, pico_per_hour
from cost.printable import json_text
from cost.records import Lease, Usage
from cost.reports.focus_charges import FocusCharge

ALLOCATION_METHOD = "card-time-largest-remainder"
"""How a lease's charge is split: by the cards granted at each moment, and the last 1e-12 by largest remainder."""

_NS = 10**9
_UNITS = {
    "card_hour": "GPU-Hours",
    "machine_hour": "Instance-Hours",
    "kwh": "kWh",
    "gib_month": "GiB-Months",
    "gib": "GiB",
    "request": "Requests",
    "one_off": "Units",
}
"""The pricing unit, by the unit of a price row."""
_SERVICES = {
    "storage": ("Storage", "Other (Storage)", "Machine storage"),
    "egress": ("Networking", "Other (Networking)", "Data transfer"),
    "requests": ("Storage", "Object Storage", "Storage requests"),
}
"""Service category, subcategory and name, by our category."""
_COMPUTE = ("Compute", "Virtual Machines", "GPU machines")
_COMMITMENT_CATEGORIES = {"reserved": "Usage", "savings_plan": "Spend", "capacity_block": "Usage"}
"""CommitmentDiscountCategory, by kind of commitment."""


def focus_row(charge: FocusCharge) -> dict[str, str]:
    """The columns of version 1.2, and our own."""
    line, lease = charge.line, charge.line.lease
    category = _charge_category(line)
    service, subcategory, service_name = _SERVICES.get(line.category, _COMPUTE)
    region = (line.price.region if line.price is not None else "") or lease.region
    region_id, _, zone = region.partition("/")
    row = {
        "AvailabilityZone": zone,
        "BilledCost": pico_text(charge.billed_pico),
        "BillingAccountId": lease.account or lease.provider,
        "BillingAccountName": "",
        "BillingCurrency": lease.currency,
        "BillingPeriodEnd": instant_text(charge.period[1]),
        "BillingPeriodStart": instant_text(charge.period[0]),
        "ChargeCategory": category,
        "ChargeClass": "Correction" if line.category == "refund" else "",
        "ChargeDescription": _charge_description(line),
        "ChargeFrequency": "Usage-Based" if category == "Usage" else "One-Time",
        "ChargePeriodEnd": instant_text(max(-(-charge.to_ns // _NS), charge.from_ns // _NS + 1) * _NS),
        "ChargePeriodStart": instant_text(charge.from_ns),
        "ContractedCost": pico_text(charge.contracted_pico),
        "EffectiveCost": pico_text(charge.effective_pico),
        "InvoiceId": charge.invoice,
        "InvoiceIssuerName": lease.provider,
        "ListCost": pico_text(charge.list_pico),
        "ProviderName": lease.provider,
        "PublisherName": lease.provider,
        "RegionId": region_id,
        "RegionName": region_id,
        "ResourceId": lease.resource_id or lease.instance_id,
        "ResourceName": lease.machine,
        "ResourceType": "Machine",
        "ServiceCategory": service,
        "ServiceName": service_name,
        "ServiceSubcategory": subcategory,
        "SubAccountId": lease.project,
        "SubAccountName": lease.project,
        "Tags": _tags_text(lease),
        "x_CardHours": _decimal_text(_card_hours(charge.micro_card_ns)),
        "x_Category": line.category,
        "x_ChargeStatus": least_final(charge.statuses),
        "x_Flags": " ".join(sorted(charge.flags)),
        "x_Imputed": "true" if line.imputed else "false",
        "x_LeaseId": lease.lease_id,
        "x_Machine": lease.machine,
        "x_Owner": lease.owner,
        "x_SweepId": line.sweep_id,
        "x_TrialId": line.trial_id,
    }
    if line.commitment and line.category == "purchase":
        row |= _purchase_cells(line)
    elif line.commitment:
        row |= _committed_cells(charge, row["x_CardHours"])
    elif line.price is not None:
        row |= {"x_PriceHash": line.price.hash, "x_PriceSource": line.price.source}
        if category == "Usage":
            row |= _price_cells(charge, line.price, row["x_CardHours"])
    return row


def allocation_cells(charge: FocusCharge, usage: Usage | None) -> dict[str, str]:
    """The columns that version 1.3 adds. `usage`: of the charge's trial."""
    line = charge.line
    cells = {"HostProviderName": line.lease.provider, "ServiceProviderName": line.lease.provider}
    if charge.allocated_ratio is None:
        return cells
    # Numbers are formatted as text, since a float would round them.
    ratio = _decimal_text(charge.allocated_ratio)
    hours = _decimal_text(_card_hours(charge.micro_card_ns))
    element = f'{{"AllocatedRatio":{ratio},"UsageUnit":"GPU-Hours","UsageQuantity":{hours}}}'
    cells |= {"AllocatedMethodId": ALLOCATION_METHOD, "AllocatedMethodDetails": f'{{"Elements":[{element}]}}'}
    if not line.trial_id:
        # Overhead is the unallocated portion: its AllocatedResource columns are null by the specification.
        return cells
    tags = {"sweep": line.sweep_id} | ({k: usage.labels[k] for k in sorted(usage.labels)} if usage else {})
    return cells | {
        "AllocatedResourceId": f"{line.sweep_id}/{line.trial_id}",
        "AllocatedResourceName": f"{line.category} of trial {line.trial_id}",
        "AllocatedTags": _json_text(tags),
    }


def _price_cells(charge: FocusCharge, price: PriceRow, card_hours: str) -> dict[str, str]:
    """Price, quantity and unit of priced usage. Quantity times unit price is the cost, to 1e-12."""
    lease, amounts = charge.line.lease, charge.line.by_price_kind
    unit, charged_price = _UNITS[price.per], price.price
    if price.depreciation:
        # Energy and depreciation have only the hour of the machine as a common unit.
        hour = pico_per_hour(price, lease.cards, lease.watts or 0)
        unit, charged_price = "Hours", Decimal(hour.numerator) / hour.denominator / PICO_PER_UNIT
    quantity = Fraction(charge.pico, PICO_PER_UNIT) / Fraction(charged_price) if charged_price else Fraction(0)
    list_price = amounts.list_row.price if amounts and amounts.list_row else charged_price
    commitment_category = _COMMITMENT_CATEGORIES.get(price.purchase, "")
    by_time = price.per in TIME_UNITS
    cells = {
        "ConsumedQuantity": card_hours if by_time else _decimal_text(quantity, 18),
        "ConsumedUnit": "GPU-Hours" if by_time else _UNITS[price.per],
        "ContractedUnitPrice": format(charged_price, "f"),
        "ListUnitPrice": format(list_price, "f"),
        "PricingCategory": {"spot": "Dynamic"}.get(price.purchase, "Committed" if commitment_category else "Standard"),
        "PricingQuantity": _decimal_text(quantity, 18),
        "PricingUnit": unit,
        "SkuId": price.sku,
        "SkuMeter": "Energy" if price.per == "kwh" else "Machine time" if by_time else charge.line.category,
        "SkuPriceDetails": _json_text({"GpuCount": lease.cards if price.per == "machine_hour" else 1})
        if by_time
        else "",
        "SkuPriceId": "/".join(filter(None, (price.sku, price.purchase, price.region, price.kind))),
    }
    if commitment_category:
        name = lease.tags.get("commitment", "") or price.sku
        cells |= _commitment_cells(lease, name, commitment_category, card_hours, charge.effective_pico)
        cells |= {"CommitmentDiscountStatus": "Used", "CommitmentDiscountType": price.purchase}
    return cells


def _commitment_cells(lease: Lease, name: str, category: str, card_hours: str, pico: int) -> dict[str, str]:
    """The commitment of a charge, and its quantity: money for a savings plan, else card-hours."""
    by_money = category == "Spend"
    return {
        "CommitmentDiscountCategory": category,
        "CommitmentDiscountId": name,
        "CommitmentDiscountName": name,
        "CommitmentDiscountQuantity": pico_text(pico) if by_money else card_hours,
        "CommitmentDiscountUnit": lease.currency if by_money else "GPU-Hours",
    }


def _entered_commitment_cells(line: CostLine, card_hours: str, pico: int) -> dict[str, str]:
    """The columns that the purchase of an entered commitment and its use have in common."""
    kind = line.lease.purchase
    return _commitment_cells(
        line.lease, line.commitment, _COMMITMENT_CATEGORIES.get(kind, "Usage"), card_hours, pico
    ) | {
        "CommitmentDiscountType": kind,
        "SkuId": line.lease.sku,
        "SkuMeter": "Machine time",
        "SkuPriceId": f"{line.lease.sku}/{line.commitment}",
        "x_PriceSource": f"commitment {line.commitment}",
    }


def _purchase_cells(line: CostLine) -> dict[str, str]:
    """The purchase of a commitment: one unit at the price paid."""
    paid = pico_text(line.paid_pico)
    card_hours = _decimal_text(_card_hours(line.bought_micro_card_ns))
    return _entered_commitment_cells(line, card_hours, line.paid_pico) | {
        "PricingCategory": "Standard",
        "PricingQuantity": "1",
        "PricingUnit": "Units",
        "ContractedUnitPrice": paid,
        "ListUnitPrice": paid,
        "ListCost": paid,
        "ContractedCost": paid,
    }


def _committed_cells(charge: FocusCharge, card_hours: str) -> dict[str, str]:
    """Time that a commitment covers, used or unused. The purchase has paid for it."""
    line, hours = charge.line, _card_hours(charge.micro_card_ns)
    list_price, contracted_price = (
        _decimal_text(Fraction(pico, PICO_PER_UNIT) / hours, 18) if hours else "0"
        for pico in (charge.list_pico, charge.contracted_pico)
    )
    unused = line.category == "unused_commitment"
    return _entered_commitment_cells(line, card_hours, charge.pico) | {
        "PricingCategory": "Committed",
        "CommitmentDiscountStatus": "Unused" if unused else "Used",
        "ConsumedQuantity": "" if unused else card_hours,
        "ConsumedUnit": "" if unused else "GPU-Hours",
        "ContractedUnitPrice": contracted_price,
        "ListUnitPrice": list_price,
        "PricingQuantity": _decimal_text(hours, 18),
        "PricingUnit": "GPU-Hours",
    }


def _charge_category(line: CostLine) -> str:
    if line.commitment:
        return "Purchase" if line.category == "purchase" else "Usage"
    if line.category == "tax":
        return "Tax"
    if line.category == "credit":
        return "Credit"
    if line.price is None and line.category != "refund":
        return "Adjustment"
    return "Usage"


def _charge_description(line: CostLine) -> str:
    category = line.category.replace("_", " ")
    trial = f" of trial {line.trial_id}" if line.trial_id else ""
    price = f" at {line.price.price} {line.price.currency} per {line.price.per}" if line.price is not None else ""
    return f"{category}{trial} on {line.lease.machine}{price}"


def _tags_text(lease: Lease) -> str:
    tags = {k: v for k, v in {"owner": lease.owner, "project": lease.project}.items() if v}
    tags |= dict(lease.tags)
    return _json_text(tags) if tags else ""


def _json_text(body: dict) -> str:
    return json_text(body, sort_keys=True, separators=(",", ":"))


def _card_hours(micro_card_ns: int) -> Fraction:
    return Fraction(micro_card_ns, MICRO_PER_CARD * NS_PER_HOUR)


def _decimal_text(value: Fraction, places: int = 12) -> str:
    """A fraction in plain decimal digits, rounded to `places` decimal places, without trailing zeros."""
    scaled = round(value * 10**places)
    whole, rest = divmod(abs(scaled), 10**places)
    digits = f"{rest:0{places}d}".rstrip("0")
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"
