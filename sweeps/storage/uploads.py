"""Uploads a sweep's checkpoints and artifacts to an S3 bucket, while the sweep runs and after its end.

The journal lists the checkpoints, and the bucket those that have been uploaded. No other state is kept, so the sweep
itself, its next start, or `python -m sweeps push` can upload a backlog. Training never waits for an upload.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cost.commands import command_text
from cost.copies.s3 import Bucket, BucketError, s3_client, sha256_of
from cost.ledger.ledger import Ledger
from rl.spec import CheckpointWritten, EvalReport
from sweeps.config.types import StorageConfig
from sweeps.journal.event_codec import messages_in
from sweeps.journal.journal import sweep_events
from sweeps.journal.messages import RecordedMessage
from sweeps.storage import s3_checkpoints, sweep_bucket
from sweeps.storage.s3_checkpoints import MANIFEST, CheckpointId, Place, Retention
from sweeps.storage.sweep_bucket import place_of, retention_of, with_retries

ARTIFACTS = ("config.yaml", "cost.csv", "report.html")
"""Files in a sweep's folder that are uploaded at its end, if they exist."""

POLL_SECONDS, MAX_BACKOFF_SECONDS = 2.0, 60.0


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A checkpoint that a trainer reported. Its folder may have been pruned since."""

    ident: CheckpointId
    path: Path
    bytes: int


@dataclass
class _TrialCheckpoints:
    reported: dict[CheckpointId, ReportedCheckpoint] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    """By step, of the evaluations so far."""
    changed: bool = False


class SweepUpload:
    """One sweep's checkpoints and artifacts: those in its journal, and those in the bucket.

    Args:
        client: an S3 client; None only compares with `uploaded`.
        uploaded: the checkpoints in the bucket by trial; None: the bucket is listed before the first upload.
    """

    def __init__(
        self,
        client: Any,
        place: Place,
        keep: Retention,
        sweep_dir: Path,
        warn: Callable[[str], None],
        uploaded: Mapping[str, set[CheckpointId]] | None = None,
    ) -> None:
        self._client, self._place, self._keep = client, place, keep
        self._dir, self._warn = sweep_dir, warn
        self._trials: dict[str, _TrialCheckpoints] = {}
        self._cursor = 0
        self._uploaded = None if uploaded is None else dict(uploaded)
        self._incomplete: dict[str, set[CheckpointId]] = {}
        """Checkpoints whose upload was interrupted, from the first listing."""

    @property
    def uploaded(self) -> dict[str, set[CheckpointId]]:
        """A copy of the checkpoints known to be in the bucket, by trial."""
        return {trial_id: set(idents) for trial_id, idents in list((self._uploaded or {}).items())}

    def upload(self, ledger: Ledger) -> None:
        """Upload every checkpoint that is due, and delete those that retention no longer keeps.

        Raises:
            Exception: any error of boto3, or BucketError. Finished uploads stay; the next call does the rest.
        """
        if self._uploaded is None:
            self._uploaded, self._incomplete = s3_checkpoints.stored(self._client, self._place)
        while self._read_journal(ledger):
            for trial_id, trial in self._trials.items():
                if trial.changed:
                    self._upload_trial(trial_id, trial)
                    trial.changed = False

    def upload_artifacts(self) -> None:
        """Upload the sweep's own files. A file that this machine does not have is left as it is in the bucket."""
        before = self._artifacts_in_bucket()
        rows = dict(before)
        for name in ARTIFACTS:
            path = self._dir / name
            if not path.is_file():
                continue
            rows[name] = {"name": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            if rows[name] != before.get(name):
                self._client.upload_file(str(path), self._place.bucket.name, self._artifact_key(name))
        if rows != before:
            body = json.dumps({"format": 1, "files": list(rows.values())}, indent=1).encode()
            self._client.put_object(Bucket=self._place.bucket.name, Key=self._artifact_key(MANIFEST), Body=body)

    def missing(self, ledger: Ledger, *, list_bucket: bool = False) -> list[str]:
        """What exists on this machine only and should be in the bucket, one line each.

        Args:
            list_bucket: ask the bucket what it has and verify each newest checkpoint there.
        """
        if list_bucket:
            self._uploaded, self._incomplete = s3_checkpoints.stored(self._client, self._place)
        self._read_journal(ledger)
        found = []
        for trial_id, trial in self._trials.items():
            for due in self._due(trial_id, trial):
                size = _size_text(due.bytes)
                found.append(f"checkpoint of trial {trial_id} at step {due.ident.step}: {due.path} ({size})")
            newest = max(trial.reported, default=None)
            if list_bucket and newest in self._uploaded_of(trial_id):
                try:
                    s3_checkpoints.verify(self._client, self._place, trial_id, newest)
                except s3_checkpoints.IncompleteCheckpointError as error:
                    found.append(f"checkpoint of trial {trial_id} at step {newest.step}: {error}")
        in_bucket = self._artifacts_in_bucket() if list_bucket else {}
        for name in ARTIFACTS:
            path = self._dir / name
            if path.is_file() and sha256_of(path) != in_bucket.get(name, {}).get("sha256"):
                found.append(str(path))
        return found

    def _read_journal(self, ledger: Ledger) -> bool:
        """Add the journal's new checkpoints and evaluations; whether there were any."""
        changed = False
        for event in sweep_events(ledger, self._place.sweep_id, after=self._cursor):
            self._cursor = event.sequence
            for recorded in messages_in(event):
                if recorded.body["type"] in (CheckpointWritten.type, EvalReport.type):
                    self._add(recorded)
                    changed = True
        return changed

    def _add(self, recorded: RecordedMessage) -> None:
        trial, message = self._trials.setdefault(recorded.trial_id, _TrialCheckpoints()), recorded.message
        trial.changed = True
        if isinstance(message, CheckpointWritten):
            ident = CheckpointId(recorded.attempt, recorded.sequence, message.step)
            trial.reported[ident] = ReportedCheckpoint(ident, Path(message.path), message.size_bytes)
        elif isinstance(message, EvalReport) and (accuracy := message.accuracy) is not None:
            trial.accuracy[message.step] = accuracy

    def _uploaded_of(self, trial_id: str) -> set[CheckpointId]:
        return (self._uploaded or {}).get(trial_id, set())

    def _due(self, trial_id: str, trial: _TrialCheckpoints) -> list[ReportedCheckpoint]:
        """Checkpoints that are on this disk, kept by retention and not in the bucket; newest first."""
        uploaded = self._uploaded_of(trial_id)
        # Where a folder was reported several times, the last report describes its content.
        by_path = {self._path_of(trial_id, one): one for _, one in sorted(trial.reported.items())}
        local = [
            replace(one, path=path) for path, one in by_path.items() if one.ident not in uploaded and path.is_dir()
        ]
        kept = self._keep.keep({one.ident for one in local} | uploaded, trial.accuracy)
        return sorted((one for one in local if one.ident in kept), key=lambda one: one.ident, reverse=True)

    def _path_of(self, trial_id: str, one: ReportedCheckpoint) -> Path:
        """The reported path, or the sweep's own folder, where an archive puts checkpoints."""
        own = self._dir / s3_checkpoints.CHECKPOINTS / trial_id / one.path.name
        return own if not one.path.is_dir() and own.is_dir() else one.path

    def _upload_trial(self, trial_id: str, trial: _TrialCheckpoints) -> None:
        assert self._uploaded is not None
        uploaded = self._uploaded.setdefault(trial_id, set())
        for one in self._due(trial_id, trial):
            try:
                s3_checkpoints.save(self._client, self._place, trial_id, one.ident, one.path)
            except FileNotFoundError:
                s3_checkpoints.delete(self._client, self._place, trial_id, one.ident)
                continue  # the trainer has pruned it: a newer one exists, or is being written
            uploaded.add(one.ident)
        for ident in uploaded - self._keep.keep(uploaded, trial.accuracy):
            s3_checkpoints.delete(self._client, self._place, trial_id, ident)
            uploaded.discard(ident)
        for ident in self._incomplete.pop(trial_id, set()) - uploaded:
            if uploaded and ident < max(uploaded):
                s3_checkpoints.delete(self._client, self._place, trial_id, ident)

    def _artifact_key(self, name: str) -> str:
        return self._place.bucket.key(*self._place.parts("artifacts", name))

    def _artifacts_in_bucket(self) -> dict[str, dict[str, Any]]:
        from botocore.exceptions import ClientError

        try:
            found = self._client.get_object(Bucket=self._place.bucket.name, Key=self._artifact_key(MANIFEST))
            return {row["name"]: row for row in s3_checkpoints.checked_rows(json.loads(found["Body"].read())["files"])}
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in ("NoSuchKey", "404"):
                raise
        except (ValueError, KeyError, TypeError) as error:
            self._warn(f"{self._place.url('artifacts', MANIFEST)} is no manifest ({error!r}) and is replaced")
        return {}


class Uploader:
    """Uploads one sweep's checkpoints in a background thread until `close`. The bucket may be slow or unavailable."""

    def __init__(
        self,
        storage: StorageConfig,
        sweep_id: str,
        sweep_dir: Path,
        open_ledger: Callable[[], Ledger],
        warn: Callable[[str], None],
    ) -> None:
        self._place, self._keep, self._dir = place_of(storage, sweep_id), retention_of(storage), sweep_dir
        self._open_ledger, self._warn = open_ledger, warn
        self._closing, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)
        self._upload: SweepUpload | None = None
        self._failures = 0
        self._done = False

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_seconds: float) -> list[str]:
        """Upload the rest, artifacts included, within this time; what remains on this machine only.

        Gives up earlier when the bucket does not answer.
        """
        self._closing.set()
        self._thread.join(timeout_seconds)
        self._closed.set()
        if self._done:
            return []
        known = self._upload.uploaded if self._upload else {}
        with self._open_ledger() as ledger:
            return SweepUpload(None, self._place, self._keep, self._dir, self._warn, known).missing(ledger)

    def _run(self) -> None:
        with self._open_ledger() as ledger:
            while not self._closed.is_set():
                try:
                    with s3_client(self._place.bucket, sweep_bucket.REQUEST_TRIES) as client:
                        self._upload_until_closed(client, ledger)
                        return
                except Exception as error:
                    self._failures += 1
                    if self._failures == 1:
                        self._warn(f"upload failed, checkpoints are on this machine only for now: {_first_line(error)}")
                    if self._closing.is_set() and self._failures >= sweep_bucket.MAX_FAILURES:
                        return
                    self._wait(min(2.0**self._failures, MAX_BACKOFF_SECONDS))

    def _upload_until_closed(self, client: Any, ledger: Ledger) -> None:
        self._upload = SweepUpload(client, self._place, self._keep, self._dir, self._warn)
        while not self._closed.is_set():
            last_round = self._closing.is_set()
            self._upload.upload(ledger)
            self._failures = 0
            if last_round:
                self._upload.upload_artifacts()
                self._done = True
                return
            self._wait(POLL_SECONDS)

    def _wait(self, seconds: float) -> None:
        (self._closed if self._closing.is_set() else self._closing).wait(seconds)


