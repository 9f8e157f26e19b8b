"""Which gate a stage needs, and which changes have to be acknowledged before more cards are paid for."""

from __future__ import annotations

import re

import pytest

from sweeps.config.build import canonical, compose
from sweeps.driver.driver import EXIT_GATE, EXIT_OK, run
from sweeps.journal.events import GateCheck, GateVerdict
from sweeps.journal.journal import AttemptRecord, SweepRecord, TrialRecord
from sweeps.journal.outcomes import AttemptOutcome
from sweeps.planning.plan import make_plan
from sweeps.protocol.promotion import promotion, recipe_hash

SIMULATED = "trainer=simulated"


def a_record(stage: str, *overrides: str, opened: bool | None = True) -> SweepRecord:
    record = SweepRecord(f"{stage}-1")
    record.stage, record.config = stage, canonical(compose([f"+stage={stage}", *overrides]))
    record.gate = None if opened is None else GateVerdict("metric", (GateCheck("ok", opened, ""),), simulated=False)
    return record


def a_step(records: list[SweepRecord], *overrides: str):
    return promotion(records, compose(list(overrides)))


def test_the_first_stage_needs_no_gate():
    assert a_step([], "+stage=smoke").problem == ""


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([], "no smoke sweep of this recipe"),
        ([a_record("smoke", opened=False)], "its gate is closed"),
        ([a_record("smoke", opened=None)], "its gate was not judged"),
        ([a_record("smoke", "algorithm=dapo")], "no smoke sweep of this recipe"),
        ([a_record("smoke", "task=products")], "no smoke sweep of this recipe"),
        ([a_record("smoke", SIMULATED)], "no smoke sweep of this recipe"),
    ],
    ids=["nothing", "closed", "unfinished", "another loss", "another task", "simulated"],
)
def test_a_stage_does_not_start_without_the_open_gate_below(records: list[SweepRecord], text: str):
    step = a_step(records, "+stage=single")
    assert text in step.problem
    assert "+stage=smoke" in step.problem
    assert a_step(records, "+stage=single", 'gate.start_anyway="tried elsewhere"').problem == ""


def test_a_later_closed_gate_does_not_revoke_an_open_gate_of_the_same_recipe():
    step = a_step([a_record("smoke"), a_record("smoke", opened=False)], "+stage=single")
    assert step.problem == ""


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("algorithm.lr=3e-5", "algorithm.lr"),
        ("search.prompts_per_step=[16]", "search.prompts_per_step"),
        ("machine=rtx4090", "machine.name"),
        ("rollout=vllm", "rollout.engine"),
    ],
)
def test_rate_batch_machine_and_engine_are_not_the_recipe_and_are_shown(typed: str, key: str):
    step = a_step([a_record("smoke")], "+stage=single", typed)
    assert step.problem == ""
    assert any(change.startswith(f"{key}: ") for change in step.changes)


@pytest.mark.parametrize(
    "typed",
    [
        "rollout.max_completion_tokens=48",
        "rollout.temperature=0.7",
        "algorithm.kl_coef=0.01",
        "algorithm.clip_eps_high=0.3",
        "task.data_seed=3",
        "model=tiny",
    ],
)
def test_lengths_sampling_loss_and_data_are_the_recipe(typed: str):
    assert recipe_hash(canonical(compose(["+stage=smoke"]))) != recipe_hash(canonical(compose(["+stage=smoke", typed])))


def test_more_cards_need_the_acknowledged_changes():
    below = [a_record("single", SIMULATED)]
    first = a_step(below, "+stage=multi", SIMULATED)
    assert "from 1 to 8 cards" in first.problem
    assert any(c.startswith("search.prompts_per_step: ") for c in first.changes)
    token = first.problem.rsplit("=", 1)[1]
    assert a_step(below, "+stage=multi", SIMULATED, f"gate.acknowledge={token}").problem == ""
    other = a_step(below, "+stage=multi", SIMULATED, f"gate.acknowledge={token}", "algorithm.lr=4e-5")
    assert "from 1 to 8 cards" in other.problem


def test_the_printed_commands_lead_through_all_stages(tmp_path, capsys):
    where = f"paths.root={tmp_path}"
    assert run(compose(["+stage=single", SIMULATED, where])) == EXIT_GATE
    assert not (tmp_path / "ledger.db").exists()
    assert run(compose(["+stage=smoke", SIMULATED, where, "search.lr_scaling=[hold]"])) == EXIT_OK
    assert run(compose(["+stage=single", SIMULATED, where, "search.lr_scaling=[hold]", "stage.steps=20"])) == EXIT_OK
    multi = ["+stage=multi", SIMULATED, where, "search.lr_scaling=[hold]", "stage.steps=20"]
    capsys.readouterr()
    assert run(compose(multi)) == EXIT_GATE
    output = " ".join(capsys.readouterr().out.split())
    assert "Follows single-" in output
    token = re.search(r"gate.acknowledge=([\w-]+)", output)
    assert token
    assert run(compose([*multi, f"gate.acknowledge={token[1]}"])) == EXIT_OK


def test_a_stage_may_follow_any_recipe_that_a_search_tried_and_no_other():
    typed = (
        "search=random",
        "search.space.rollout.temperature=[0.8,0.9]",
        "search.trials=2",
        "search.lr_scaling=[hold]",
    )
    record = a_record("smoke", *typed, "search.prompts_per_step=[8]")
    plan = make_plan(compose(["+stage=smoke", *typed, "search.prompts_per_step=[8]"]))
    assert {t.overrides["rollout.temperature"] for t in plan.trials} == {0.8, 0.9}
    record.trials = {t.trial_id: TrialRecord(t) for t in plan.trials}
    step = a_step([record], "+stage=single", "rollout.temperature=0.8")
    assert step.problem == ""
    assert not any("temperature" in change for change in step.changes if not change.startswith("search."))
    assert "no smoke sweep of this recipe" in a_step([record], "+stage=single", "rollout.temperature=1.0").problem
    for trial in record.trials.values():
        trial.pruned, trial.attempts = "low accuracy", [AttemptRecord(1, "lease-1", 0, 0, AttemptOutcome.PRUNED)]
    assert "no smoke sweep of this recipe" in a_step([record], "+stage=single", "rollout.temperature=0.8").problem
