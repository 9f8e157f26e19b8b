"""Unpacks an archive of `sweeps/storage/pack.py` on another machine, or merges it into the ledger that it came from.

The whole archive is checked before any file is put in place: members must be plain files with safe names. They are
written to a temporary folder and compared with the manifest, which comes last.

Tested in tests/sweeps/storage/test_pack.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cost.commands import command_text
from cost.copies.merge import MergeResult, merge_ledger
from cost.copies.s3 import parse_s3_url, s3_client, sha256_of
from cost.copies.s3_snapshot import download_snapshot
from cost.ledger.ledger import Ledger
from cost.records import IntegrityError, LedgerError, NoLedgerError
from sweeps.config.overrides import CONF_DIR
from sweeps.journal.journal import STREAM_PREFIX
from sweeps.storage import s3_checkpoints
from sweeps.storage.pack import CACHE, CHECKPOINTS, FORMAT, LEDGER, MANIFEST, PRICES, SWEEPS

_MOST_MANIFEST_BYTES = 256 * 2**20


class ArchiveError(LedgerError):
    """The archive is incomplete, or does not fit the files here. The message names what was not changed."""


@dataclass(frozen=True)
class Unpacked:
    """The result of unpacking."""

    sweeps: tuple[str, ...]
    files: int
    """Number of files put in place, without those that existed already."""
    not_replaced: tuple[str, ...]
    """Files that exist here with different content."""
    prices: Path | None
    """The folder of the archive's price book, if it differs from the one in use here."""
    differing_prices: tuple[str, ...]


@dataclass(frozen=True)
class OpenArchive:
    """The checked content of an archive in a temporary folder."""

    folder: Path
    sweeps: tuple[str, ...]

    @property
    def ledger(self) -> Path:
        return self.folder / LEDGER


@contextmanager
def open_archive(source: str, near: Path, *, endpoint_url: str = "", region: str = "") -> Iterator[OpenArchive]:
    """The content of an archive, a file or `s3://bucket/NAME.tar`, in a temporary folder below `near`.

    Raises:
        ArchiveError: the file is incomplete, no archive, or has members that are not allowed.
        BucketError: the bucket does not answer, or refuses.
    """
    near.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=near) as folder:
        path = Path(source)
        if source.startswith("s3://"):
            place, path = parse_s3_url(source, endpoint_url=endpoint_url, region=region), Path(folder) / "archive.tar"
            with s3_client(place, 5) as client:
                client.download_file(place.name, place.prefix, str(path), Config=s3_checkpoints.transfer_config())
        content = Path(folder) / "content"
        content.mkdir()
        try:
            names = _extract(path, content)
            _check_sweeps_of_ledger(content / LEDGER, source)
            yield OpenArchive(content, names)
        except (tarfile.TarError, EOFError) as error:
            raise ArchiveError(f"{source} is no complete archive of `sweeps pack`: {error}") from error
        except OSError as error:
            raise ArchiveError(f"{source} cannot be unpacked: {error.strerror or error}") from error


def unpack(
    source: OpenArchive,
    root: Path,
    database: str | Path,
    *,
    cache: Path,
    take_prices: bool = False,
    name: str = "ARCHIVE",
) -> Unpacked:
    """Put the files of an archive in place: ledger, configurations, checkpoints, cache, price book. Repeatable.

    Raises:
        ArchiveError: a different ledger exists here.
        StoreError: the ledger here cannot be used.
    """
    _place_ledger(source, database, name)
    done, left = _place_files(source, root, replaced=())
    cached, _ = _place_tree(source.folder / CACHE, cache)
    prices, differing = _place_prices(source, root, take_prices)
    return Unpacked(source.sweeps, done + cached, tuple(left), prices, tuple(differing))


def merge_archive(
    home: Ledger, source: OpenArchive, root: Path, *, lost: bool = False, dry: bool = False
) -> MergeResult:
    """Merge an archive's ledger into this one, then put the files of the sweeps that continued there in place.

    Raises:
        IntegrityError: as `cost.copies.merge.merge_ledger`; nothing was changed.
    """
    found = merge_ledger(home, source.ledger, lost=lost, dry=dry)
    if not dry:
        _place_files(source, root, replaced=[s.removeprefix(STREAM_PREFIX) for s in found.streams])
    return found


@contextmanager
def open_snapshot(url: str, near: Path, *, endpoint_url: str = "", region: str = "") -> Iterator[Path]:
    """The ledger of a snapshot in a bucket; `storage=s3` writes one after each sweep. Raises BucketError."""
    near.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".snapshot-", dir=near) as folder:
        yield download_snapshot(parse_s3_url(url, endpoint_url=endpoint_url, region=region), Path(folder))[1]


# Reading --------------------------------------------------------------------------------------------------------------