def push(
    storage: StorageConfig, ledger: Ledger, sweep_id: str, sweep_dir: Path, warn: Callable[[str], None]
) -> list[str]:
    """Upload everything now, with retries; what remains on this machine only.

    Raises:
        BucketError: the bucket does not answer, or refuses.
    """
    place = place_of(storage, sweep_id)

    def upload(client: Any) -> list[str]:
        sweep_upload = SweepUpload(client, place, retention_of(storage), sweep_dir, warn)
        sweep_upload.upload(ledger)
        sweep_upload.upload_artifacts()
        return sweep_upload.missing(ledger, list_bucket=True)

    return with_retries(place.bucket, upload)


def unsaved(storage: StorageConfig, ledger: Ledger, sweep_id: str, sweep_dir: Path) -> list[str]:
    """The checkpoints and artifacts of a sweep that would be lost with this machine, one line each.

    The bucket is listed, and sizes are compared with the manifests. Without a bucket, or when it does not answer,
    everything on this machine is listed. The ledger is not included: a server or a snapshot has it.
    """

    def ignore(text: str) -> None:
        pass

    keep = retention_of(storage)
    if storage.bucket is None:
        return SweepUpload(None, Place(Bucket("none"), sweep_id), keep, sweep_dir, ignore).missing(ledger)
    place = place_of(storage, sweep_id)
    try:
        with s3_client(place.bucket) as client:
            return SweepUpload(client, place, keep, sweep_dir, ignore).missing(ledger, list_bucket=True)
    except BucketError as error:
        return [str(error), *SweepUpload(None, place, keep, sweep_dir, ignore).missing(ledger)]


def unsaved_text(sweep_id: str, lines: Sequence[str], place: str, shown: int = 5) -> str:
    """The result of `unsaved` for people. `place`: the ledger's, for the command that uploads the rest."""
    more = [f"  and {len(lines) - shown} more"] if len(lines) > shown else []
    first = f"On this machine only; `{command_text('sweeps', 'push', sweep_id, place=place)}` uploads:"
    return "\n".join([first, *(f"  {line}" for line in lines[:shown]), *more])


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _size_text(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size} B"
