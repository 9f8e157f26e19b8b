"""Who may import whom, and what a command may load before it is needed. Looks at the source and at real processes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
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


ARROWS = """
cost.bills->cost
cost.bills->cost.charges
cost.bills->cost.ledger
cost.bills->cost.prices
cost.budgets->cost
cost.budgets->cost.charges
cost.budgets->cost.ledger
cost.budgets->cost.prices
cost.charges->cost
cost.charges->cost.ledger
cost.charges->cost.prices
cost.cli->cost
cost.cli->cost.bills
cost.cli->cost.budgets
cost.cli->cost.charges
cost.cli->cost.close
cost.cli->cost.copies
cost.cli->cost.ledger
cost.cli->cost.prices
cost.cli->cost.reports
cost.close->cost
cost.close->cost.charges
cost.close->cost.ledger
cost.close->cost.prices
cost.copies->cost
cost.copies->cost.charges
cost.copies->cost.ledger
cost.copies->cost.prices
cost.forecast->cost
cost.forecast->cost.prices
cost.ledger->cost
cost.ledger->cost.prices
cost.prices->cost
cost.reports->cost
cost.reports->cost.charges
cost.reports->cost.ledger
cost.reports->cost.prices
rl.checks->rl
rl.checks->rl.memory
rl.checks->rl.rollout
rl.checks->rl.tasks
rl.memory->rl
rl.models->rl
rl.models->rl.tasks
rl.parallel->rl
rl.rollout->rl
rl.tasks->rl
rl.trainers->rl
rl.trainers->rl.checks
rl.trainers->rl.models
rl.trainers->rl.rollout
rl.trainers->rl.tasks
sweeps.cli->cost
sweeps.cli->cost.cli
sweeps.cli->cost.copies
sweeps.cli->cost.forecast
sweeps.cli->cost.ledger
sweeps.cli->cost.prices
sweeps.cli->cost.reports
sweeps.cli->rl.trainers
sweeps.cli->sweeps.config
sweeps.cli->sweeps.driver
sweeps.cli->sweeps.forecast
sweeps.cli->sweeps.journal
sweeps.cli->sweeps.planning
sweeps.cli->sweeps.protocol
sweeps.cli->sweeps.report
sweeps.cli->sweeps.storage
sweeps.config->cost
sweeps.config->rl
sweeps.driver->cost
sweeps.driver->cost.charges
sweeps.driver->cost.copies
sweeps.driver->cost.ledger
sweeps.driver->cost.prices
sweeps.driver->cost.reports
sweeps.driver->rl
sweeps.driver->rl.checks
sweeps.driver->rl.memory
sweeps.driver->rl.models
sweeps.driver->rl.tasks
sweeps.driver->sweeps.config
sweeps.driver->sweeps.executors
sweeps.driver->sweeps.forecast
sweeps.driver->sweeps.journal
sweeps.driver->sweeps.machines
sweeps.driver->sweeps.planning
sweeps.driver->sweeps.protocol
sweeps.driver->sweeps.report
sweeps.driver->sweeps.scheduling
sweeps.driver->sweeps.search
sweeps.driver->sweeps.storage
sweeps.executors->cost
sweeps.executors->rl
sweeps.executors->rl.trainers
sweeps.executors->sweeps.config
sweeps.executors->sweeps.journal
sweeps.forecast->cost.charges
sweeps.forecast->cost.forecast
sweeps.forecast->cost.ledger
sweeps.forecast->cost.prices
sweeps.forecast->rl
sweeps.forecast->rl.models
sweeps.forecast->rl.trainers
sweeps.forecast->sweeps.config
sweeps.forecast->sweeps.journal
sweeps.forecast->sweeps.planning
sweeps.journal->cost
sweeps.journal->cost.ledger
sweeps.journal->rl
sweeps.journal->rl.checks
sweeps.journal->rl.trainers
sweeps.journal->sweeps.planning
sweeps.machines->cost
sweeps.machines->cost.charges
sweeps.machines->cost.ledger
sweeps.machines->cost.prices
sweeps.machines->cost.reports
sweeps.machines->rl
sweeps.machines->sweeps.config
sweeps.machines->sweeps.forecast
sweeps.machines->sweeps.journal
sweeps.machines->sweeps.planning
sweeps.planning->rl
sweeps.planning->sweeps.config
sweeps.protocol->cost
sweeps.protocol->rl
sweeps.protocol->rl.checks
sweeps.protocol->rl.tasks
sweeps.protocol->rl.trainers
sweeps.protocol->sweeps.config
sweeps.protocol->sweeps.journal
sweeps.report->cost
sweeps.report->cost.charges
sweeps.report->cost.forecast
sweeps.report->cost.ledger
sweeps.report->cost.prices
sweeps.report->cost.reports
sweeps.report->rl
sweeps.report->rl.checks
sweeps.report->rl.tasks
sweeps.report->sweeps.config
sweeps.report->sweeps.forecast
sweeps.report->sweeps.journal
sweeps.report->sweeps.planning
sweeps.report->sweeps.protocol
sweeps.report->sweeps.search
sweeps.scheduling->cost
sweeps.scheduling->cost.budgets
sweeps.scheduling->cost.charges
sweeps.scheduling->cost.ledger
sweeps.scheduling->cost.prices
sweeps.scheduling->rl
sweeps.scheduling->sweeps.config
sweeps.scheduling->sweeps.forecast
sweeps.scheduling->sweeps.journal
sweeps.scheduling->sweeps.machines
sweeps.search->sweeps.config
sweeps.search->sweeps.journal
sweeps.search->sweeps.planning
sweeps.storage->cost
sweeps.storage->cost.copies
sweeps.storage->cost.ledger
sweeps.storage->cost.prices
sweeps.storage->rl
sweeps.storage->rl.trainers
sweeps.storage->sweeps.config
sweeps.storage->sweeps.journal
"""
"""The imports between sub-packages, one per line. A new line is a decision about the structure."""


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


def sub_package(path: tuple[str, ...]) -> str:
    """The sub-package that a dotted path lies in, as `cost.ledger`; `cost` for the modules of the package itself.

    A package's `__main__` counts as its `cli`: the module only calls `cli.main`.
    """
    if path[1:] == ("__main__",):
        return f"{path[0]}.cli"
    package, *inner = path
    return f"{package}.{inner[0]}" if inner and (ROOT / package / inner[0]).is_dir() else package


def arrows(package: str) -> dict[tuple[str, str], str]:
    """Imports between sub-packages: (importing, imported) and the first place of each."""
    found: dict[tuple[str, str], str] = {}
    for path in files(package):
        place = path.relative_to(ROOT)
        source = sub_package(tuple(part for part in place.with_suffix("").parts if part != "__init__"))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for target in targets:
                parts = tuple(target.split("."))
                if parts[0] in FORBIDDEN and sub_package(parts) != source:
                    found.setdefault((source, sub_package(parts)), f"{place}:{node.lineno}")
    return found


def listed() -> set[tuple[str, str]]:
    return {(source, target) for line in ARROWS.split() for source, _, target in [line.partition("->")]}


def test_every_import_between_sub_packages_is_in_the_list() -> None:
    allowed = listed()
    found = {arrow: place for package in FORBIDDEN for arrow, place in arrows(package).items()}
    new = [f"{place}: {arrow[0]} -> {arrow[1]}" for arrow, place in sorted(found.items()) if arrow not in allowed]
    assert new == [], "an import between sub-packages that ARROWS does not list"
    assert sorted(allowed - set(found)) == [], "ARROWS lists imports that no file makes"


def test_sub_packages_do_not_import_each_other_in_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for source, target in listed():
        graph.setdefault(source, set()).add(target)
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_each_module_has_a_test_file_of_its_name_or_names_the_place_of_its_tests() -> None:
    missing = []
    for package in FORBIDDEN:
        for path in files(package):
            if path.name in ("__init__.py", "__main__.py") or "migrations" in path.parts:
                continue
            place = path.relative_to(ROOT)
            mirrored = ROOT / "tests" / place.with_name(f"test_{path.name}")
            named = re.search(r"Tested in (\S+?)\.?\s", (ast.get_docstring(ast.parse(path.read_text())) or "") + "\n")
            if not mirrored.exists() and not (named and (ROOT / named[1].strip("`")).exists()):
                missing.append(str(place))
    assert missing == []


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
