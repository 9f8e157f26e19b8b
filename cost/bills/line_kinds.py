"""Decide what a bill line charges for: by its category, then by its usage type, then by its unit.

A service's category alone is not enough: providers bill the traffic and the disks of a machine under Compute, too.

Tested in tests/cost/bills/test_provider_bills.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_BYTES = r"([kmgtp]i?b|[kmgtp]?bytes?|(kilo|mega|giga|tera|peta)bytes?)"
_BY_UNIT = {
    rf"{_BYTES}(ps)?[ -]?(mo|mths?|months?|hrs?|hours?|days?)": "storage",
    r"iops[ -]?(mo|mths?|months?|hrs?|hours?)": "storage",
    _BYTES: "egress",
    r"([\d,.]+ ?[km]? ?)?(requests?|api calls?|operations?|transactions?)": "requests",
}
"""Patterns of units, in lower case, and the kind of charge that such a unit counts."""


def kind_of(default: str, texts: Sequence[str], unit: str, kinds: Mapping[str, str]) -> str:
    """The kind of a line. `texts`: cells such as the usage type, the most specific first, searched for `kinds`.

    `default`: the kind by category. Only machine time is looked at more closely, because taxes, credits and purchases
    may be about traffic or disks, too.
    """
    if default != "machine":
        return default
    for text in texts:
        for part, kind in kinds.items():
            if part in text:
                return kind
    return next((kind for form, kind in _BY_UNIT.items() if re.fullmatch(form, unit.strip().lower())), default)
