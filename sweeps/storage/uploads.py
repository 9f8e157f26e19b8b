"""Brings a sweep's checkpoints and artifacts off the machine, into an S3 bucket, while it runs and after it.

The journal says which checkpoints there are, the bucket says which of them have arrived, so nothing is remembered here
and a backlog is delivered whenever the bucket answers again: by the sweep itself, by the next start of it, or by
`python -m sweeps push`. Training waits for none of it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cost.copies.s3 import Bucket, BucketError, connected, sha256_of
from cost.ledger.ledger import Ledger
from rl.codec import from_json
from rl.spec import CheckpointWritten, EvalReport
from sweeps.config.types import StorageConfig
from sweeps.journal.event_codec import messages_in
from sweeps.journal.events import CheckpointMoved
from sweeps.journal.journal import Journal, SweepRecord, sweep_events
from sweeps.journal.messages import RecordedMessage
from sweeps.storage import s3_checkpoints
from sweeps.storage.s3_checkpoints import MANIFEST, CheckpointId, Place, Retention

T = TypeVar("T")

ARTIFACTS = ("config.yaml", "cost.csv", "report.html")
"""What a sweep leaves beside its checkpoints and what goes to the bucket at its end, where it is there."""

POLL_SECONDS, MAX_BACKOFF_SECONDS = 2.0, 60.0
TRIES = 5
"""Of one request, by boto3, waiting longer each time."""
GIVE_UP_AFTER = 3
"""Failures in a row, once somebody waits."""


@dataclass(frozen=True)
class Reported:
    """A checkpoint that a trial said it wrote; it may have been removed since."""

    ident: CheckpointId
    path: Path
    bytes: int


@dataclass
class _Trial:
    reported: dict[CheckpointId, Reported] = field(default_factory=dict)
    accuracy: dict[int, float] = field(default_factory=dict)
    """By step, of the evaluations so far."""
    news: bool = False


class Delivery:
    """What is known of one sweep: what its journal reports, and what lies in the bucket."""

    def __init__(
        self,
        client: Any,
        place: Place,
        keep: Retention,
        sweep_dir: Path,
        warn: Callable[[str], None],
        stored: Mapping[str, set[CheckpointId]] | None = None,
    ) -> None:
        self._client, self._place, self._keep = client, place, keep
        self._dir, self._warn = sweep_dir, warn
        self._trials: dict[str, _Trial] = {}
        self._cursor = 0
        self._stored = None if stored is None else dict(stored)
        self._half: dict[str, set[CheckpointId]] = {}
        """What somebody was ended while sending, as it was at the first look."""

    @property
    def stored(self) -> dict[str, set[CheckpointId]]:
        """A copy of what is known to lie in the bucket, by trial."""
        return {trial_id: set(idents) for trial_id, idents in list((self._stored or {}).items())}

    def deliver(self, ledger: Ledger) -> None:
        """Everything that should lie in the bucket and does not; what need not lie there any more goes.

        Raises:
            Exception: whatever boto3 raises, or BucketError; what had arrived stays, the rest comes the next time.
        """
        if self._stored is None:
            self._stored, self._half = s3_checkpoints.stored(self._client, self._place)
        while self._read(ledger):
            for trial_id, trial in self._trials.items():
                if trial.news:
                    self._deliver_trial(trial_id, trial)
                    trial.news = False

    def deliver_artifacts(self) -> None:
        """The sweep's own files. Those of an earlier end, from another machine, stay where this one has none."""
        before = self._artifacts_there()
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

    def left(self, ledger: Ledger, *, look: bool = False) -> list[str]:
        """What is on this machine and should lie in the bucket, but is not known to. `look`: ask the bucket."""
        if look:
            self._stored, self._half = s3_checkpoints.stored(self._client, self._place)
        self._read(ledger)
        found = []
        for trial_id, trial in self._trials.items():
            for one in self._wanted(trial_id, trial):
                found.append(
                    f"checkpoint of trial {trial_id} at step {one.ident.step}: {one.path} ({_size(one.bytes)})"
                )
            newest = max(trial.reported, default=None)
            if look and newest in self._there(trial_id):
                try:
                    s3_checkpoints.verify(self._client, self._place, trial_id, newest)
                except s3_checkpoints.NotWholeError as error:
                    found.append(f"checkpoint of trial {trial_id} at step {newest.step}: {error}")
        there = self._artifacts_there() if look else {}
        for name in ARTIFACTS:
            path = self._dir / name
            if path.is_file() and sha256_of(path) != there.get(name, {}).get("sha256"):
                found.append(str(path))
        return found

    def _read(self, ledger: Ledger) -> bool:
        """Take in what the journal has new; whether there was anything of interest."""
        news = False
        for event in sweep_events(ledger, self._place.sweep_id, after=self._cursor):
            self._cursor = event.sequence
            for said in messages_in(event):
                if said.body["type"] in (CheckpointWritten.type, EvalReport.type):
                    self._hear(said)
                    news = True
        return news

    def _hear(self, said: RecordedMessage) -> None:
        trial, message = self._trials.setdefault(said.trial_id, _Trial()), said.message
        trial.news = True
        if isinstance(message, CheckpointWritten):
            ident = CheckpointId(said.attempt, said.sequence, message.step)
            trial.reported[ident] = Reported(ident, Path(message.path), message.size_bytes)
        elif isinstance(message, EvalReport) and (accuracy := message.accuracy) is not None:
            trial.accuracy[message.step] = accuracy

    def _there(self, trial_id: str) -> set[CheckpointId]:
        return (self._stored or {}).get(trial_id, set())

    def _wanted(self, trial_id: str, trial: _Trial) -> list[Reported]:
        """What should be sent, newest first: on this disk, to be kept, and not in the bucket."""
        there = self._there(trial_id)
        # Of several reports of one folder, the last says what is in it now.
        latest = {self._place_of(trial_id, one): one for _, one in sorted(trial.reported.items())}
        latest = {path: replace(one, path=path) for path, one in latest.items()}
        here = [one for one in latest.values() if one.ident not in there and one.path.is_dir()]
        kept = self._keep.keep({one.ident for one in here} | there, trial.accuracy)
        return sorted((one for one in here if one.ident in kept), key=lambda one: one.ident, reverse=True)

    def _place_of(self, trial_id: str, one: Reported) -> Path:
        """Where it was written, or in the sweep's own folder: then it came in an archive."""
        own = self._dir / s3_checkpoints.CHECKPOINTS / trial_id / one.path.name
        return own if not one.path.is_dir() and own.is_dir() else one.path

    def _deliver_trial(self, trial_id: str, trial: _Trial) -> None:
        assert self._stored is not None
        there = self._stored.setdefault(trial_id, set())
        for one in self._wanted(trial_id, trial):
            try:
                s3_checkpoints.save(self._client, self._place, trial_id, one.ident, one.path)
            except FileNotFoundError:
                s3_checkpoints.delete(self._client, self._place, trial_id, one.ident)
                continue  # the trainer has removed it: a newer one is there, or on its way
            there.add(one.ident)
        for ident in there - self._keep.keep(there, trial.accuracy):
            s3_checkpoints.delete(self._client, self._place, trial_id, ident)
            there.discard(ident)
        for ident in self._half.pop(trial_id, set()) - there:
            if there and ident < max(there):
                s3_checkpoints.delete(self._client, self._place, trial_id, ident)

    def _artifact_key(self, name: str) -> str:
        return self._place.bucket.key(*self._place.parts("artifacts", name))

    def _artifacts_there(self) -> dict[str, dict[str, Any]]:
        from botocore.exceptions import ClientError

        try:
            found = self._client.get_object(Bucket=self._place.bucket.name, Key=self._artifact_key(MANIFEST))
            return {row["name"]: row for row in s3_checkpoints.checked_rows(json.loads(found["Body"].read())["files"])}
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in ("NoSuchKey", "404"):
                raise
        except (ValueError, KeyError, TypeError) as error:
            self._warn(f"{self._place.url('artifacts', MANIFEST)} is no manifest ({error!r}): it is written anew")
        return {}


