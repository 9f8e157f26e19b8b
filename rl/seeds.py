"""Seeds for independent random streams, derived from the purpose of each stream."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: int | str) -> int:
    """A 63-bit seed from `parts`, such as (trial seed, "rollout", step). Different parts give unrelated seeds.

    A seed depends on its parts only. A resumed attempt therefore draws the same numbers as an uninterrupted one, and no
    generator state is stored.
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
