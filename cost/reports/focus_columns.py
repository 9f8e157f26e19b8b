"""The columns of a FOCUS file, by version of the specification.

Source: the FinOps Open Cost and Usage Specification, tag v1.2 and the columns of 1.3 (https://focus.finops.org).

Tested in tests/cost/reports/test_focus.py.
"""

from __future__ import annotations

VERSIONS = ("1.2", "1.3")

MANDATORY = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
)
"""The columns that 1.2 requires in every file."""

_CONDITIONAL = (
    *("AvailabilityZone", "ChargeFrequency", "CommitmentDiscountCategory", "CommitmentDiscountId"),
    *("CommitmentDiscountName", "CommitmentDiscountQuantity", "CommitmentDiscountStatus", "CommitmentDiscountType"),
    *("CommitmentDiscountUnit", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "ListUnitPrice"),
    *("PricingCategory", "RegionId", "RegionName", "ResourceId", "ResourceName", "ResourceType"),
    *("ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId", "SubAccountId", "SubAccountName"),
    *("InvoiceId", "Tags"),
)
_ADDED_IN_1_3 = (
    *("AllocatedMethodDetails", "AllocatedMethodId", "AllocatedResourceId", "AllocatedResourceName"),
    *("AllocatedTags", "HostProviderName", "ServiceProviderName"),
)
_CUSTOM = (
    *("x_CardHours", "x_Category", "x_ChargeStatus", "x_Flags", "x_Imputed", "x_LeaseId", "x_Machine", "x_Owner"),
    *("x_PriceHash", "x_PriceSource", "x_SweepId", "x_TrialId"),
)
"""Our own columns. FOCUS requires the prefix `x_`."""


def columns(version: str = "1.2") -> tuple[str, ...]:
    """The columns of a file: those of FOCUS in alphabetical order, then our own.

    Raises:
        ValueError: the version is not one of VERSIONS.
    """
    if version not in VERSIONS:
        raise ValueError(f"FOCUS version {version!r} is not supported; choose one of {', '.join(VERSIONS)}")
    of_focus = (*MANDATORY, *_CONDITIONAL, *(_ADDED_IN_1_3 if version == "1.3" else ()))
    return (*sorted(of_focus), *_CUSTOM)