def _extract(path: Path, folder: Path) -> tuple[str, ...]:
    found: dict[str, dict[str, int | str]] = {}
    manifest = None
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if manifest is not None or member.name in found:
                raise ArchiveError(
                    f"{path} has an unexpected member {member.name!r}: it was not written by `sweeps pack`"
                )
            if member.type != tarfile.REGTYPE or member.issparse() or not s3_checkpoints.is_safe(member.name):
                raise ArchiveError(
                    f"{path} has {member.name!r}, which is no plain file with a safe name: nothing was unpacked"
                )
            file = tar.extractfile(member)
            assert file is not None
            if member.name == MANIFEST:
                if member.size > _MOST_MANIFEST_BYTES:
                    raise ArchiveError(f"{path}: its manifest is too large ({member.size} bytes)")
                manifest = file.read()
                continue
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with target.open("xb") as written:
                while data := file.read(2**20):
                    digest.update(data)
                    written.write(data)
            found[member.name] = {"name": member.name, "bytes": member.size, "sha256": digest.hexdigest()}
    if manifest is None:
        raise ArchiveError(f"{path} has no {MANIFEST}: it is truncated, or was not written by `sweeps pack`")
    return _checked(path, manifest, found)


def _checked(path: Path, manifest: bytes, found: dict[str, dict[str, int | str]]) -> tuple[str, ...]:
    try:
        body = json.loads(manifest)
        rows = {row["name"]: row for row in s3_checkpoints.checked_rows(body["files"])}
        sweeps = tuple(map(s3_checkpoints.checked_name, body["sweeps"]))
        version = body["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else repr(error)[:200]
        raise ArchiveError(f"{path}: its {MANIFEST} was not written by `sweeps pack`: {reason}") from error
    if version != FORMAT:
        raise ArchiveError(f"{path} has format {version}; this program reads format {FORMAT}")
    wrong = sorted(name for name in rows.keys() | found.keys() if rows.get(name) != found.get(name))
    if wrong:
        raise ArchiveError(f"{path}: {wrong[0]} differs from the manifest; nothing was put in place")
    if LEDGER not in rows:
        raise ArchiveError(f"{path} has no {LEDGER}")
    return sweeps


def _check_sweeps_of_ledger(ledger: Path, source: str) -> None:
    """Check the names of the sweeps in an archive's ledger: they become names of folders. Raises ArchiveError."""
    try:
        with closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as raw:
            query = "SELECT DISTINCT stream FROM event WHERE stream LIKE ?"
            streams = [stream for (stream,) in raw.execute(query, (f"{STREAM_PREFIX}%",))]
        for stream in streams:
            s3_checkpoints.checked_name(stream.removeprefix(STREAM_PREFIX))
    except (sqlite3.Error, ValueError) as error:
        raise ArchiveError(f"{source}: its {LEDGER} cannot be used: {error}; nothing was unpacked") from error


# Putting in place -----------------------------------------------------------------------------------------------------


def _place_ledger(source: OpenArchive, database: str | Path, name: str) -> None:
    """Put the ledger in place if there is none. An existing one must be the same ledger, older or newer."""
    try:
        here = Ledger.open(database, create=False)
    except NoLedgerError:
        with Ledger.open(database) as new:
            merge_ledger(new, source.ledger)
        return
    with here:
        try:
            if not merge_ledger(here, source.ledger, dry=True).added:
                return
            with Ledger.open(source.ledger) as theirs:
                older = not merge_ledger(theirs, database, dry=True).added
        except IntegrityError as error:
            raise ArchiveError(_different_ledger(here, name, f" ({error})")) from error
        if not older:
            raise ArchiveError(_different_ledger(here, name, ""))
        merge_ledger(here, source.ledger)


def _different_ledger(here: Ledger, name: str, why: str) -> str:
    return (
        f"there is a different ledger at {here.place}{why}: nothing was changed. Merge them with "
        f"`{command_text('sweeps', 'merge', name, place=here.place)}`, or unpack into another folder with --root"
    )


def _place_files(source: OpenArchive, root: Path, replaced: Sequence[str]) -> tuple[int, list[str]]:
    """Configurations, reports and checkpoints. Those of the sweeps in `replaced` replace existing files."""
    done, left = 0, []
    for sweep_id in source.sweeps:
        (root / sweep_id).mkdir(parents=True, exist_ok=True)
        count, other = _place_tree(source.folder / SWEEPS / sweep_id, root / sweep_id, over=sweep_id in replaced)
        done, left = done + count, left + other
        for folder in sorted((source.folder / CHECKPOINTS / sweep_id).glob("*/*")):
            target = root / sweep_id / CHECKPOINTS / folder.parent.name / folder.name
            if not target.exists():  # the whole folder at once
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(folder, target)
                done += 1
    return done, left


def _place_tree(folder: Path, target: Path, *, over: bool = False) -> tuple[int, list[str]]:
    done, left = 0, []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        place = target / path.relative_to(folder)
        if not place.exists() or over:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, place)
            done += 1
        elif sha256_of(place) != sha256_of(path):
            left.append(str(place))
    return done, left


def _place_prices(source: OpenArchive, root: Path, take: bool) -> tuple[Path | None, list[str]]:
    """Replace the price book in use, if `take`; else put a differing one beside the ledger."""
    theirs, ours = source.folder / PRICES, CONF_DIR / "pricing"
    files = [p.relative_to(theirs) for p in sorted(theirs.rglob("*.yaml"))]
    differing = [f for f in files if not (ours / f).is_file() or (ours / f).read_bytes() != (theirs / f).read_bytes()]
    if not differing:
        return None, []
    into = ours if take else root / "pricing-unpacked"
    for file in differing if take else files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(theirs / file, into / file)
    return into, [f.as_posix() for f in differing]
