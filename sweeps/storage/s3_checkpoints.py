"""A sweep's checkpoints in an S3 bucket: their layout, which are kept, and how they are uploaded and fetched.

Each checkpoint is a folder below `sweeps/SWEEP/checkpoints/TRIAL/` with the files that the trainer wrote and
`manifest.json`, which lists size and sha256 of each file. The manifest is uploaded last and deleted first: without it
there is no checkpoint. Names sort in the order in which the checkpoints were reported. Fetched files are compared with
the manifest before use, and nothing is ever unpickled.
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

from cost.copies.s3 import Bucket, BucketError, object_sizes, put_if_absent, sha256_of
from rl.checkpoint import MARKER as NATIVE_MARKER
from rl.trainers.simulated import MARKER as SIMULATED_MARKER

MANIFEST, SWEEPS, CHECKPOINTS = "manifest.json", "sweeps", "checkpoints"
MARKERS = frozenset({NATIVE_MARKER, SIMULATED_MARKER})
"""One of these files is in every complete checkpoint: the trainer writes it last and removes it first."""

PART_BYTES = 16 * 2**20
"""Larger files are uploaded and fetched in parts of this size, several at a time."""

_NAME = re.compile(r"(\d+)-(\d+)-step-(\d+)")
_PART_OF_A_PATH = re.compile(r"[^/\\\x00-\x1f\x7f]+")


class IncompleteCheckpointError(BucketError):
    """A file of the checkpoint is missing, or differs from the manifest."""


@dataclass(frozen=True, order=True)
class CheckpointId:
    """Identifies a checkpoint of a trial. Later ones are larger. `sequence` is that of the reporting message."""

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
        """The checkpoints of `known` that stay; the newest always does. `accuracy`: by step of the evaluation."""
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
    """The location of one sweep's checkpoints in a bucket."""

    bucket: Bucket
    sweep_id: str

    def parts(self, *more: str) -> tuple[str, ...]:
        return (SWEEPS, self.sweep_id, *more)

    def url(self, *more: str) -> str:
        return "/".join((self.bucket.url, *self.parts(*more)))


Found = dict[str, set[CheckpointId]]
"""Checkpoints by trial."""


def stored(client: Any, place: Place) -> tuple[Found, Found]:
    """Every checkpoint of the sweep with a manifest, and every one without, whose upload was interrupted."""
    whole: Found = {}
    begun: Found = {}
    for key in object_sizes(client, place.bucket, *place.parts(CHECKPOINTS)):
        trial_id, _, rest = key.partition("/")
        name, _, file = rest.partition("/")
        if ident := CheckpointId.of(name):
            begun.setdefault(trial_id, set()).add(ident)
            if file == MANIFEST:
                whole.setdefault(trial_id, set()).add(ident)
    return whole, {trial_id: idents - whole.get(trial_id, set()) for trial_id, idents in begun.items()}


@contextmanager
def open_complete(folder: Path) -> Iterator[Mapping[str, BinaryIO]]:
    """The open files of a complete checkpoint on disk, by name. The trainer may prune the checkpoint meanwhile.

    Raises:
        FileNotFoundError: the checkpoint is gone, or is being removed.
    """
    with ExitStack() as stack:
        files = {
            path.relative_to(folder).as_posix(): stack.enter_context(path.open("rb"))
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }
        # The marker is removed first: while it exists, all files have been opened, and all are complete.
        if not any(name in MARKERS and (folder / name).exists() for name in files):
            raise FileNotFoundError(f"{folder} is not, or no longer, a complete checkpoint")
        yield files


def manifest_rows(files: Mapping[str, BinaryIO]) -> list[dict[str, Any]]:
    """Name, size and sha256 of each open file. Each file is rewound afterwards."""
    rows = []
    for name, file in files.items():
        digest = sha256_of(file)
        rows.append({"name": name, "bytes": os.fstat(file.fileno()).st_size, "sha256": digest})
        file.seek(0)
    return rows


def save(client: Any, place: Place, trial_id: str, ident: CheckpointId, folder: Path) -> None:
    """Upload a checkpoint, manifest last.

    Raises:
        FileNotFoundError: the checkpoint is no longer on the disk.
        BucketError: the sizes in the bucket differ from those on the disk.
    """
    below = place.parts(CHECKPOINTS, trial_id, ident.name)
    with open_complete(folder) as files:
        rows = manifest_rows(files)
        for name, file in files.items():
            client.upload_fileobj(file, place.bucket.name, place.bucket.key(*below, name), Config=transfer_config())
    arrived = object_sizes(client, place.bucket, *below)
    for row in rows:
        if arrived.get(row["name"]) != row["bytes"]:
            sizes = f"{row['bytes']} bytes were uploaded, and the bucket has {arrived.get(row['name'])}"
            raise BucketError(f"{place.url(*below[2:])}/{row['name']}: {sizes}")
    body = {"format": 1, "trial_id": trial_id, "step": ident.step, "folder": folder.name, "files": rows}
    put_if_absent(client, place.bucket, place.bucket.key(*below, MANIFEST), json.dumps(body, indent=1).encode())


