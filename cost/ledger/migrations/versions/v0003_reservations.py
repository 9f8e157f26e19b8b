"""Reservations: what an attempt may cost at most, set aside when it starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

PICO = sa.Numeric(38, 0).with_variant(sa.String(40), "sqlite")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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