def check_bucket(storage: StorageConfig) -> None:
    """The bucket, if there is one, is there and lets us in. One that does not answer now may do so later: no error.

    Raises:
        BucketError: it refuses, or there are no credentials.
    """
    from botocore.exceptions import ClientError, NoCredentialsError

    if storage.bucket is None:
        return
    try:
        with connected(bucket_of_sweeps(storage), 1) as client:
            client.list_objects_v2(Bucket=storage.bucket, MaxKeys=1)
    except BucketError as error:
        cause = error.__cause__
        status = cause.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(cause, ClientError) else 0
        if isinstance(cause, NoCredentialsError) or 400 <= status < 500:
            raise


class Uploader:
    """Delivers one sweep's checkpoints in a thread of its own until `close`. The bucket may be slow, or down."""

    def __init__(
        self,
        storage: StorageConfig,
        sweep_id: str,
        sweep_dir: Path,
        open_ledger: Callable[[], Ledger],
        warn: Callable[[str], None],
    ) -> None:
        self._place, self._keep, self._dir = Place(bucket_of_sweeps(storage), sweep_id), retention(storage), sweep_dir
        self._open_ledger, self._warn = open_ledger, warn
        self._closing, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._delivery: Delivery | None = None
        self._failures = 0
        self._done = False

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout_seconds: float) -> list[str]:
        """Deliver what is left, artifacts too, for at most this long; what is still on this machine only.

        Gives up earlier where the bucket does not answer at all.
        """
        self._closing.set()
        self._thread.join(timeout_seconds)
        self._over.set()
        if self._done:
            return []
        known = self._delivery.stored if self._delivery else {}
        with self._open_ledger() as ledger:
            return Delivery(None, self._place, self._keep, self._dir, self._warn, known).left(ledger)

    def _run(self) -> None:
        with self._open_ledger() as ledger:
            while not self._over.is_set():
                try:
                    with connected(self._place.bucket, TRIES) as client:
                        self._deliver(client, ledger)
                        return
                except Exception as error:
                    self._failures += 1
                    if self._failures == 1:
                        self._warn(f"checkpoints are on this machine only for now: {first_line(error)}")
                    if self._closing.is_set() and self._failures >= GIVE_UP_AFTER:
                        return
                    self._wait(min(2.0**self._failures, MAX_BACKOFF_SECONDS))

    def _deliver(self, client: Any, ledger: Ledger) -> None:
        """Until it is over."""
        self._delivery = Delivery(client, self._place, self._keep, self._dir, self._warn)
        while not self._over.is_set():
            last_round = self._closing.is_set()
            self._delivery.deliver(ledger)
            self._failures = 0
            if last_round:
                self._delivery.deliver_artifacts()
                self._done = True
                return
            self._wait(POLL_SECONDS)

    def _wait(self, seconds: float) -> None:
        (self._over if self._closing.is_set() else self._closing).wait(seconds)


