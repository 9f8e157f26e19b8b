"""Archives to a rented machine and back, through the commands: real ledgers and archives, simulated trainer."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import resource
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.ledger.ledger import Ledger
from sweeps.cli.main import app
from sweeps.config.build import compose
from sweeps.config.overrides import CONF_DIR
from sweeps.driver.controller import SweepController
from sweeps.driver.driver import EXIT_GATE, EXIT_INTERRUPTED, run
from sweeps.journal.journal import load, sweep_ids
from sweeps.journal.trial_reports import steps_of
from sweeps.storage import unpack as unpacking

ONE_TRIAL = ("search.prompts_per_step=[4]", "search.lr_scaling=[hold]", "tracking.uri=http://127.0.0.1:9")


def stage(name: str, root: Path, *overrides: str) -> int:
    return run(compose([f"+stage={name}", "trainer=simulated", f"paths.root={root}", *ONE_TRIAL, *overrides]))


def sweeps(*arguments: object, fails: bool = False) -> str:
    """The output of `python -m sweeps`."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if not fails and done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert (done.exit_code != 0) == fails, done.output
    return done.output


def states(database: Path | str) -> dict[str, tuple[str | None, bool]]:
    with Ledger.open(database, create=False, read_only=True) as ledger:
        found = [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)]
    return {r.stage: (r.ended, bool(r.gate and r.gate.open)) for r in found}


def all_rows(database: Path | str) -> dict[str, list]:
    from cost.ledger import schema

    with Ledger.open(database, create=False, read_only=True) as ledger, ledger.read() as connection:
        return {t.name: sorted(map(repr, connection.execute(t.select()).all())) for t in schema.metadata.sorted_tables}


@pytest.fixture(scope="module")
def smoked(tmp_path_factory) -> Path:
    """A root folder with a passed smoke stage. Read only."""
    root = tmp_path_factory.mktemp("home") / "runs"
    assert stage("smoke", root) == 0
    (root / "cache" / "a-model").mkdir(parents=True)
    (root / "cache" / "a-model" / "weights.safetensors").write_bytes(b"weights")
    (root / "cache" / ".a-model.lock").touch()
    return root


@pytest.fixture
def home(smoked, tmp_path) -> Path:
    return Path(shutil.copytree(smoked, tmp_path / "home"))


@pytest.fixture
def archive(home, tmp_path) -> Path:
    sweeps("pack", "--root", home, "--out", tmp_path / "box.tar")
    return tmp_path / "box.tar"


def test_the_next_stage_runs_there_and_merges_back_once(home, archive, tmp_path):
    box = tmp_path / "box"
    assert f"python sweep.py +stage=single 'paths.root=\"{box}\"' dry_run=true" in sweeps(
        "unpack", archive, "--root", box
    )
    assert states(box / "ledger.db") == {"smoke": ("done", True)}
    assert (box / "cache" / "a-model" / "weights.safetensors").read_bytes() == b"weights"
    assert not (box / "cache" / ".a-model.lock").exists()
    assert stage("single", box) != EXIT_GATE
    sweeps("pack", "--root", box, "--out", tmp_path / "back.tar", "--no-cache")
    before = all_rows(home / "ledger.db")
    output = sweeps("merge", tmp_path / "back.tar", "--root", home, "--dry-run")
    assert "Would be added" in output
    assert all_rows(home / "ledger.db") == before
    output = sweeps("merge", tmp_path / "back.tar", "--root", home)
    assert "sweep:single-" in output
    assert states(home / "ledger.db") == states(box / "ledger.db")
    assert sum(map(len, all_rows(home / "ledger.db").values())) == sum(map(len, all_rows(box / "ledger.db").values()))
    after = all_rows(home / "ledger.db")
    assert "Nothing to add: this ledger has everything." in sweeps("merge", tmp_path / "back.tar", "--root", home)
    assert all_rows(home / "ledger.db") == after
    (cost,) = home.glob("single-*/cost.csv")
    assert cost.read_bytes() == (box / cost.relative_to(home)).read_bytes()
    assert list(home.glob("single-*/checkpoints/*/*/COMPLETE"))


def test_without_the_archive_the_stage_does_not_start_there(tmp_path):
    assert stage("single", tmp_path / "box") == EXIT_GATE


