"""An index by kind of event: what was decided is read without passing over every word of every trainer."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("event_kind", "event", ["stream", "kind", "sequence"])
