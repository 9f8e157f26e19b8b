"""The books as a FOCUS cost and usage file: version 1.2, or 1.3 with the trial split in its Allocated columns.

Source of every rule here: the FinOps Open Cost and Usage Specification, tags v1.2 and the 1.3 columns
(https://focus.finops.org). Amounts are exact decimals, never rounded: the file's EffectiveCost sums to the ledger.
An unpriced lease is an error here, since the format has no word for an unknown cost. Nothing is read or charged here.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from cost.charges.attribution import Attribution, CostLine
from cost.charges.charge_status import least_final
from cost.ledger.schema import MICRO_PER_CARD
from cost.money import PICO_PER_UNIT, largest_remainder, pico_text
from cost.periods import instant_text, month_of, period_edges
from cost.prices.book import TIME_UNITS, MissingPriceError, PriceRow, add_command, pico_per_hour
from cost.records import Lease, Usage
from cost.reports.csv_json import atomic_file

VERSIONS = ("1.2", "1.3")
NS = 10**9

MANDATORY = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
)
"""The columns that 1.2 demands of every file."""

_CONDITIONAL = (
    *("AvailabilityZone", "ChargeFrequency", "CommitmentDiscountCategory", "CommitmentDiscountId"),
    *("CommitmentDiscountName", "CommitmentDiscountQuantity", "CommitmentDiscountStatus", "CommitmentDiscountType"),
    *("CommitmentDiscountUnit", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice"),
    *("PricingCategory", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType"),
    *("ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName"),
    *("InvoiceId", "Tags"),
)
_SINCE_1_3 = (
    *("AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName"),
    *("AllocatedTags", "HostProviderName", "ServiceProviderName"),
)
_CUSTOM = (
    *("x_CardHours", "x_Category", "x_ChargeStatus", "x_Flags", "x_Imputed", "x_LeaseId", "x_Machine", "x_Owner"),
    *("x_PriceHash", "x_PriceSource", "x_SweepId", "x_TrialId"),
)

METHOD = "card-time-largest-remainder"
"""How a lease's charge is split: by the cards held at each moment, the last 1e-12 by largest remainder."""

_UNITS = {
    "card_hour": "GPU-Hours",
    "machine_hour": "Instance-Hours",
    "kwh": "kWh",
    "gib_month": "GiB-Months",
    "gib": "GiB",
    "request": "Requests",
    "one_off": "Units",
}
_SERVICES = {
    "storage": ("Storage", "Other (Storage)", "Machine storage"),
    "egress": ("Networking", "Other (Networking)", "Data transfer"),
    "requests": ("Storage", "Object Storage", "Storage requests"),
}
_COMPUTE = ("Compute", "Virtual Machines", "GPU machines")
_COMMITMENTS = {"reserved": "Usage", "savings_plan": "Spend", "capacity_block": "Usage"}


def columns(version: str = "1.2") -> tuple[str, ...]:
    """The columns of a file: FOCUS's in alphabetical order, then our own."""
    if version not in VERSIONS:
        raise ValueError(f"FOCUS version {version!r} is not written here; choose one of {', '.join(VERSIONS)}")
    of_focus = (*MANDATORY, *_CONDITIONAL, *(_SINCE_1_3 if version == "1.3" else ()))
    return (*sorted(of_focus), *_CUSTOM)


def month_cuts(from_ns: int, to_ns: int) -> list[int]:
    """The starts of the UTC months within a span: cuts for `attribute`, so that no row crosses a billing period."""
    return [start for start in period_edges(from_ns, to_ns, "month", UTC) if from_ns < start < to_ns]


@dataclass
class _Charge:
    """One row in the making: what one holder owes for one lease, category and price in one billing period."""

    line: CostLine
    period: tuple[int, int]
    invoice: str = ""
    pico: int = 0
    billed_pico: int = 0
    list_pico: int = 0
    contracted_pico: int = 0
    effective_pico: int = 0
    micro_card_ns: int = 0
    from_ns: int = 0
    to_ns: int = 0
    flags: set[str] = field(default_factory=set)
    statuses: set[str] = field(default_factory=set)
    ratio: Fraction | None = None


