"""Who may import whom, and what a command may load before it is needed. Looks at the source and at real processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "cost": {"ray", "torch", "transformers", "mlflow", "hydra", "omegaconf", "rl", "sweeps"},
    "rl": {"hydra", "omegaconf", "mlflow", "cost", "sweeps"},
    "sweeps": set(),
}
"""What no file of a package imports, at its top or inside a function. Only `sweeps` knows both of the others."""

NOWHERE = {"tests", "benchmarks", "sweep"}
HEAVY = {
    "torch",
    "transformers",
    "vllm",
    "ray",
    "mlflow",
    "hydra",
    "reasoning_gym",
    "math_verify",
    "pyarrow",
    "datasets",
}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every import, wherever it stands, and of `import_module("...")`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value.split(".")[0]


@pytest.mark.parametrize("package", list(FORBIDDEN))
def test_no_file_imports_what_its_package_must_not_know(package: str) -> None:
    assert files(package)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files(package)
        for line, name in imported(path.read_text())
        if name in FORBIDDEN[package] | NOWHERE
    ]
    assert wrong == []


def test_an_import_is_seen_wherever_it_stands() -> None:
    source = """
import torch.nn as nn
from rl.spec import Mean
from . import sibling
def f():
    import ray
    importlib.import_module("mlflow.tracking")
    if x: __import__("hydra")
"""
    assert {name for _, name in imported(source)} == {"torch", "rl", "ray", "mlflow", "hydra"}


def loaded_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after running `code`."""
    report = "\nimport sys\nprint('\\nLOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code + report], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("LOADED", 1)[1].split())


@pytest.mark.parametrize(
    "module",
    [
        *("rl.spec", "rl.codec", "rl.tasks", "rl.tasks.rewards", "rl.tasks.evaluation", "rl.tasks.worker"),
        *("rl.trainers", "rl.trainers.simulated", "rl.trainers.logs", "cost"),
    ],
)
def test_the_light_modules_load_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}") & HEAVY == set()


def test_the_contract_loads_only_itself_and_the_standard_library() -> None:
    ours = loaded_by("import rl.spec") - loaded_by("pass")
    assert {name for name in ours if name not in sys.stdlib_module_names} == {"rl"}


@pytest.mark.parametrize("package", ["cost", "sweeps"])
def test_help_of_a_command_loads_nothing_heavy(package: str) -> None:
    code = f"""
import runpy, sys
sys.argv = ["{package}", "--help"]
try:
    runpy.run_module("{package}", run_name="__main__")
except SystemExit as end:
    assert not end.code
"""
    assert loaded_by(code) & HEAVY == set()
