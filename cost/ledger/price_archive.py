"""Price rows that charges were computed with, so that an old report can be repeated after the price book changed.

Tested in tests/cost/close/test_close_month.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy import select

from cost.ledger import schema
from cost.ledger.queries import canonical_json
from cost.ledger.writer import LedgerWriter
from cost.prices.book import PriceRow, as_mapping, read_row


class PriceArchive:
    """The price rows kept in one ledger."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def add(self, rows: Iterable[PriceRow]) -> None:
        """Keep price rows. Rows that are kept already change nothing."""
        with self._writer.write() as connection:
            values = [
                {"price_hash": row.hash, "body": canonical_json(as_mapping(row)), **self._writer.signature()}
                for row in {row.hash: row for row in rows}.values()
            ]
            if values:
                self._writer.insert_new(connection, schema.price, values)

    def rows(self, as_of_ns: int | None = None) -> list[PriceRow]:
        """The price rows that were kept by an instant (None: by now), oldest first."""
        table = schema.price
        query = select(table.c.body, table.c.price_hash).order_by(table.c.written_ns, table.c.price_hash)
        if as_of_ns is not None:
            query = query.where(table.c.written_ns <= as_of_ns)
        with self._writer.read() as connection:
            return [read_row(json.loads(r.body), f"price {r.price_hash}") for r in connection.execute(query)]