def rows(found: Attribution, *, version: str = "1.2") -> Iterator[dict[str, str]]:
    """The file's rows, keyed by column; an absent value is an empty text (CSV's null).

    `found` must have been cut at `month_cuts`. Raises MissingPriceError for an unpriced lease.
    """
    charges = _gather(found)
    if version == "1.3":
        _set_ratios(charges)
    latest = {(sweep_id, key.lease_id, key.trial_id): usage for (sweep_id, key), usage in found.usages.items()}
    for charge in charges:
        row = _row(charge)
        if version == "1.3":
            row |= _allocated(charge, latest)
        yield row


def write(found: Attribution, path: str | Path, *, version: str = "1.2") -> Path:
    """Writes the file, whole or not at all.

    Raises:
        MissingPriceError: a lease has no price.
        StoreError: the file cannot be written.
    """
    with atomic_file(path) as stream:
        writer = csv.DictWriter(stream, columns(version), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(found, version=version))
    return Path(path)


def _gather(found: Attribution) -> list[_Charge]:
    months = _Months()
    gathered: dict[tuple, _Charge] = {}
    for line in found.lines:
        lease = line.lease
        if line.unpriced:
            raise MissingPriceError(
                f"lease {lease.lease_id} has no price, and FOCUS has no word for an unknown cost; "
                f"add the price of its SKU with: {add_command(lease.sku, lease.purchase)}"
            )
        period = months.of(line.from_ns)
        price = line.price.hash if line.price is not None else line.commitment
        # Within a row each kind of price has one value.
        kinds = line.by_price_kind and (
            line.by_price_kind.list_row,
            line.by_price_kind.contracted_row,
            line.by_price_kind.effective_row,
        )
        others = tuple(row and row.hash for row in kinds or ())
        key = (lease.lease_id, line.sweep_id, line.trial_id, line.category, price, others, line.invoice, period[0])
        charge = gathered.get(key)
        if charge is None:
            charge = gathered[key] = _Charge(line, period, line.invoice, from_ns=line.from_ns, to_ns=line.to_ns)
        charge.pico += line.pico
        charge.billed_pico += line.billed_pico
        charge.list_pico += line.list_pico
        charge.contracted_pico += line.contracted_pico
        charge.effective_pico += line.effective_pico
        charge.micro_card_ns += line.micro_card_ns
        charge.from_ns = min(charge.from_ns, line.from_ns)
        charge.to_ns = max(charge.to_ns, line.to_ns)
        charge.flags.update(line.flags)
        charge.statuses.add(line.status)
    return list(gathered.values())


class _Months:
    """The billing period of an instant; neighbouring lines mostly share one."""

    def __init__(self) -> None:
        self._last = (0, 0)

    def of(self, at_ns: int) -> tuple[int, int]:
        if not self._last[0] <= at_ns < self._last[1]:
            self._last = month_of(at_ns)
        return self._last


