"""Restores checkpoints to this machine's disk before a sweep resumes.

Tested in tests/sweeps/storage/test_uploads.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from sweeps.config.types import StorageConfig
from sweeps.journal.events import CheckpointMoved
from sweeps.journal.journal import Journal, TrialRecord
from sweeps.storage import s3_checkpoints
from sweeps.storage.sweep_bucket import place_of, with_retries


def restore_checkpoints(
    storage: StorageConfig, journal: Journal, sweep_dir: Path, notify: Callable[[str], None]
) -> None:
    """Find the checkpoint of each unfinished trial on this disk, and append its new path to the journal.

    A checkpoint that is not at its reported path is looked up in the sweep's own folder, where an archive puts it, and
    then in the bucket. A trial without a checkpoint starts again from the beginning.

    Raises:
        BucketError: the bucket does not answer. Starting without it would repeat finished work.
    """
    missing = [t for t in journal.record.unfinished if t.checkpoint and not Path(t.checkpoint.path).is_dir()]
    for trial in missing:
        assert trial.checkpoint is not None
        folder = sweep_dir.absolute() / s3_checkpoints.CHECKPOINTS / trial.trial_id
        local = folder / Path(trial.checkpoint.path).name
        if local.is_dir():
            _append_move(journal, trial, trial.checkpoint.step, local, "this machine")
            continue
        if storage.bucket is None:
            continue
        place = place_of(storage, journal.record.sweep_id)
        fetch = partial(s3_checkpoints.fetch_newest, place=place, trial_id=trial.trial_id, folder=folder, warn=notify)
        if (found := with_retries(place.bucket, fetch)) is None:
            continue
        ident, path = found
        url = place.url(s3_checkpoints.CHECKPOINTS, trial.trial_id, ident.name)
        _append_move(journal, trial, ident.step, path, url)
        notify(f"{trial.trial_id} resumes from step {ident.step}, restored from {url}")
    journal.catch_up()


def _append_move(journal: Journal, trial: TrialRecord, step: int, path: Path, source: str) -> None:
    journal.append(CheckpointMoved(trial.trial_id, len(trial.attempts), step, str(path), source))
