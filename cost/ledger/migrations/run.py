"""Runs the Alembic migrations that a database lacks.

Tested in tests/cost/ledger/test_migrations.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from cost.ledger.schema import metadata

VERSION_FOLDERS = [Path(__file__).parent / "versions"]
"""Folders with migration scripts."""


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("version_locations", os.pathsep.join(map(str, VERSION_FOLDERS)))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def revisions() -> set[str]:
    """Every revision that this program can migrate from or to."""
    return {script.revision for script in scripts().walk_revisions()}


def upgrade(connection: Connection) -> None:
    """Run the missing migrations inside the caller's transaction."""
    directory = scripts()

    def steps(revision, _context):
        return directory._upgrade_revs("head", revision)

    with EnvironmentContext(Config(), directory, fn=steps) as environment:
        environment.configure(connection=connection, target_metadata=metadata)
        environment.run_migrations()
