"""MLflow's SQLite store under paths with characters that have a meaning in URLs."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from sqlalchemy import make_url

from sweeps.report.mlflow_store import default_uri, experiment_id_of, open_client, sqlite_path, sqlite_uri

HOSTILE = "it's #1?a=50%41 & Zürich"


@pytest.mark.parametrize("text", ["runs/mlflow.db", "/tmp/a%20b.db", f"/tmp/{HOSTILE}/mlflow.db"])
def test_a_uri_names_the_file_that_was_meant(text: str) -> None:
    uri = sqlite_uri(Path(text))
    assert sqlite_path(uri) == Path(text)
    assert make_url(uri).database == text


def test_a_plain_path_is_written_as_it_is() -> None:
    assert sqlite_uri(Path("my runs/mlflow.db")) == "sqlite:///my runs/mlflow.db"


def test_a_store_under_such_a_folder_has_the_experiment_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    root = tmp_path / HOSTILE
    uri = default_uri(root)
    experiment = experiment_id_of(open_client(uri), "test", uri, root / "mlartifacts")
    assert MlflowClient(uri).get_experiment(experiment).name == "test"
    open_client(uri)
    assert (root / "mlflow.db").is_file()
    assert list(tmp_path.iterdir()) == [root]
