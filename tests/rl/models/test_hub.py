"""Models of kind `hf`: local folders, and paths that are refused. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.models import hub, prepare
from rl.spec import ConfigurationError, ModelSpec, TaskSpec

TASK = TaskSpec("file", "unused")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "model.path is empty"),
        ("/nowhere/at/all", "is not a folder"),
        ("./nowhere", "is not a folder"),
        ("EMPTY", "no config.json"),
    ],
)
def test_path_without_model_is_refused(tmp_path: Path, path: str | None, message: str) -> None:
    path = str(tmp_path) if path == "EMPTY" else path
    with pytest.raises(ConfigurationError, match=message):
        prepare(ModelSpec("hf", path=path), TASK, tmp_path / "cache")


def test_local_folder_is_used_in_place(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert prepare(ModelSpec("hf", path=str(tmp_path)), TASK, tmp_path / "cache") == tmp_path
    assert not (tmp_path / "cache").exists()


def test_failed_download_is_refused_with_the_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    requested: list[tuple[str, str | None]] = []

    def no_network(hub_id: str, revision: str | None, allow_patterns: list[str]) -> str:
        requested.append((hub_id, revision))
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    lines: list[str] = []
    with pytest.raises(
        ConfigurationError, match=r"model\.path=owner/name is not a local folder.*LocalEntryNotFoundError"
    ):
        hub.find(ModelSpec("hf", path="owner/name", revision="v1"), lines.append)
    assert requested == [("owner/name", "v1")]
    assert lines == ["downloading owner/name from the Hugging Face hub"]
