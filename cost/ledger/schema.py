"""The tables of the ledger. Rows are appended and never changed. Queries and rules are in other modules.

A lease, a usage or an attachment has one row for its start and another for its end; its current state is computed from
both. Times (`*_ns`) are integer nanoseconds UTC. `written_ns` is the time at which a row was written, which as-of
reports use. `driver_id` is the process that wrote the row.

Amounts in 1e-12 of a currency do not fit 64 bits, whose maximum is 9.2 million units. They are whole numbers of up to
38 digits: NUMERIC(38, 0) in PostgreSQL, and text in SQLite, whose NUMERIC is a float.

Tested in tests/cost/ledger/test_migrations.py.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

HEAD = "0001"
"""Revision of the newest migration, which produces these tables."""

MICRO_PER_CARD = 10**6
PICO_LIMIT = 10**38


class Pico(TypeDecorator[int]):
    """A whole number of 1e-12 units of a currency, of up to 38 digits, exact in both databases.

    Raises:
        OverflowError: the amount has more than 38 digits.
    """

    impl = String(40)
    cache_ok = True

    def load_dialect_impl(self, dialect: Any) -> Any:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(Numeric(38, 0))
        return dialect.type_descriptor(String(40))

    def process_bind_param(self, value: int | None, dialect: Any) -> Any:
        if value is None:
            return None
        if abs(value) >= PICO_LIMIT:
            raise OverflowError(f"an amount of {value} x 1e-12 has more than the 38 digits that the ledger keeps")
        return Decimal(value) if dialect.name == "postgresql" else str(value)

    def process_result_value(self, value: Any, dialect: Any) -> int | None:
        return None if value is None else int(value)


# SQLite numbers rows by itself only where the key is spelt INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()

driver = Table(
    "driver",
    metadata,
    Column("driver_id", String(64), primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("process_start", Text, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("anchor_utc_ns", BigInteger, nullable=False),
    Column("anchor_monotonic_ns", BigInteger, nullable=False),
)

clock_step = Table(
    "clock_step",
    metadata,
    Column("step_id", Id, primary_key=True),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("step_ns", BigInteger, nullable=False),
)

lease = Table(
    "lease",
    metadata,
    Column("lease_id", String(128), primary_key=True),
    Column("instance_id", String(256), nullable=False),
    Column("machine", Text, nullable=False),
    Column("sku", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("account", Text, nullable=False),
    Column("resource_id", Text, nullable=False),
    Column("region", Text, nullable=False),
    Column("purchase", Text, nullable=False),
    Column("cards", BigInteger, nullable=False),
    Column("watts", Text),
    Column("currency", String(3), nullable=False),
    Column("price_hash", Text),
    Column("owner", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("opened_by", String(16), nullable=False),
    Column("from_ns", BigInteger, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
    CheckConstraint("cards > 0", name="lease_cards_positive"),
    Index("lease_instance", "instance_id"),
)

lease_end = Table(
    "lease_end",
    metadata,
    Column("lease_id", ForeignKey("lease.lease_id"), primary_key=True),
    Column("to_ns", BigInteger, nullable=False),
    Column("how", Text, nullable=False),
    Column("released", Integer, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
)

lease_beat = Table(
    "lease_beat",
    metadata,
    Column("lease_id", ForeignKey("lease.lease_id"), primary_key=True),
    Column("at_ns", BigInteger, primary_key=True),
    Column("driver_id", ForeignKey("driver.driver_id"), primary_key=True),
    sqlite_with_rowid=False,
)

attachment = Table(
    "attachment",
    metadata,
    Column("attachment_id", Id, primary_key=True),
    Column("lease_id", ForeignKey("lease.lease_id"), nullable=False),
    Column("sweep_id", String(256), nullable=False),
    Column("from_ns", BigInteger, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
    Index("attachment_lease", "lease_id"),
    Index("attachment_sweep", "sweep_id"),
)

detachment = Table(
    "detachment",
    metadata,
    Column("attachment_id", ForeignKey("attachment.attachment_id"), primary_key=True),
    Column("to_ns", BigInteger, nullable=False),
    Column("how", Text, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
)

usage = Table(
    "usage",
    metadata,
    Column("usage_id", Id, primary_key=True),
    Column("lease_id", ForeignKey("lease.lease_id"), nullable=False),
    Column("trial_id", String(128), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("sweep_id", String(256), nullable=False),
    Column("cards_micro", BigInteger, nullable=False),
    Column("from_ns", BigInteger, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
    UniqueConstraint("lease_id", "trial_id", "attempt", "sweep_id", name="usage_key"),
    CheckConstraint("cards_micro > 0", name="usage_cards_positive"),
    Index("usage_sweep", "sweep_id"),
)

usage_end = Table(
    "usage_end",
    metadata,
    Column("usage_id", ForeignKey("usage.usage_id"), primary_key=True),
    Column("to_ns", BigInteger, nullable=False),
    Column("outcome", String(32), nullable=False),
    Column("estimated", Integer, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
)

usage_beat = Table(
    "usage_beat",
    metadata,
    Column("usage_id", ForeignKey("usage.usage_id"), primary_key=True),
    Column("at_ns", BigInteger, primary_key=True),
    sqlite_with_rowid=False,
)

phase = Table(
    "phase",
    metadata,
    Column("usage_id", ForeignKey("usage.usage_id"), primary_key=True),
    Column("kind", String(32), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("card_ns", BigInteger, nullable=False),
    Column("written_ns", BigInteger, nullable=False),
    CheckConstraint("card_ns >= 0", name="phase_not_negative"),
    sqlite_with_rowid=False,
)

label = Table(
    "label",
    metadata,
    Column("usage_id", ForeignKey("usage.usage_id"), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("value", Text, nullable=False),
    Column("written_ns", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

reservation = Table(
    "reservation",
    metadata,
    Column("reservation_id", Id, primary_key=True),
    Column("sweep_id", String(256), nullable=False),
    Column("lease_id", ForeignKey("lease.lease_id"), nullable=False),
    Column("trial_id", String(128), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("stage", String(64), nullable=False),
    Column("pico", Pico, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("cards_micro", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
    CheckConstraint("cards_micro > 0", name="reservation_cards_positive"),
)

event = Table(
    "event",
    metadata,
    Column("stream", String(256), primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("kind", String(128), nullable=False),
    Column("key", String(512), nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("stream", "key", name="event_key"),
    Index("event_kind", "stream", "kind", "sequence"),
)

correction = Table(
    "correction",
    metadata,
    Column("correction_id", String(256), primary_key=True),
    Column("lease_id", ForeignKey("lease.lease_id"), nullable=False),
    Column("sweep_id", String(256), nullable=False),
    Column("trial_id", String(128), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("category", String(64), nullable=False),
    Column("pico", Pico, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("at_ns", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
    Index("correction_lease", "lease_id"),
)

price = Table(
    "price",
    metadata,
    Column("price_hash", String(64), primary_key=True),
    Column("body", Text, nullable=False),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
)

closed_period = Table(
    "closed_period",
    metadata,
    Column("period", String(7), primary_key=True),
    Column("driver_id", ForeignKey("driver.driver_id"), nullable=False),
    Column("written_ns", BigInteger, nullable=False),
)