def test_unpacking_is_repeatable_and_a_later_archive_adds_its_sweeps(home, archive, tmp_path):
    box = tmp_path / "box"
    sweeps("unpack", archive, "--root", box)
    before = all_rows(box / "ledger.db")
    assert "0 files put in place" in sweeps("unpack", archive, "--root", box)
    assert all_rows(box / "ledger.db") == before
    assert stage("smoke", home, "resume=never") == 0
    sweeps("pack", "--root", home, "--out", tmp_path / "later.tar")
    sweeps("unpack", tmp_path / "later.tar", "--root", box)
    assert all_rows(box / "ledger.db").keys() == all_rows(home / "ledger.db").keys()
    with Ledger.open(box / "ledger.db", read_only=True) as ledger:
        assert len(sweep_ids(ledger)) == 2


def test_ledgers_in_a_server_are_unpacked_and_merged(home, archive, tmp_path, postgres):
    sweeps("unpack", archive, "--root", tmp_path / "box", "--db", postgres)
    assert states(postgres) == {"smoke": ("done", True)}
    assert stage("single", tmp_path / "box", f"storage.database_url='{postgres}'") != EXIT_GATE
    sweeps("merge", postgres, "--root", home)
    assert states(home / "ledger.db") == states(postgres)
    assert "Nothing to add: this ledger has everything." in sweeps("merge", home / "ledger.db", "--db", postgres)


def test_an_unfinished_sweep_resumes_there_and_is_finished_after_the_merge(tmp_path, monkeypatch, capsys):
    home, box, seen = tmp_path / "home", tmp_path / "box", []
    on_message = SweepController.on_message

    def until_the_18th(self, *args):
        seen.append(args)
        if len(seen) == 18:
            raise KeyboardInterrupt
        return on_message(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(SweepController, "on_message", until_the_18th)
        assert stage("smoke", home, "trainer.checkpoint_every_steps=5") == EXIT_INTERRUPTED
    sweeps("pack", "--root", home, "--out", tmp_path / "box.tar")
    shutil.move(home, tmp_path / "out-of-reach")
    sweeps("unpack", tmp_path / "box.tar", "--root", box)
    capsys.readouterr()
    assert stage("smoke", box, "trainer.checkpoint_every_steps=5") == 0
    assert "starts from the beginning" not in capsys.readouterr().out
    shutil.move(tmp_path / "out-of-reach", home)
    sweeps("pack", "--root", box, "--out", tmp_path / "back.tar")
    sweeps("merge", tmp_path / "back.tar", "--root", home)
    with Ledger.open(home / "ledger.db", read_only=True) as ledger:
        (sweep_id,) = sweep_ids(ledger)
        record = load(ledger, sweep_id)
        (trial,) = record.trials.values()
        assert sorted(steps_of(ledger, sweep_id, trial.trial_id)) == list(range(1, 21))
    assert record.finished
    assert trial.attempts[-1].from_step > 0
    assert "found in" in sweeps("show", sweep_id, "--root", home, "--json")


def test_a_sweep_that_continued_at_both_places_is_refused(home, archive, tmp_path):
    box = tmp_path / "box"
    sweeps("unpack", archive, "--root", box)
    for root, text in ((home, "here"), (box, "there")):
        with Ledger.open(root / "ledger.db") as ledger:
            (sweep_id,) = sweep_ids(ledger)
            ledger.events.append(f"sweep:{sweep_id}", "warning", {"text": text}, f"warning:{text}")
    before = all_rows(home / "ledger.db")
    output = sweeps("merge", box / "ledger.db", "--root", home, fails=True)
    assert "was continued in both ledgers" in output
    assert "nothing was merged" in output
    assert all_rows(home / "ledger.db") == before


def test_a_different_ledger_is_not_overwritten(archive, tmp_path):
    other = tmp_path / "other"
    assert stage("smoke", other, "search.seeds=[7]") == 0
    before = all_rows(other / "ledger.db")
    output = sweeps("unpack", archive, "--root", other, fails=True)
    assert f"there is a different ledger at {other / 'ledger.db'}" in output.replace("\n", "")
    assert all_rows(other / "ledger.db") == before
    assert not list(other.glob(".unpack-*"))


def rewritten(archive: Path, change: Callable[[dict[str, bytes]], list[tuple[tarfile.TarInfo, bytes]] | None]) -> Path:
    """The archive with other members."""
    with tarfile.open(archive) as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    added = change(members) or []
    harmed = archive.with_name("harmed.tar")
    with tarfile.open(harmed, "w") as tar:
        manifest = members.pop("manifest.json", None)
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
        for info, body in added:
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
        if manifest is not None:
            info = tarfile.TarInfo("manifest.json")
            info.size = len(manifest)
            tar.addfile(info, io.BytesIO(manifest))
    return harmed


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.pax_headers = kind, target, {"path": name}
    return info


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (member("../escaped"), "no plain file with a safe name"),
        (member("/tmp/escaped"), "no plain file with a safe name"),
        (member("cache/../../escaped"), "no plain file with a safe name"),
        (member("cache/link", tarfile.SYMTYPE, "/etc/passwd"), "no plain file with a safe name"),
        (member("cache/link", tarfile.LNKTYPE, "ledger.db"), "no plain file with a safe name"),
        (member("cache/device", tarfile.CHRTYPE), "no plain file with a safe name"),
        (member("cache/a\0b"), "no plain file with a safe name"),
        (member("cache/a\x1b[2Jb"), "no plain file with a safe name"),
        (member("ledger.db"), "an unexpected member"),
        (member("cache/unlisted"), "differs from the manifest"),
    ],
    ids=lambda value: f"{value.name}-{value.type.decode()}" if isinstance(value, tarfile.TarInfo) else "",
)
def test_unexpected_members_are_refused_before_anything_is_put_in_place(archive, tmp_path, extra, message):
    harmed = rewritten(archive, lambda members: [(extra, b"")])
    assert message in " ".join(sweeps("unpack", harmed, "--root", tmp_path / "box", fails=True).split())
    assert list((tmp_path / "box").iterdir()) == []
    assert not list(tmp_path.rglob("escaped"))


