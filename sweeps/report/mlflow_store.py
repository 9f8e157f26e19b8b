"""The MLflow store: its default location, a client, and the experiment.

Tested in tests/sweeps/report/test_mlflow_sync.py.
"""

from __future__ import annotations

import itertools
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from mlflow import MlflowClient

_SQLITE = "sqlite:///"


def load_mlflow() -> None:
    """Import MLflow in the calling thread.

    The main thread calls this before anything is billed. An import in another thread holds locks that the main thread
    would wait for after Ctrl-C. A missing MLflow is reported by the delivery.
    """
    with suppress(ImportError):
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


def default_uri(root: Path) -> str:
    """The tracking URI of the store in a root folder."""
    return sqlite_uri(root.absolute() / "mlflow.db")


def sqlite_uri(path: Path) -> str:
    """The URI of a SQLite store. SQLAlchemy decodes `%` in it and ends the path at `?`."""
    return _SQLITE + str(path).replace("%", "%25").replace("?", "%3F")


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store; None for other stores."""
    if not uri.startswith(_SQLITE):
        return None
    return Path(unquote(uri.removeprefix(_SQLITE).partition("?")[0]))


def open_client(uri: str) -> MlflowClient:
    """A client; a missing SQLite store is created."""
    # MLflow logs its table migrations at INFO, which tells a person who runs a sweep nothing.
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    if (path := sqlite_path(uri)) and not path.exists():
        _create_store(path)
    client = MlflowClient(tracking_uri=uri)
    if path:
        _remove_encoded_folder(uri, path)
    return client


def _remove_encoded_folder(uri: str, path: Path) -> None:
    """MLflow does not decode the URI where it makes the store's folder: remove the empty one that it made."""
    made = Path(uri.removeprefix(_SQLITE)).parent
    if made != path.parent:
        with suppress(OSError):
            os.removedirs(made)


def _create_store(path: Path) -> None:
    """Create a SQLite store atomically: MLflow cannot use a store whose first migration was interrupted."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        SqlAlchemyStore(sqlite_uri(partial), (path.parent / "mlartifacts").absolute().as_uri()).engine.dispose()
        with suppress(FileExistsError):  # another driver has created the store, and may be using it
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def experiment_id_of(client: MlflowClient, name: str, uri: str, artifacts: Path) -> str:
    """The id of the experiment, created if it does not exist.

    MLflow keeps the name of a deleted experiment: where a person deleted the experiment, `NAME-2` takes its place.
    """
    for number in itertools.count(1):
        candidate = name if number == 1 else f"{name}-{number}"
        experiment = client.get_experiment_by_name(candidate)
        if experiment is None:
            # By default, a local store would put artifacts into ./mlruns of the current folder.
            local = uri.startswith("sqlite:")
            return client.create_experiment(candidate, artifacts.absolute().as_uri() if local else None)
        if experiment.lifecycle_stage == "active":
            return experiment.experiment_id
    raise AssertionError
