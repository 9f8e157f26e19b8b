"""The initial schema. A released migration is never edited: a change of the tables is a new migration.

Tested in tests/cost/ledger/test_migrations.py.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

PICO = sa.Numeric(38, 0).with_variant(sa.String(40), "sqlite")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "driver",
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("process_start", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("anchor_utc_ns", sa.BigInteger(), nullable=False),
        sa.Column("anchor_monotonic_ns", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("driver_id"),
    )
    op.create_table(
        "clock_step",
        sa.Column("step_id", ID, nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("step_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.PrimaryKeyConstraint("step_id"),
    )
    op.create_table(
        "closed_period",
        sa.Column("period", sa.String(length=7), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.PrimaryKeyConstraint("period"),
    )
    op.create_table(
        "event",
        sa.Column("stream", sa.String(length=256), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.PrimaryKeyConstraint("stream", "sequence"),
        sa.UniqueConstraint("stream", "key", name="event_key"),
    )
    op.create_index("event_kind", "event", ["stream", "kind", "sequence"], unique=False)
    op.create_table(
        "lease",
        sa.Column("lease_id", sa.String(length=128), nullable=False),
        sa.Column("instance_id", sa.String(length=256), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("resource_id", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("purchase", sa.Text(), nullable=False),
        sa.Column("cards", sa.BigInteger(), nullable=False),
        sa.Column("watts", sa.Text(), nullable=True),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("price_hash", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("opened_by", sa.String(length=16), nullable=False),
        sa.Column("from_ns", sa.BigInteger(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("cards > 0", name="lease_cards_positive"),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.PrimaryKeyConstraint("lease_id"),
    )
    op.create_index("lease_instance", "lease", ["instance_id"], unique=False)
    op.create_table(
        "price",
        sa.Column("price_hash", sa.String(length=64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.PrimaryKeyConstraint("price_hash"),
    )
    op.create_table(
        "attachment",
        sa.Column("attachment_id", ID, nullable=False),
        sa.Column("lease_id", sa.String(length=128), nullable=False),
        sa.Column("sweep_id", sa.String(length=256), nullable=False),
        sa.Column("from_ns", sa.BigInteger(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["lease.lease_id"],
        ),
        sa.PrimaryKeyConstraint("attachment_id"),
    )
    op.create_index("attachment_lease", "attachment", ["lease_id"], unique=False)
    op.create_index("attachment_sweep", "attachment", ["sweep_id"], unique=False)
    op.create_table(
        "correction",
        sa.Column("correction_id", sa.String(length=256), nullable=False),
        sa.Column("lease_id", sa.String(length=128), nullable=False),
        sa.Column("sweep_id", sa.String(length=256), nullable=False),
        sa.Column("trial_id", sa.String(length=128), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("category", sa.String(length=64), nullable=False),
        sa.Column("pico", PICO, nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["lease.lease_id"],
        ),
        sa.PrimaryKeyConstraint("correction_id"),
    )
    op.create_index("correction_lease", "correction", ["lease_id"], unique=False)
    op.create_table(
        "lease_beat",
        sa.Column("lease_id", sa.String(length=128), nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["lease.lease_id"],
        ),
        sa.PrimaryKeyConstraint("lease_id", "at_ns", "driver_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "lease_end",
        sa.Column("lease_id", sa.String(length=128), nullable=False),
        sa.Column("to_ns", sa.BigInteger(), nullable=False),
        sa.Column("how", sa.Text(), nullable=False),
        sa.Column("released", sa.Integer(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["lease.lease_id"],
        ),
        sa.PrimaryKeyConstraint("lease_id"),
    )
    op.create_table(
        "usage",
        sa.Column("usage_id", ID, nullable=False),
        sa.Column("lease_id", sa.String(length=128), nullable=False),
        sa.Column("trial_id", sa.String(length=128), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("sweep_id", sa.String(length=256), nullable=False),
        sa.Column("cards_micro", sa.BigInteger(), nullable=False),
        sa.Column("from_ns", sa.BigInteger(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("cards_micro > 0", name="usage_cards_positive"),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["lease.lease_id"],
        ),
        sa.PrimaryKeyConstraint("usage_id"),
        sa.UniqueConstraint("lease_id", "trial_id", "attempt", "sweep_id", name="usage_key"),
    )
    op.create_index("usage_sweep", "usage", ["sweep_id"], unique=False)
    op.create_table(
        "detachment",
        sa.Column("attachment_id", ID, nullable=False),
        sa.Column("to_ns", sa.BigInteger(), nullable=False),
        sa.Column("how", sa.Text(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attachment_id"],
            ["attachment.attachment_id"],
        ),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.PrimaryKeyConstraint("attachment_id"),
    )
    op.create_table(
        "label",
        sa.Column("usage_id", ID, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["usage_id"],
            ["usage.usage_id"],
        ),
        sa.PrimaryKeyConstraint("usage_id", "name", "sequence"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "phase",
        sa.Column("usage_id", ID, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("card_ns", sa.BigInteger(), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("card_ns >= 0", name="phase_not_negative"),
        sa.ForeignKeyConstraint(
            ["usage_id"],
            ["usage.usage_id"],
        ),
        sa.PrimaryKeyConstraint("usage_id", "kind", "sequence"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage_beat",
        sa.Column("usage_id", ID, nullable=False),
        sa.Column("at_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["usage_id"],
            ["usage.usage_id"],
        ),
        sa.PrimaryKeyConstraint("usage_id", "at_ns"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage_end",
        sa.Column("usage_id", ID, nullable=False),
        sa.Column("to_ns", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("estimated", sa.Integer(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.ForeignKeyConstraint(
            ["usage_id"],
            ["usage.usage_id"],
        ),
        sa.PrimaryKeyConstraint("usage_id"),
    )
    op.create_table(
        "reservation",
        sa.Column("reservation_id", ID, nullable=False),
        sa.Column("sweep_id", sa.String(length=256), nullable=False),
        sa.Column("lease_id", sa.String(length=128), nullable=False),
        sa.Column("trial_id", sa.String(length=128), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.String(length=64), nullable=False),
        sa.Column("pico", PICO, nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("cards_micro", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("driver_id", sa.String(length=64), nullable=False),
        sa.Column("written_ns", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("cards_micro > 0", name="reservation_cards_positive"),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["lease.lease_id"],
        ),
        sa.ForeignKeyConstraint(
            ["driver_id"],
            ["driver.driver_id"],
        ),
        sa.PrimaryKeyConstraint("reservation_id"),
    )