def _alter(members: dict[str, bytes]) -> None:
    members["cache/a-model/weights.safetensors"] = b"weighty"


def _forget(members: dict[str, bytes]) -> None:
    del members["cache/a-model/weights.safetensors"]


def _no_manifest(members: dict[str, bytes]) -> None:
    del members["manifest.json"]


def _newer(members: dict[str, bytes]) -> None:
    members["manifest.json"] = json.dumps({**json.loads(members["manifest.json"]), "format": 99}).encode()


def _sweep_named(name: object) -> Callable[[dict[str, bytes]], None]:
    def harm(members: dict[str, bytes]) -> None:
        body = json.loads(members["manifest.json"])
        members["manifest.json"] = json.dumps({**body, "sweeps": [*body["sweeps"], name]}).encode()

    return harm


def _deep(members: dict[str, bytes]) -> None:
    members["manifest.json"] = b"[" * 200_000 + b"]" * 200_000


def _no_object(members: dict[str, bytes]) -> None:
    members["manifest.json"] = b"[1]"


def _sweep_of_the_ledger_outside(members: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        path.write_bytes(members["ledger.db"])
        with Ledger.open(path) as ledger:
            ledger.events.append("sweep:../../outside", "x", {}, "x")
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute("PRAGMA journal_mode=DELETE")
        members["ledger.db"] = path.read_bytes()
        body = json.loads(members["manifest.json"])
        for row in body["files"]:
            if row["name"] == "ledger.db":
                row |= {
                    "bytes": len(members["ledger.db"]),
                    "sha256": hashlib.sha256(members["ledger.db"]).hexdigest(),
                }
        members["manifest.json"] = json.dumps(body).encode()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_sweep_named("../outside"), "no safe name"),
        (_sweep_named("/tmp/outside"), "no safe name"),
        (_sweep_named(".."), "no safe name"),
        (_sweep_named("a/b"), "no safe name"),
        (_sweep_named("a\0b"), "no safe name"),
        (_sweep_named("a\x1b[2Jb"), "no safe name"),
        (_sweep_named(""), "no safe name"),
        (_sweep_named({"a": 1}), "no safe name"),
        (_deep, "it is nested too deeply"),
        (_no_object, "was not written by `sweeps pack`"),
        (_sweep_of_the_ledger_outside, "no safe name"),
        (_alter, "differs from the manifest"),
        (_forget, "differs from the manifest"),
        (_no_manifest, "it is truncated, or was not written by"),
        (_newer, "has format 99"),
    ],
)
def test_a_changed_archive_is_refused_before_anything_is_put_in_place(archive, tmp_path, harm, message):
    harmed = rewritten(archive, harm)
    assert message in " ".join(sweeps("unpack", harmed, "--root", tmp_path / "box", fails=True).split())
    assert list((tmp_path / "box").iterdir()) == []


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_truncated_archive_is_refused(archive, tmp_path, share):
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)])
    sweeps("unpack", archive, "--root", tmp_path / "box", fails=True)
    sweeps("merge", archive, "--root", tmp_path / "box", fails=True)
    assert list((tmp_path / "box").iterdir()) == []


