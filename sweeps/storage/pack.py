"""Packs a root folder into one archive for another machine: ledger, configurations, checkpoints, caches, price book.

The archive is a plain tar, written in one pass. Its last member is `manifest.json` with size and sha256 of each file,
so a truncated archive has none. `sweeps/storage/unpack.py` reads it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cost.clock import SystemClock
from cost.copies.s3 import parse_s3_url, s3_client
from cost.ledger.ledger import Ledger
from cost.periods import instant_text
from cost.records import LedgerError
from sweeps.config.overrides import CONF_DIR
from sweeps.journal.journal import SweepRecord, load, sweep_ids
from sweeps.journal.lost_attempts import end_lost_attempts_of_all
from sweeps.storage import s3_checkpoints
from sweeps.storage.uploads import ARTIFACTS

LEDGER, MANIFEST, PRICES, SWEEPS, CHECKPOINTS, CACHE = (
    *("ledger.db", "manifest.json", "pricing", "sweeps", "checkpoints", "cache"),
)
FORMAT = 1


class PackError(LedgerError):
    """There is nothing to pack, or the archive cannot be written."""


@dataclass(frozen=True)
class Packed:
    """The content of a written archive."""

    place: str
    size_bytes: int
    sweeps: tuple[str, ...]
    checkpoints: int
    notes: tuple[str, ...]
    """What else the other machine needs."""


def pack(
    ledger: Ledger,
    root: Path,
    out: str,
    *,
    cache: Path | None,
    with_checkpoints: bool = True,
    endpoint_url: str = "",
    region: str = "",
) -> Packed:
    """Write an archive of a root folder to a file, or to `s3://bucket/NAME.tar`. `cache`: None leaves it out.

    Raises:
        PackError: there is no sweep, a trial is running, or the archive cannot be written.
        BucketError: the bucket does not answer, or refuses.
    """
    records = _ended_sweeps(ledger)
    if not records:
        raise PackError(f"the ledger at {ledger.place} has no sweep: there is nothing to pack")
    if out.startswith("s3://"):
        place = parse_s3_url(out, endpoint_url=endpoint_url, region=region)
        if not place.prefix.endswith(".tar"):
            raise PackError(f"--out {out} should name the archive: s3://bucket/NAME.tar")
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pack-", dir=root) as folder, s3_client(place, 5) as client:
            path = Path(folder) / "archive.tar"
            found = _write(path, ledger, records, root, cache, with_checkpoints)
            client.upload_file(str(path), place.name, place.prefix, Config=s3_checkpoints.transfer_config())
    else:
        path = Path(out)
        found = _write(path, ledger, records, root, cache, with_checkpoints)
    size, count = found
    return Packed(out, size, tuple(r.sweep_id for r in records), count, tuple(_notes(records, root)))


def _ended_sweeps(ledger: Ledger) -> list[SweepRecord]:
    """Every sweep. Attempts of dead drivers are ended first.

    Raises:
        PackError: an attempt is running. On the other machine it would count as lost.
    """
    ledger.usages.close_dead()
    end_lost_attempts_of_all(ledger, [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)])
    if running := [u for u in ledger.usages.find() if u.to_ns is None]:
        some = ", ".join(f"{u.key.trial_id}/{u.key.attempt} of {u.sweep_id}" for u in running[:3])
        raise PackError(
            f"{len(running)} attempts are running ({some}), and on the other machine they would count as lost: pack "
            "when they have ended, or interrupt their sweep"
        )
    return [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)]


def _write(
    path: Path, ledger: Ledger, records: list[SweepRecord], root: Path, cache: Path | None, with_checkpoints: bool
) -> tuple[int, int]:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    count = 0
    try:
        with tarfile.open(partial, "x", format=tarfile.PAX_FORMAT) as tar:
            archive = _Archive(tar)
            with tempfile.TemporaryDirectory(prefix="pack-") as folder:
                archive.add_path(LEDGER, ledger.copy_to(Path(folder) / LEDGER))
            for price in sorted((CONF_DIR / "pricing").rglob("*.yaml")):
                archive.add_path(f"{PRICES}/{price.relative_to(CONF_DIR / 'pricing').as_posix()}", price)
            for record in records:
                for name in ARTIFACTS:
                    if (file := root / record.sweep_id / name).is_file():
                        archive.add_path(f"{SWEEPS}/{record.sweep_id}/{name}", file)
                if with_checkpoints:
                    count += sum(_add_checkpoint(archive, record, trial, root) for trial in record.trials)
            for name, file in _files(cache) if cache is not None else ():
                archive.add_path(f"{CACHE}/{name}", file)
            archive.finish([r.sweep_id for r in records])
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise PackError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return path.stat().st_size, count


def _add_checkpoint(archive: _Archive, record: SweepRecord, trial_id: str, root: Path) -> bool:
    """Add a trial's newest checkpoint; False if it is not on this disk."""
    checkpoint = record.trials[trial_id].checkpoint
    if checkpoint is None:
        return False
    name = Path(checkpoint.path).name
    own = root / record.sweep_id / CHECKPOINTS / trial_id / name
    folder = Path(checkpoint.path) if Path(checkpoint.path).is_dir() else own
    try:
        with s3_checkpoints.open_complete(folder) as files:
            for file_name, file in files.items():
                archive.add(f"{CHECKPOINTS}/{record.sweep_id}/{trial_id}/{name}/{file_name}", file)
    except FileNotFoundError:
        return False
    return True


class _Archive:
    """A tar that is being written, and the rows of its manifest."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._rows: list[Mapping[str, str | int]] = []

    def add_path(self, name: str, path: Path) -> None:
        with path.open("rb") as file:
            self.add(name, file)

    def add(self, name: str, file: BinaryIO) -> None:
        info = tarfile.TarInfo(name)
        info.size = os.fstat(file.fileno()).st_size
        reader = _HashingReader(file)
        self._tar.addfile(info, reader)
        self._rows.append({"name": name, "bytes": info.size, "sha256": reader.digest.hexdigest()})

    def finish(self, sweeps: list[str]) -> None:
        made_at = instant_text(SystemClock().utc_ns())
        body = json.dumps({"format": FORMAT, "made_at": made_at, "sweeps": sweeps, "files": self._rows}, indent=1)
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(body.encode())
        self._tar.addfile(info, io.BytesIO(body.encode()))


class _HashingReader(io.RawIOBase):
    """Hashes a file while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below a folder with its relative name. Names that begin with a dot are locks or incomplete files."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not any(p.startswith(".") for p in name.parts):
            yield name.as_posix(), path


def _notes(records: list[SweepRecord], root: Path) -> Iterator[str]:
    """Models and tasks outside the archive that the sweeps need."""
    named = {(key, record.config.get(key, {}).get("path")) for record in records for key in ("model", "task")}
    for key, path in sorted((k, p) for k, p in named if p):
        if Path(path).expanduser().exists():
            yield f"{key}.path={path} is not in the archive: copy it to the same path there, or change {key}.path"
        else:
            yield f"{key}.path={path} is downloaded from its hub there"
