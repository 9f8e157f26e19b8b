"""A sweep's checkpoints in an S3 bucket: how one lies there, which are kept, and the way back to a disk.

Each is a folder of its own below `sweeps/SWEEP/checkpoints/TRIAL/`: the files as the trainer wrote them and, last,
`manifest.json` with the size and sha256 of each. Without a manifest there is no checkpoint; it is the first to go when
one is deleted. Names sort in the order in which the checkpoints were reported. What is fetched is compared with its
manifest before anybody sees it, and nothing is ever unpickled here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from cost.copies.s3 import Bucket, BucketError, put_new, sha256_of, sizes_below
from rl.checkpoint import MARKER as NATIVE_MARKER
from rl.trainers.simulated import MARKER as SIMULATED_MARKER

MANIFEST, SWEEPS, CHECKPOINTS = "manifest.json", "sweeps", "checkpoints"
MARKERS = frozenset({NATIVE_MARKER, SIMULATED_MARKER})
"""One of these is among the files of a whole checkpoint: the trainer writes it last, and removes it first."""

PART_BYTES = 16 * 2**20
"""Larger files are sent and fetched in parts of this size, several at a time."""

_NAME = re.compile(r"(\d+)-(\d+)-step-(\d+)")
_PART_OF_A_PATH = re.compile(r"[^/\\\x00-\x1f\x7f]+")


class NotWholeError(BucketError):
    """What lies there is no whole checkpoint: a file is missing, shorter, or not what the manifest says."""


@dataclass(frozen=True, order=True)
class CheckpointId:
    """Which checkpoint of a trial: the later in its story, the larger. `sequence` is the reporting message's."""

    attempt: int
    sequence: int
    step: int

    @property
    def name(self) -> str:
        return f"{self.attempt:04d}-{self.sequence:07d}-step-{self.step:06d}"

    @staticmethod
    def of(name: str) -> CheckpointId | None:
        found = _NAME.fullmatch(name)
        return CheckpointId(int(found[1]), int(found[2]), int(found[3])) if found else None


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of a trial stay in the bucket: the newest `last`, the best by evaluation, the first."""

    last: int
    best: bool
    first: bool

    def keep(self, known: Collection[CheckpointId], accuracy: Mapping[int, float]) -> set[CheckpointId]:
        """Those of `known` that stay; the newest always does. `accuracy`: of the evaluation at a step."""
        newest_first = sorted(known, reverse=True)
        kept = set(newest_first[: max(1, self.last)])
        judged = [c for c in newest_first if c.step in accuracy]
        if self.best and judged:
            kept.add(max(judged, key=lambda c: (accuracy[c.step], c)))
        if self.first and newest_first:
            kept.add(newest_first[-1])
        return kept


@dataclass(frozen=True)
class Place:
    """Where one sweep's checkpoints lie in a bucket."""

    bucket: Bucket
    sweep_id: str

    def parts(self, *more: str) -> tuple[str, ...]:
        return (SWEEPS, self.sweep_id, *more)

    def url(self, *more: str) -> str:
        return "/".join((self.bucket.url, *self.parts(*more)))


Found = dict[str, set[CheckpointId]]
"""Checkpoints by trial."""


def stored(client: Any, place: Place) -> tuple[Found, Found]:
    """Every checkpoint of the sweep that has a manifest, and every one that has none: somebody was ended on the way."""
    whole: Found = {}
    begun: Found = {}
    for key in sizes_below(client, place.bucket, *place.parts(CHECKPOINTS)):
        trial_id, _, rest = key.partition("/")
        name, _, file = rest.partition("/")
        if ident := CheckpointId.of(name):
            begun.setdefault(trial_id, set()).add(ident)
            if file == MANIFEST:
                whole.setdefault(trial_id, set()).add(ident)
    return whole, {trial_id: idents - whole.get(trial_id, set()) for trial_id, idents in begun.items()}


