"""An archive of `sweeps.pack` put in place on another machine, or merged into the ledger it came from.

Nothing is believed before all of it is checked: members are plain files with plain names, written one by one below a
folder of our own, and compared with the manifest, which comes last. Only then is anything put where it belongs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cost.copies.merge import Merged, merge
from cost.copies.s3 import bucket_of, connected, sha256_of
from cost.copies.s3_snapshot import fetch
from cost.ledger.ledger import Ledger
from cost.records import IntegrityError, LedgerError, NoLedgerError
from sweeps.config.overrides import CONF_DIR
from sweeps.journal.journal import STREAM_PREFIX
from sweeps.storage import s3_checkpoints
from sweeps.storage.pack import CACHE, CHECKPOINTS, FORMAT, LEDGER, MANIFEST, PRICES, SWEEPS

_MOST_MANIFEST_BYTES = 256 * 2**20


class ArchiveError(LedgerError):
    """It is no whole archive, or it does not fit what is here. The message says what was left alone."""


@dataclass(frozen=True)
class Unpacked:
    """What an archive brought."""

    sweeps: tuple[str, ...]
    files: int
    """Put in place; what was there already is not counted."""
    left_alone: tuple[str, ...]
    """Files that are here already, with another content."""
    prices: Path | None
    """Where the archive's price book lies, where it is not the one in use here."""
    differing_prices: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """An archive whose every file was checked, below a temporary folder."""

    folder: Path
    sweeps: tuple[str, ...]

    @property
    def ledger(self) -> Path:
        return self.folder / LEDGER


@contextmanager
def opened(source: str, near: Path, *, endpoint_url: str = "", region: str = "") -> Iterator[Opened]:
    """The content of an archive, a file or `s3://bucket/NAME.tar`, below a folder in `near` that goes again afterwards.

    Raises:
        ArchiveError: it is not whole, not an archive, or has members that it must not have.
        BucketError: the bucket does not answer, or refuses.
    """
    near.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=near) as folder:
        path = Path(source)
        if source.startswith("s3://"):
            place, path = bucket_of(source, endpoint_url=endpoint_url, region=region), Path(folder) / "archive.tar"
            with connected(place, 5) as client:
                client.download_file(place.name, place.prefix, str(path), Config=s3_checkpoints.parts())
        content = Path(folder) / "content"
        content.mkdir()
        try:
            yield Opened(content, _extract(path, content))
        except (tarfile.TarError, EOFError) as error:
            raise ArchiveError(f"{source} is no whole archive of `sweeps pack`: {error}") from error
        except OSError as error:
            raise ArchiveError(f"{source} cannot be unpacked: {error.strerror or error}") from error


def unpack(
    source: Opened, root: Path, database: str | Path, *, cache: Path, take_prices: bool = False, name: str = "it"
) -> Unpacked:
    """Put an archive in place: ledger, recipes, checkpoints, cache and price book. Twice is once.

    Raises:
        ArchiveError: another ledger is here.
        StoreError: the ledger here cannot be used.
    """
    _place_ledger(source, database, name)
    done, left = _place_files(source, root, replaced=())
    cached, _ = _place_tree(source.folder / CACHE, cache)
    prices, differing = _place_prices(source, root, take_prices)
    return Unpacked(source.sweeps, done + cached, tuple(left), prices, tuple(differing))


def merge_archive(home: Ledger, source: Opened, root: Path, *, lost: bool = False, dry: bool = False) -> Merged:
    """Bring back what an archive's ledger has beyond this one, then the files of the sweeps that went on there.

    Raises:
        IntegrityError: as `cost.merge.merge`; nothing was changed.
    """
    found = merge(home, source.ledger, lost=lost, dry=dry)
    if not dry:
        _place_files(source, root, replaced=[s.removeprefix(STREAM_PREFIX) for s in found.streams])
    return found


@contextmanager
def snapshot(url: str, near: Path, *, endpoint_url: str = "", region: str = "") -> Iterator[Path]:
    """The ledger of a snapshot in a bucket (`storage=s3` leaves one after each sweep). Raises BucketError."""
    near.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".snapshot-", dir=near) as folder:
        yield fetch(bucket_of(url, endpoint_url=endpoint_url, region=region), Path(folder))[1]