def push(
    storage: StorageConfig, ledger: Ledger, sweep_id: str, sweep_dir: Path, warn: Callable[[str], None]
) -> list[str]:
    """Deliver now what the bucket has not; asks a few times, waiting longer each time. What is left afterwards.

    Raises:
        BucketError: the bucket does not answer, or refuses.
    """
    for failures in range(1, GIVE_UP_AFTER + 1):
        try:
            with connected(bucket_of_sweeps(storage), TRIES) as client:
                delivery = Delivery(
                    client, Place(bucket_of_sweeps(storage), sweep_id), retention(storage), sweep_dir, warn
                )
                delivery.deliver(ledger)
                delivery.deliver_artifacts()
                return delivery.left(ledger, look=True)
        except BucketError:
            if failures == GIVE_UP_AFTER:
                raise
            time.sleep(2.0**failures)
    raise AssertionError("unreachable")


def unsaved(storage: StorageConfig, ledger: Ledger, sweep_id: str, sweep_dir: Path) -> list[str]:
    """What of a sweep's checkpoints and artifacts would go with this machine, a line each; empty: it may go.

    The bucket is asked; what lies there is compared in size with its manifest. Without a bucket, or with one that does
    not answer, everything on this machine is named. The ledger is not looked at: a server keeps it, or a snapshot.
    """
    warn: Callable[[str], None] = lambda text: None  # noqa: E731
    if storage.bucket is None:
        place = Place(Bucket("none"), sweep_id)
        return Delivery(None, place, retention(storage), sweep_dir, warn).left(ledger)
    place = Place(bucket_of_sweeps(storage), sweep_id)
    try:
        with connected(place.bucket) as client:
            return Delivery(client, place, retention(storage), sweep_dir, warn).left(ledger, look=True)
    except BucketError as error:
        return [str(error), *Delivery(None, place, retention(storage), sweep_dir, warn).left(ledger)]


