"""Ledgers to test on: a SQLite file, and a database of a real PostgreSQL server that is started for the session."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from cost.clock import FakeClock
from cost.ledger import Ledger
from cost.records import Lease


def _programs() -> Path | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb")
    folders += [Path(found).resolve().parent] if found else []
    return next((f for f in folders if (f / "initdb").exists() and (f / "postgres").exists()), None)


def _server_user() -> dict:
    """The server refuses to run as root: then it runs as a user who owns nothing."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL refuses to run as root, and there is no other user")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Folder of the socket of a throw-away server that listens nowhere else."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL (initdb, postgres) is not installed here")
    who = _server_user()
    base = Path(tempfile.mkdtemp(prefix="ledger-pg-"))
    try:
        if who:
            os.chown(base, who["user"], who["group"])
        data, quiet = base / "data", {"stdout": subprocess.DEVNULL, "cwd": base, **who}
        initdb = [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run([*initdb, "--locale=C"], check=True, stderr=subprocess.DEVNULL, **quiet)
        options = f"-k {base} -c listen_addresses= -c fsync=off -c max_connections=50"
        control = [programs / "pg_ctl", "-D", data, "-w", "-t", "60"]
        subprocess.run([*control, "-l", base / "log", "-o", options, "start"], check=True, **quiet)
        try:
            yield str(base)
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], check=True, **quiet)
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be opened: every test that takes this runs on both databases."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    socket = request.getfixturevalue("postgres_server")
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(host=socket, user="tester", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"postgresql://tester@/{name}?host={socket}"


@pytest.fixture
def place(any_database: str) -> str:
    return any_database


@pytest.fixture
def ledger(place: str, clock: FakeClock) -> Iterator[Ledger]:
    with Ledger.open(place, clock) as opened:
        yield opened


@pytest.fixture
def make_lease() -> Callable[..., Lease]:
    def make(lease_id: str = "L1", **changes) -> Lease:
        fields = {
            "lease_id": lease_id,
            "instance_id": f"host-of-{lease_id}",
            "machine": "h100x8",
            "sku": "own",
            "provider": "own",
            "cards": 8,
            "currency": "USD",
            "price_hash": None,
            "watts": Decimal(700),
        }
        return Lease(**{**fields, **changes})

    return make