@contextmanager
def opened_whole(folder: Path) -> Iterator[Mapping[str, BinaryIO]]:
    """The files of a checkpoint on disk, open, by their name below it: from here on it may be pruned.

    Raises:
        FileNotFoundError: it is gone, or just being removed.
    """
    with ExitStack() as stack:
        files = {
            path.relative_to(folder).as_posix(): stack.enter_context(path.open("rb"))
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        # The marker goes first: while it is there, every file that was opened is whole, and none was missed.
        if not any(name in MARKERS and (folder / name).exists() for name in files):
            raise FileNotFoundError(f"{folder} is no whole checkpoint, or no longer one")
        yield files


def listed(files: Mapping[str, BinaryIO]) -> list[dict[str, Any]]:
    """Name, size and sha256 of each open file, which stands at its beginning again afterwards."""
    rows = []
    for name, file in files.items():
        digest = sha256_of(file)
        rows.append({"name": name, "bytes": os.fstat(file.fileno()).st_size, "sha256": digest})
        file.seek(0)
    return rows


def save(client: Any, place: Place, trial_id: str, ident: CheckpointId, folder: Path) -> None:
    """Put a checkpoint in the bucket, manifest last.

    Raises:
        FileNotFoundError: it is no longer on the disk.
        BucketError: something else arrived than was sent.
    """
    below = place.parts(CHECKPOINTS, trial_id, ident.name)
    with opened_whole(folder) as files:
        rows = listed(files)
        for name, file in files.items():
            client.upload_fileobj(file, place.bucket.name, place.bucket.key(*below, name), Config=parts())
    arrived = sizes_below(client, place.bucket, *below)
    for row in rows:
        if arrived.get(row["name"]) != row["bytes"]:
            said = f"{row['bytes']} bytes were sent and {arrived.get(row['name'])} lie there"
            raise BucketError(f"{place.url(*below[2:])}/{row['name']}: {said}")
    body = {"format": 1, "trial_id": trial_id, "step": ident.step, "folder": folder.name, "files": rows}
    put_new(client, place.bucket, place.bucket.key(*below, MANIFEST), json.dumps(body, indent=1).encode())


def delete(client: Any, place: Place, trial_id: str, ident: CheckpointId) -> None:
    """Remove a checkpoint, its manifest first: what is half removed is none."""
    below = place.parts(CHECKPOINTS, trial_id, ident.name)
    for name in sorted(sizes_below(client, place.bucket, *below), key=lambda n: n != MANIFEST):
        client.delete_object(Bucket=place.bucket.name, Key=place.bucket.key(*below, name))


def verify(client: Any, place: Place, trial_id: str, ident: CheckpointId) -> None:
    """Every file of a checkpoint is there in its size. Raises NotWholeError."""
    _manifest(client, place, trial_id, ident)


def fetch_newest(
    client: Any, place: Place, trial_id: str, folder: Path, warn: Callable[[str], None]
) -> tuple[CheckpointId, Path] | None:
    """Bring a trial's newest whole checkpoint into `folder`; None: there is none.

    One that is not what its manifest says is passed over, with a warning, for the next older one.

    Raises:
        botocore's and boto3's errors, where the bucket does not answer.
    """
    known = {key.partition("/")[0] for key in sizes_below(client, place.bucket, *place.parts(CHECKPOINTS, trial_id))}
    for ident in sorted(filter(None, map(CheckpointId.of, known)), reverse=True):
        try:
            return ident, _bring(client, place, trial_id, ident, folder)
        except NotWholeError as error:
            warn(f"{error}; the next older one is taken")
    return None


def _bring(client: Any, place: Place, trial_id: str, ident: CheckpointId, folder: Path) -> Path:
    name, rows = _manifest(client, place, trial_id, ident)
    below = place.parts(CHECKPOINTS, trial_id, ident.name)
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob(".fetched-*"):
        shutil.rmtree(left_over)
    partial = folder / f".fetched-{ident.name}"
    partial.mkdir()
    try:
        for row in rows:
            target = partial / row["name"]
            target.parent.mkdir(parents=True, exist_ok=True)
            key = place.bucket.key(*below, row["name"])
            client.download_file(place.bucket.name, key, str(target), Config=parts())
            check_file(target, row, f"s3://{place.bucket.name}/{key}")
        final = folder / name
        if final.exists():  # of the same name, but not the one that the journal means
            final = folder / f"{name}-{ident.name}"
            shutil.rmtree(final, ignore_errors=True)
        os.rename(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def check_file(file: Path, row: Mapping[str, Any], where: str) -> None:
    """A file is what a manifest's row says, and on the disk for good. Raises NotWholeError."""
    if file.stat().st_size != row["bytes"] or sha256_of(file) != row["sha256"]:
        raise NotWholeError(f"{where} is not the file that its manifest names")
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _manifest(client: Any, place: Place, trial_id: str, ident: CheckpointId) -> tuple[str, list[dict[str, Any]]]:
    """The folder's name on disk, and name, size and sha256 of each file; all of them are there in their size."""
    from botocore.exceptions import ClientError

    below = place.parts(CHECKPOINTS, trial_id, ident.name)
    where = place.url(*below[2:])
    key = place.bucket.key(*below, MANIFEST)
    try:
        body = json.loads(client.get_object(Bucket=place.bucket.name, Key=key)["Body"].read())
        folder, rows = body["folder"], checked_rows(body["files"])
        if not is_safe(folder) or "/" in folder or not MARKERS & {r["name"] for r in rows}:
            raise ValueError("it names no checkpoint")
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in ("NoSuchKey", "404"):
            raise
        raise NotWholeError(f"{where} has no {MANIFEST}: it is no whole checkpoint") from error
    except (ValueError, KeyError, TypeError) as error:
        raise NotWholeError(f"{where}/{MANIFEST} is no manifest of a checkpoint: {error!r}") from error
    there = sizes_below(client, place.bucket, *below)
    for row in rows:
        if there.get(row["name"]) != row["bytes"]:
            said = "is missing" if row["name"] not in there else f"has {there[row['name']]} bytes, not {row['bytes']}"
            raise NotWholeError(f"{where}/{row['name']} {said}")
    return folder, rows


def checked_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The files of a manifest. A name decides where a file is written, so none but plain ones are believed.

    Raises:
        ValueError: a name that could lead elsewhere, or no size or sha256.
    """
    found = []
    for row in rows:
        name, size, digest = row["name"], row["bytes"], row["sha256"]
        if not is_safe(name):
            raise ValueError(f"{name!r} is no name of a file below a folder")
        if type(size) is not int or size < 0 or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError(f"{name} has no size or sha256")
        found.append({"name": name, "bytes": size, "sha256": digest})
    return found


def is_safe(name: Any) -> bool:
    """Whether a name stays below the folder it is put into."""
    return isinstance(name, str) and all(
        _PART_OF_A_PATH.fullmatch(part) and set(part) != {"."} for part in PurePosixPath(name).parts or ("",)
    )


def parts() -> Any:
    """How large files are sent and fetched."""
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4)
