"""The preflight stage in this process: exit codes, what is printed and stored, and what a smoke runs first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from cost.ledger.ledger import Ledger
from rl.tasks.task import Question, Task
from sweeps.config.build import canonical, compose
from sweeps.config.types import ConfigError, SweepConfig
from sweeps.driver import driver, preflight
from sweeps.driver.driver import EXIT_GATE, EXIT_OK, run
from sweeps.driver.trial_check import read_inputs
from sweeps.journal.journal import sweep_ids
from sweeps.journal.preflight_results import results_of
from sweeps.planning.plan import make_plan
from sweeps.protocol.promotion import recipe_hash
from tests.rl.model_folders import tokenizer_files, write_config

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
ANYWHERE = """
def questions():
    return [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(10) for b in range(10)], scorer
def scorer(completion, answer):
    return float(answer in completion.replace(",", " ").split())
"""


@pytest.fixture
def a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def write(source: str) -> str:
        name = f"task_of_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(source)
        return f"task.name={name}:questions"

    return write


def configured(folder: Path, *overrides: str, stage: str = "preflight") -> SweepConfig:
    return compose([f"+stage={stage}", f"paths.root={folder / 'runs'}", *overrides])


SIMULATED = ("trainer=simulated", "task=module")


def good(source: str) -> str:
    return source.replace('answer in completion.replace(",", " ").split()', "completion.strip() == answer")


def test_a_recipe_that_passes_exits_0_prints_the_next_command_and_is_stored(
    tmp_path: Path, a_task: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [*SIMULATED, a_task(good(ANYWHERE))]
    cfg = configured(tmp_path, *typed)
    assert run(cfg, ["+stage=preflight", *typed]) == EXIT_OK
    printed = capsys.readouterr().out
    for text in ("passed  price", "passed  storage", "passed  reward probe", "skipped model", "trainer=simulated has"):
        assert text in printed
    assert "Next:     python sweep.py +stage=smoke trainer=simulated" in printed
    assert max(len(line) for line in printed.splitlines() if not line.startswith("Next:")) <= 100
    with Ledger.open(cfg.database) as ledger:
        (result,) = results_of(ledger, recipe_hash(canonical(cfg)))
        assert ledger.leases.find() == []
    assert (result.passed, result.simulated, result.scope) == (True, True, "all")


def test_a_reward_that_can_be_cheated_exits_3_and_the_cheat_is_shown(
    tmp_path: Path, a_task: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = configured(tmp_path, *SIMULATED, a_task(ANYWHERE))
    assert run(cfg) == EXIT_GATE
    printed = capsys.readouterr().out
    assert "failed  reward probe" in printed
    assert "every answer listed          100%    1.00  <-" in printed
    assert "Gate:     closed: reward probe" in printed


def test_a_dry_run_checks_the_configuration_and_writes_nothing(
    tmp_path: Path, a_task: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = configured(tmp_path, *SIMULATED, a_task(ANYWHERE), "dry_run=true")
    assert run(cfg) == EXIT_OK
    assert "nothing was run" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_a_task_that_cannot_be_read_is_a_bad_configuration(tmp_path: Path, a_task: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match="failed: ZeroDivisionError"):
        run(configured(tmp_path, *SIMULATED, a_task("def questions():\n    return 1 / 0\n")))


def test_a_place_that_cannot_be_written_is_a_bad_configuration(tmp_path: Path, a_task: Callable[[str], str]) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match=r"paths\.root"):
        run(configured(tmp_path, *SIMULATED, a_task(good(ANYWHERE))))


@pytest.fixture
def smoke(tmp_path: Path, a_task: Callable[[str], str]) -> Callable[..., tuple[SweepConfig, bool, str]]:
    """What a real smoke of a task does first, and what is printed meanwhile."""
    console = Console(width=100, record=True, quiet=False)

    def begin(source: str, *overrides: str) -> tuple[SweepConfig, bool, str]:
        typed = ("task=module", a_task(source), "model=tiny", f"paths.cache={tmp_path / 'cache'}", *overrides)
        cfg = configured(tmp_path, *typed, stage="smoke")
        passes = preflight.passes_before_smoke(cfg, make_plan(cfg), read_inputs(cfg), console)
        return cfg, passes, console.export_text()

    return begin


def test_a_smoke_checks_reward_and_questions_before_a_lease_and_only_once(
    smoke: Callable[..., tuple[SweepConfig, bool, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg, passes, printed = smoke(good(ANYWHERE))
    assert passes
    assert "preflight: reward and questions: 3 passed" in printed
    with Ledger.open(cfg.database) as ledger:
        assert [r.scope for r in results_of(ledger, recipe_hash(canonical(cfg)))] == ["reward and questions"]
    monkeypatch.setattr(preflight, "reward_and_questions", None)  # a second run of the checks would call None
    assert smoke(good(ANYWHERE))[1:] == (True, "")


def test_a_smoke_of_a_cheatable_reward_is_refused_and_can_be_forced(
    smoke: Callable[..., tuple[SweepConfig, bool, str]],
) -> None:
    _, passes, printed = smoke(ANYWHERE)
    assert not passes
    assert "Gate:     closed: preflight: reward probe; stage.preflight=false starts without it" in printed
    assert smoke(ANYWHERE, "stage.preflight=false")[1]


def test_a_smoke_of_a_cheatable_reward_ends_before_a_lease_is_opened(
    tmp_path: Path, a_task: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path / "model", "llama", SMALL)
    tokenizer_files(tmp_path / "model")
    (tmp_path / "model/model.safetensors").write_bytes(b"")  # the weights are not read before the first trial
    monkeypatch.setenv("GRPO_LADDER_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setattr(driver, "plan_time", lambda *_: None)
    typed = ("task=module", a_task(ANYWHERE), "model=hf", "model.path=model", "rollout.max_completion_tokens=16")
    cfg = configured(tmp_path, *typed, stage="smoke")
    assert run(cfg) == EXIT_GATE
    assert "Gate:     closed: preflight: reward probe" in capsys.readouterr().out
    with Ledger.open(cfg.database) as ledger:
        assert ledger.leases.find() == []
        assert sweep_ids(ledger) == []


def test_a_simulated_smoke_checks_nothing(tmp_path: Path) -> None:
    cfg = configured(tmp_path, "trainer=simulated", stage="smoke")
    assert preflight.passes_before_smoke(cfg, make_plan(cfg), read_inputs(cfg), Console(quiet=True))
    assert not (tmp_path / "runs").exists()


def test_questions_of_the_stage_are_those_of_the_task(tmp_path: Path, a_task: Callable[[str], str]) -> None:
    cfg = configured(tmp_path, *SIMULATED, a_task(good(ANYWHERE)))
    task, tokenizer, parameters = preflight._inputs(cfg, preflight._spec(cfg, make_plan(cfg)), read_inputs(cfg))
    assert isinstance(task, Task)
    assert isinstance(task.train[0], Question)
    assert (tokenizer, parameters) == (None, None)
