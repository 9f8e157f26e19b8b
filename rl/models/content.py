"""Hashes of what a trial reads from files: questions with their answers, and the files of a model.

Two files with other content under the same path are another recipe. Small files are hashed whole. Of weights that are
larger together than `HASHED_WHOLE_BYTES`, each file is identified by its size, its time of modification and the hash of
its first MiB, since reading hundreds of gigabytes would delay every start by minutes.

Tested in tests/rl/models/test_content.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from rl.spec import TaskSpec
from rl.tasks import Task

DIGITS = 12
"""Hexadecimal digits of a hash."""
HASHED_WHOLE_BYTES = 2 * 2**30
HEAD_BYTES = 2**20
_MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def questions_hash(spec: TaskSpec, task: Task) -> str:
    """Of all questions and answers of the source: of its files where it has files, else of the questions of `task`.

    The files are hashed as they are, so the numbers of training and evaluation questions do not matter.
    """
    if spec.kind == "file" and spec.path and Path(spec.path).exists():
        return files_hash(Path(spec.path))
    rows = sorted((q.question_id, [dict(m) for m in q.messages], q.answer) for q in (*task.train, *task.evaluation))
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:DIGITS]


def files_hash(path: Path) -> str:
    """Of a file with questions, or of all such files in a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in (".parquet", ".jsonl"))
    return _joined([f"{p.name} {_whole(p)}" for p in files])


def model_hash(folder: Path) -> str:
    """Of weights, configuration, tokenizer and chat template in `folder`.

    The folder of a downloaded hub model is named by its commit, which identifies its content.
    """
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return folder.name[:DIGITS]
    files = sorted({p for pattern in _MODEL_FILES for p in folder.glob(pattern)})
    whole = sum(p.stat().st_size for p in files) <= HASHED_WHOLE_BYTES
    return _joined([f"{p.name} {_whole(p) if whole else _head(p)}" for p in files])


def _whole(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _head(path: Path) -> str:
    facts = path.stat()
    with path.open("rb") as file:
        return f"{facts.st_size} {facts.st_mtime_ns} {hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()}"


def _joined(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]