def _row(charge: _Charge) -> dict[str, str]:
    line, lease = charge.line, charge.line.lease
    category = _category(line)
    service, subcategory, name = _SERVICES.get(line.category, _COMPUTE)
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
        "ChargeDescription": _description(line),
        "ChargeFrequency": "Usage-Based" if category == "Usage" else "One-Time",
        "ChargePeriodEnd": instant_text(max(-(-charge.to_ns // NS), charge.from_ns // NS + 1) * NS),
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
        "ServiceName": name,
        "ServiceSubcategory": subcategory,
        "SubAccountId": lease.project,
        "SubAccountName": lease.project,
        "Tags": _tags(lease),
        "x_CardHours": _decimal(Fraction(charge.micro_card_ns, MICRO_PER_CARD * 3600 * NS)),
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
    if line.commitment:
        row |= _committed(charge, row["x_CardHours"])
    elif line.price is not None:
        row |= {"x_PriceHash": line.price.hash, "x_PriceSource": line.price.source}
        if category == "Usage":
            row |= _priced(charge, line.price, row["x_CardHours"])
    return row


def _priced(charge: _Charge, price: PriceRow, card_hours: str) -> dict[str, str]:
    """What a priced charge of usage says beside its costs: quantity times unit price is the cost, to 1e-12."""
    lease, kinds = charge.line.lease, charge.line.by_price_kind
    unit, charged = _UNITS[price.per], price.price
    if price.depreciation:
        # Energy and depreciation have no common unit but the hour of the machine.
        hour = pico_per_hour(price, lease.cards, lease.watts or 0)
        unit, charged = "Hours", Decimal(hour.numerator) / hour.denominator / PICO_PER_UNIT
    quantity = Fraction(charge.pico, PICO_PER_UNIT) / Fraction(charged) if charged else Fraction(0)
    listed = kinds.list_row.price if kinds and kinds.list_row else charged
    commitment = _COMMITMENTS.get(price.purchase, "")
    category = {"spot": "Dynamic"}.get(price.purchase, "Committed" if commitment else "Standard")
    timed = price.per in TIME_UNITS
    found = {
        "ConsumedQuantity": card_hours if timed else _decimal(quantity, 18),
        "ConsumedUnit": "GPU-Hours" if timed else _UNITS[price.per],
        "ContractedUnitPrice": format(charged, "f"),
        "ListUnitPrice": format(listed, "f"),
        "PricingCategory": category,
        "PricingQuantity": _decimal(quantity, 18),
        "PricingUnit": unit,
        "SkuId": price.sku,
        "SkuMeter": "Energy" if price.per == "kwh" else "Machine time" if timed else charge.line.category,
        "SkuPriceDetails": _json({"GpuCount": lease.cards if price.per == "machine_hour" else 1}) if timed else "",
        "SkuPriceId": "/".join(filter(None, (price.sku, price.purchase, price.region, price.kind))),
    }
    if commitment:
        name = lease.tags.get("commitment", "") or price.sku
        found |= _of_commitment(charge, name, commitment, card_hours, charge.effective_pico)
        found |= {"CommitmentDiscountStatus": "Used", "CommitmentDiscountType": price.purchase}
    return found


def _of_commitment(charge: _Charge, name: str, category: str, card_hours: str, spent_pico: int) -> dict[str, str]:
    """Which commitment a charge is of, and how much of it: card-hours, or money where money was committed."""
    by_money = category == "Spend"
    return {
        "CommitmentDiscountCategory": category,
        "CommitmentDiscountId": name,
        "CommitmentDiscountName": name,
        "CommitmentDiscountQuantity": pico_text(spent_pico) if by_money else card_hours,
        "CommitmentDiscountUnit": charge.line.lease.currency if by_money else "GPU-Hours",
    }


def _committed(charge: _Charge, card_hours: str) -> dict[str, str]:
    """The purchase of a commitment, or what it is amortised over: used or not, it was paid for by the purchase."""
    line = charge.line
    bought = line.category == "purchase"
    term = _decimal(Fraction(line.bought_micro_card_ns, MICRO_PER_CARD * 3600 * NS)) if bought else card_hours
    category, spent = _COMMITMENTS.get(line.lease.purchase, "Usage"), line.paid_pico if bought else charge.pico
    found = _of_commitment(charge, line.commitment, category, term, spent) | {
        "CommitmentDiscountType": line.lease.purchase,
        # The purchase itself is made at the agreed price; what it pays for is not.
        "PricingCategory": "Standard" if bought else "Committed",
        "SkuId": line.lease.sku,
        "SkuMeter": "Machine time",
        "SkuPriceId": f"{line.lease.sku}/{line.commitment}",
        "x_PriceSource": f"commitment {line.commitment}",
    }
    if bought:
        paid = pico_text(line.paid_pico)
        whole = {"PricingQuantity": "1", "PricingUnit": "Units", "ContractedUnitPrice": paid, "ListUnitPrice": paid}
        return found | whole | {"ListCost": paid, "ContractedCost": paid}
    hours = Fraction(charge.micro_card_ns, MICRO_PER_CARD * 3600 * NS)
    listed, contracted = (
        _decimal(Fraction(pico, PICO_PER_UNIT) / hours, 18) if hours else "0"
        for pico in (charge.list_pico, charge.contracted_pico)
    )
    unused = line.category == "unused_commitment"
    return found | {
        "CommitmentDiscountStatus": "Unused" if unused else "Used",
        "ConsumedQuantity": "" if unused else card_hours,
        "ConsumedUnit": "" if unused else "GPU-Hours",
        "ContractedUnitPrice": contracted,
        "ListUnitPrice": listed,
        "PricingQuantity": _decimal(hours, 18),
        "PricingUnit": "GPU-Hours",
    }


def _category(line: CostLine) -> str:
    if line.commitment:
        return "Purchase" if line.category == "purchase" else "Usage"
    if line.category == "tax":
        return "Tax"
    if line.category == "credit":
        return "Credit"
    if line.price is None and line.category != "refund":
        return "Adjustment"
    return "Usage"


def _description(line: CostLine) -> str:
    what = line.category.replace("_", " ")
    whose = f" of trial {line.trial_id}" if line.trial_id else ""
    at = f" at {line.price.price} {line.price.currency} per {line.price.per}" if line.price is not None else ""
    return f"{what}{whose} on {line.lease.machine}{at}"


def _set_ratios(charges: Sequence[_Charge]) -> None:
    """Each charge's share of its origin charge (a lease at one price in one period); the shares sum to exactly 1."""
    origins: dict[tuple, list[_Charge]] = defaultdict(list)
    for charge in charges:
        line = charge.line
        if (line.price is not None or line.commitment) and line.category not in ("tax", "purchase"):
            price = line.price.hash if line.price is not None else line.commitment
            origins[line.lease.lease_id, price, charge.period[0]].append(charge)
    for origin in origins.values():
        weights = [c.pico for c in origin]
        if not any(weights):
            weights = [c.micro_card_ns for c in origin]
        if not any(weights):
            weights = [1] * len(origin)
        for charge, parts in zip(origin, largest_remainder(PICO_PER_UNIT, weights), strict=True):
            charge.ratio = Fraction(parts, PICO_PER_UNIT)


def _allocated(charge: _Charge, latest: dict[tuple[str, str, str], Usage]) -> dict[str, str]:
    line = charge.line
    found = {"HostProviderName": line.lease.provider, "ServiceProviderName": line.lease.provider}
    if charge.ratio is None:
        return found
    hours = Fraction(charge.micro_card_ns, MICRO_PER_CARD * 3600 * NS)
    # Numbers are put in as text: a float would not hold them.
    element = f'{{"AllocatedRatio":{_decimal(charge.ratio)},"UsageUnit":"GPU-Hours","UsageQuantity":{_decimal(hours)}}}'
    found |= {"AllocatedMethodId": METHOD, "AllocatedMethodDetails": f'{{"Elements":[{element}]}}'}
    if not line.trial_id:
        # A part that no trial answers for is the unallocated portion: null by the specification.
        return found
    usage = latest.get((line.sweep_id, line.lease.lease_id, line.trial_id))
    tags = {"sweep": line.sweep_id} | ({k: usage.labels[k] for k in sorted(usage.labels)} if usage else {})
    return found | {
        "AllocatedResourceId": f"{line.sweep_id}/{line.trial_id}",
        "AllocatedResourceName": f"{line.category} of trial {line.trial_id}",
        "AllocatedTags": _json(tags),
    }


def _tags(lease: Lease) -> str:
    tags = {k: v for k, v in {"owner": lease.owner, "project": lease.project}.items() if v}
    tags |= dict(lease.tags)
    return _json(tags) if tags else ""


def _json(body: dict) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _decimal(value: Fraction, places: int = 12) -> str:
    """A fraction as plain decimal digits, to the nearest of `places`, without trailing zeros."""
    scaled = round(value * 10**places)
    whole, rest = divmod(abs(scaled), 10**places)
    digits = f"{rest:0{places}d}".rstrip("0")
    sign = "-" if scaled < 0 else ""
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"