def bring_back(storage: StorageConfig, journal: Journal, sweep_dir: Path, tell: Callable[[str], None]) -> None:
    """Have the checkpoints that unfinished trials go on from on this disk, and say in the journal where they are now.

    One that is not where it was reported is looked for in this sweep's own folder (it came in an archive), then in the
    bucket; where there is none, the trial starts afresh.

    Raises:
        BucketError: the bucket does not answer, so that the work of a trial would be done again for nothing.
    """
    missing = [t for t in journal.record.unfinished if t.checkpoint and not Path(t.checkpoint.path).is_dir()]
    for trial in missing:
        assert trial.checkpoint is not None
        folder = sweep_dir.absolute() / s3_checkpoints.CHECKPOINTS / trial.trial_id
        here = folder / Path(trial.checkpoint.path).name
        if here.is_dir():
            _moved(journal, trial.trial_id, trial.checkpoint.step, here, "this machine")
            continue
        if storage.bucket is None:
            continue
        place = Place(bucket_of_sweeps(storage), journal.record.sweep_id)
        newest = partial(s3_checkpoints.fetch_newest, place=place, trial_id=trial.trial_id, folder=folder, warn=tell)
        if (found := _patiently(place.bucket, newest)) is None:
            continue
        ident, path = found
        url = place.url(s3_checkpoints.CHECKPOINTS, trial.trial_id, ident.name)
        _moved(journal, trial.trial_id, ident.step, path, url)
        tell(f"{trial.trial_id} goes on from step {ident.step}, fetched from {url}")
    journal.catch_up()


def unsaved_text(sweep_id: str, lines: Sequence[str], shown: int = 5) -> str:
    """What to tell a person about what `unsaved` found."""
    more = [f"  and {len(lines) - shown} more"] if len(lines) > shown else []
    first = f"Not off this machine yet; `python -m sweeps push {sweep_id}` delivers it:"
    return "\n".join([first, *(f"  {line}" for line in lines[:shown]), *more])


def storage_of(record: SweepRecord) -> StorageConfig:
    """As the sweep was configured; with today's values of what its version did not know."""
    today = {"keep_last": 2, "keep_best": True, "keep_first": True, "wait_seconds": 300.0}
    return from_json(StorageConfig, today | dict(record.config["storage"]))


def retention(storage: StorageConfig) -> Retention:
    return Retention(storage.keep_last, storage.keep_best, storage.keep_first)


def bucket_of_sweeps(storage: StorageConfig) -> Bucket:
    assert storage.bucket is not None
    return Bucket(storage.bucket, storage.prefix, storage.endpoint_url, storage.region)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _moved(journal: Journal, trial_id: str, step: int, path: Path, source: str) -> None:
    attempts = len(journal.record.trials[trial_id].attempts)
    journal.append(CheckpointMoved(trial_id, attempts, step, str(path), source))


def _patiently(bucket: Bucket, ask: Callable[[Any], T]) -> T:
    """What it comes to, after a few failures in a row at most. Raises BucketError."""
    for failures in range(1, GIVE_UP_AFTER):
        try:
            with connected(bucket, TRIES) as client:
                return ask(client)
        except BucketError:
            time.sleep(2.0**failures)
    with connected(bucket, TRIES) as client:
        return ask(client)


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size} B"