def test_a_file_that_is_no_archive_is_refused_with_a_message(tmp_path):
    (tmp_path / "text.tar").write_text("hello")
    assert "is no complete archive of `sweeps pack`" in sweeps(
        "unpack", tmp_path / "text.tar", "--root", tmp_path / "box", fails=True
    )
    assert "No such file" in sweeps("unpack", tmp_path / "none.tar", "--root", tmp_path / "box", fails=True)
    assert "there is nothing in the ledger" in sweeps("pack", "--root", tmp_path / "box", fails=True)


def test_running_attempts_are_not_packed(home, tmp_path):
    from cost.records import Lease, UsageKey

    with Ledger.open(home / "ledger.db") as ledger:
        ledger.leases.open(Lease("L", "this-host", "cpu", "electricity", "own", 1, "USD", None))
        ledger.leases.attach("L", "smoke-x")
        ledger.usages.start(UsageKey("L", "a-trial", 1), "smoke-x", Decimal(1), {})
        output = sweeps("pack", "--root", home, "--out", tmp_path / "box.tar", fails=True)
        assert "a-trial/1 of smoke-x" in output
        assert "pack when they have ended" in " ".join(output.split())
        assert not (tmp_path / "box.tar").exists()


def test_cache_and_checkpoints_can_be_left_out(home, tmp_path):
    sweeps("pack", "--root", home, "--out", tmp_path / "small.tar", "--no-cache", "--no-checkpoints")
    with tarfile.open(tmp_path / "small.tar") as tar:
        tops = {name.partition("/")[0] for name in tar.getnames()}
    assert tops == {"ledger.db", "pricing", "sweeps", "manifest.json"}


def test_archives_and_snapshots_in_a_bucket(home, tmp_path, bucket, keys):
    at = ["--endpoint-url", bucket.endpoint_url]
    sweeps("pack", "--root", home, "--out", f"{bucket.url}/box.tar", *at)
    assert not list(home.glob(".pack-*"))
    sweeps("unpack", f"{bucket.url}/box.tar", "--root", tmp_path / "box", *at)
    assert states(tmp_path / "box" / "ledger.db") == {"smoke": ("done", True)}
    stage("single", tmp_path / "box")
    sweeps("push", "last", "--root", tmp_path / "box", "--to", bucket.url, *at)
    sweeps("merge", bucket.url, "--root", home, *at)
    assert states(home / "ledger.db") == states(tmp_path / "box" / "ledger.db")


def test_push_needs_a_bucket_and_reports_one_that_does_not_answer(home, monkeypatch, keys):
    from sweeps.storage import sweep_bucket

    monkeypatch.setattr(sweep_bucket, "REQUEST_TRIES", 1)
    monkeypatch.setattr(sweep_bucket.time, "sleep", lambda seconds: None)
    assert "--to s3://bucket/prefix" in sweeps("push", "--root", home, fails=True)
    no_server = ["--to", "s3://team/x", "--endpoint-url", "http://127.0.0.1:9"]
    assert "Could not connect" in sweeps("push", "last", "--root", home, *no_server, fails=True)
    assert "there is no sweep 'other'" in sweeps("push", "other", "--root", home, fails=True)


def test_a_differing_price_book_is_put_beside_the_ledger_or_used(archive, tmp_path, monkeypatch):
    conf = tmp_path / "conf"
    shutil.copytree(CONF_DIR / "pricing", conf / "pricing")
    (conf / "pricing" / "own.yaml").write_text("# cheaper here\n")
    (conf / "pricing" / "runpod.yaml").unlink()
    monkeypatch.setattr(unpacking, "CONF_DIR", conf)
    output = sweeps("unpack", archive, "--root", tmp_path / "box")
    assert "own.yaml, runpod.yaml" in output
    assert (conf / "pricing" / "own.yaml").read_text() == "# cheaper here\n"
    beside = tmp_path / "box" / "pricing-unpacked"
    assert (beside / "own.yaml").read_bytes() == (CONF_DIR / "pricing" / "own.yaml").read_bytes()
    sweeps("unpack", archive, "--root", tmp_path / "box", "--take-prices")
    assert (conf / "pricing" / "own.yaml").read_bytes() == (CONF_DIR / "pricing" / "own.yaml").read_bytes()
    assert "price book" not in sweeps("unpack", archive, "--root", tmp_path / "box")


def test_a_full_disk_leaves_no_archive(home, tmp_path):
    """With a limit on file sizes that the copy of the ledger fits and the archive does not."""
    (home / "cache" / "large").write_bytes(bytes(2**20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        output = sweeps("pack", "--root", home, "--out", tmp_path / "box.tar", fails=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "box.tar cannot be written: File too large" in output
    assert not list(tmp_path.glob("box.tar*"))