# Reading --------------------------------------------------------------------------------------------------------------


def _extract(path: Path, folder: Path) -> tuple[str, ...]:
    found: dict[str, dict[str, int | str]] = {}
    manifest = None
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if manifest is not None or member.name in found:
                raise ArchiveError(
                    f"{path} has {member.name!r} where nothing should be: it was not made by `sweeps pack`"
                )
            if member.type != tarfile.REGTYPE or member.issparse() or not s3_checkpoints.is_safe(member.name):
                raise ArchiveError(
                    f"{path} has {member.name!r}, which is no plain file below a folder: it is not unpacked"
                )
            file = tar.extractfile(member)
            assert file is not None
            if member.name == MANIFEST:
                if member.size > _MOST_MANIFEST_BYTES:
                    raise ArchiveError(f"{path}: its manifest has {member.size} bytes")
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
        raise ArchiveError(f"{path} has no {MANIFEST}: it was cut short, or not made by `sweeps pack`")
    return _checked(path, manifest, found)


def _checked(path: Path, manifest: bytes, found: dict[str, dict[str, int | str]]) -> tuple[str, ...]:
    try:
        body = json.loads(manifest)
        rows = {row["name"]: row for row in s3_checkpoints.checked_rows(body["files"])}
        sweeps = tuple(map(str, body["sweeps"]))
        version = body["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path}: its {MANIFEST} is none of `sweeps pack`: {error!r}") from error
    if version != FORMAT:
        raise ArchiveError(f"{path} is of format {version}; this version reads format {FORMAT}")
    wrong = sorted(name for name in rows.keys() | found.keys() if rows.get(name) != found.get(name))
    if wrong:
        raise ArchiveError(f"{path}: {wrong[0]} is not the file that the manifest names; nothing was put in place")
    if LEDGER not in rows:
        raise ArchiveError(f"{path} holds no {LEDGER}")
    return sweeps


# Putting in place -----------------------------------------------------------------------------------------------------


def _place_ledger(source: Opened, database: str | Path, name: str) -> None:
    """The archive's ledger where there is none; where there is one, it has to be this one, older or newer."""
    try:
        here = Ledger.open(database, create=False)
    except NoLedgerError:
        with Ledger.open(database) as new:
            merge(new, source.ledger)
        return
    with here:
        try:
            if not merge(here, source.ledger, dry=True).added:
                return
            with Ledger.open(source.ledger) as theirs:
                older = not merge(theirs, database, dry=True).added
        except IntegrityError as error:
            raise ArchiveError(_another_ledger(here, name, f" ({error})")) from error
        if not older:
            raise ArchiveError(_another_ledger(here, name, ""))
        merge(here, source.ledger)


def _another_ledger(here: Ledger, name: str, why: str) -> str:
    return (
        f"there is another ledger at {here.place}{why}: it was left alone. Bring them together with "
        f"`python -m sweeps merge {name}`, or unpack into another folder with --root"
    )


def _place_files(source: Opened, root: Path, replaced: Sequence[str]) -> tuple[int, list[str]]:
    """Recipes, reports and checkpoints; those of the sweeps in `replaced` also over what is there."""
    done, left = 0, []
    for sweep_id in source.sweeps:
        (root / sweep_id).mkdir(parents=True, exist_ok=True)
        count, other = _place_tree(source.folder / SWEEPS / sweep_id, root / sweep_id, over=sweep_id in replaced)
        done, left = done + count, left + other
        for folder in sorted((source.folder / CHECKPOINTS / sweep_id).glob("*/*")):
            target = root / sweep_id / CHECKPOINTS / folder.parent.name / folder.name
            if not target.exists():  # as a whole, or not at all
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


def _place_prices(source: Opened, root: Path, take: bool) -> tuple[Path | None, list[str]]:
    """The price book in use, where it is to be replaced; else the archive's beside the ledger, where it differs."""
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
