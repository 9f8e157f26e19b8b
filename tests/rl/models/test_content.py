"""Hashes of questions and of model files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rl.models import content, tiny
from rl.models.content import model_hash, questions_hash
from rl.spec import TaskSpec
from rl.tasks import load_task


def a_task(path: Path, rows: list[tuple[str, str]], eval_questions: int = 1) -> TaskSpec:
    path.write_text("\n".join(json.dumps({"question": q, "answer": a}) for q, a in rows))
    return TaskSpec("file", "t", path=str(path), eval_questions=eval_questions)


def hash_of(spec: TaskSpec) -> str:
    return questions_hash(spec, load_task(spec))


ROWS = [("1 + 1", "2"), ("1 + 2", "3"), ("1 + 3", "4")]


@pytest.mark.parametrize("changed", [[*ROWS[:2], ("1 + 4", "4")], [*ROWS[:2], ("1 + 3", "5")], ROWS[:2]])
def test_another_question_or_answer_under_the_same_path_changes_the_hash(tmp_path: Path, changed):
    before = hash_of(a_task(tmp_path / "q.jsonl", ROWS))
    assert hash_of(a_task(tmp_path / "q.jsonl", changed)) != before


def test_the_number_of_evaluation_questions_and_the_folder_do_not_change_the_hash(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    before = hash_of(a_task(tmp_path / "q.jsonl", ROWS))
    assert hash_of(a_task(tmp_path / "q.jsonl", ROWS, eval_questions=2)) == before
    assert hash_of(a_task(tmp_path / "elsewhere/q.jsonl", ROWS)) == before


def a_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"w" * 3_000_000)
    (folder / "chat_template.jinja").write_text("x")
    return folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "chat_template.jinja"])
def test_weights_configuration_and_template_are_the_content_of_a_model(tmp_path: Path, name: str):
    folder = a_model(tmp_path / "m")
    before = model_hash(folder)
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert model_hash(folder) != before


def test_a_copied_model_has_the_same_hash_and_other_files_do_not_matter(tmp_path: Path):
    first, second = a_model(tmp_path / "a"), a_model(tmp_path / "b")
    os.utime(second / "model.safetensors", (1, 1))
    (second / "README.md").write_text("notes")
    assert model_hash(first) == model_hash(second)


def test_large_weights_are_identified_by_size_time_and_head(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(content, "HASHED_WHOLE_BYTES", 1_000_000)
    folder = a_model(tmp_path / "m")
    before = model_hash(folder)
    os.utime(folder / "model.safetensors", (1, 1))
    assert model_hash(folder) != before


def test_a_downloaded_hub_model_is_identified_by_its_commit(tmp_path: Path):
    folder = tmp_path / "models--o--m" / "snapshots" / ("ab" * 20)
    folder.parent.mkdir(parents=True)
    assert model_hash(a_model(folder)) == ("ab" * 20)[: content.DIGITS]


def test_a_tiny_model_is_trained_anew_for_other_questions_under_the_same_path(tmp_path: Path):
    before = tiny.folder_name(a_task(tmp_path / "q.jsonl", ROWS))
    assert tiny.folder_name(a_task(tmp_path / "q.jsonl", ROWS)) == before
    assert tiny.folder_name(a_task(tmp_path / "q.jsonl", ROWS[:2])) != before