def delete(client: Any, place: Place, trial_id: str, ident: CheckpointId) -> None:
    """Delete a checkpoint, its manifest first, so that a partly deleted one does not count."""
    below = place.parts(CHECKPOINTS, trial_id, ident.name)
    for name in sorted(object_sizes(client, place.bucket, *below), key=lambda n: n != MANIFEST):
        client.delete_object(Bucket=place.bucket.name, Key=place.bucket.key(*below, name))


def verify(client: Any, place: Place, trial_id: str, ident: CheckpointId) -> None:
    """Check that every file of a checkpoint is in the bucket with its size. Raises IncompleteCheckpointError."""
    _manifest(client, place, trial_id, ident)


def fetch_newest(
    client: Any, place: Place, trial_id: str, folder: Path, warn: Callable[[str], None]
) -> tuple[CheckpointId, Path] | None:
    """Fetch a trial's newest complete checkpoint into `folder`; None: there is none.

    A checkpoint that differs from its manifest is skipped with a warning, and the one before it is used.

    Raises:
        botocore's and boto3's errors, when the bucket does not answer.
    """
    known = {key.partition("/")[0] for key in object_sizes(client, place.bucket, *place.parts(CHECKPOINTS, trial_id))}
    for ident in sorted(filter(None, map(CheckpointId.of, known)), reverse=True):
        try:
            return ident, _fetch(client, place, trial_id, ident, folder)
        except IncompleteCheckpointError as error:
            warn(f"{error}; the checkpoint before it is used")
    return None


def _fetch(client: Any, place: Place, trial_id: str, ident: CheckpointId, folder: Path) -> Path:
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
            client.download_file(place.bucket.name, key, str(target), Config=transfer_config())
            check_file(target, row, f"s3://{place.bucket.name}/{key}")
        final = folder / name
        if final.exists():  # another checkpoint with the same name
            final = folder / f"{name}-{ident.name}"
            shutil.rmtree(final, ignore_errors=True)
        os.rename(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def check_file(file: Path, row: Mapping[str, Any], where: str) -> None:
    """Compare a file with its row of a manifest and sync it to the disk. Raises IncompleteCheckpointError."""
    if file.stat().st_size != row["bytes"] or sha256_of(file) != row["sha256"]:
        raise IncompleteCheckpointError(f"{where} differs from its manifest")
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _manifest(client: Any, place: Place, trial_id: str, ident: CheckpointId) -> tuple[str, list[dict[str, Any]]]:
    """The folder's name on disk, and the manifest's rows. All files are in the bucket with their sizes."""
    from botocore.exceptions import ClientError

    below = place.parts(CHECKPOINTS, trial_id, ident.name)
    where = place.url(*below[2:])
    key = place.bucket.key(*below, MANIFEST)
    try:
        body = json.loads(client.get_object(Bucket=place.bucket.name, Key=key)["Body"].read())
        folder, rows = body["folder"], checked_rows(body["files"])
        if not is_safe(folder) or "/" in folder or not MARKERS & {r["name"] for r in rows}:
            raise ValueError("the files are not those of a checkpoint")
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in ("NoSuchKey", "404"):
            raise
        raise IncompleteCheckpointError(f"{where} has no {MANIFEST}: the checkpoint is incomplete") from error
    except (ValueError, KeyError, TypeError) as error:
        raise IncompleteCheckpointError(f"{where}/{MANIFEST} is no manifest of a checkpoint: {error!r}") from error
    there = object_sizes(client, place.bucket, *below)
    for row in rows:
        if there.get(row["name"]) != row["bytes"]:
            size = there.get(row["name"])
            problem = "is missing" if size is None else f"has {size} bytes, not {row['bytes']}"
            raise IncompleteCheckpointError(f"{where}/{row['name']} {problem}")
    return folder, rows


def checked_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a manifest, checked. A name decides where a file is written, so only safe names are accepted.

    Raises:
        ValueError: an unsafe name, or no size or sha256.
    """
    found = []
    for row in rows:
        name, size, digest = row["name"], row["bytes"], row["sha256"]
        if not is_safe(name):
            raise ValueError(f"{name!r} is no safe file name")
        if type(size) is not int or size < 0 or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError(f"{name} has no size or sha256")
        found.append({"name": name, "bytes": size, "sha256": digest})
    return found


def checked_name(name: Any) -> str:
    """A name from outside that becomes the name of a folder or a file: one part, without control characters.

    Raises:
        ValueError: the name is not safe.
    """
    if not is_safe(name) or "/" in name:
        raise ValueError(f"{str(name)[:100]!r} is no safe name")
    return name


def is_safe(name: Any) -> bool:
    """Whether a path stays below the folder that it is relative to, and has printable characters only."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and all(_PART_OF_A_PATH.fullmatch(part) and set(part) != {"."} for part in PurePosixPath(name).parts or ("",))
    )


def transfer_config() -> Any:
    """How boto3 transfers large files."""
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=4)
