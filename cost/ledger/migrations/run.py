"""Brings a database to the newest tables. The store calls it when it opens a ledger; nobody needs Alembic's command."""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from cost.ledger.schema import metadata


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def revisions() -> set[str]:
    """Every revision that this program knows."""
    return {script.revision for script in scripts().walk_revisions()}


def upgrade(connection: Connection) -> None:
    """Run what is missing, inside the caller's transaction."""
    directory = scripts()

    def steps(revision, _context):
        return directory._upgrade_revs("head", revision)

    with EnvironmentContext(Config(), directory, fn=steps) as environment:
        environment.configure(connection=connection, target_metadata=metadata)
        environment.run_migrations()
