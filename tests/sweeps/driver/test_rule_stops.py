"""A gate rule of severity `stop` ends a trial while it runs, and what is written then."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from cost.money import Money
from rl.spec import Command, Event, TrialSpec
from rl.trainers.simulated import SimulatedTrainer
from sweeps.driver.controller import SweepController
from sweeps.executors.in_process import InProcessExecutor
from sweeps.journal.journal import TrialState, load, sweep_events
from sweeps.protocol.stage_rules import stage_rules
from tests.sweeps.in_process import Silent, Sweep, a_sweep

SINGLE = ("machine=rtx4090", "search.lr_scaling=[hold]", "stage.steps=120")
COLLAPSE = "trainer.simulated.diverge_at_step=41"


def cost(card_ns: int) -> Money:
    """One pico-dollar a nanosecond."""
    return Money(card_ns, "USD")


def single(folder: Path, *overrides: str) -> Sweep:
    return a_sweep(folder, *SINGLE, *overrides, stage="single", cost_of_cards=cost)


def test_a_collapsing_trial_checkpoints_ends_and_returns_its_cards(tmp_path: Path) -> None:
    sweep = single(tmp_path, COLLAPSE, "search.prompts_per_step=[8]").run()
    (trial,) = sweep.journal.record.trials.values()
    assert trial.state is TrialState.PRUNED
    stop = trial.rule_stop
    assert stop is not None
    assert stop.rule == "reward collapsed"
    assert 41 < stop.step <= 60
    assert trial.checkpoint is not None
    assert trial.checkpoint.step == stop.step
    (usage,) = sweep.ledger.usages.find()
    assert (usage.outcome, usage.to_ns is None) == ("PRUNED", False)
    assert sweep.journal.record.unreleased == []


def test_the_money_not_spent_is_that_of_the_steps_not_run_at_the_measured_time(tmp_path: Path) -> None:
    sweep = single(tmp_path, COLLAPSE, "search.prompts_per_step=[8]").run()
    (trial,) = sweep.journal.record.trials.values()
    assert trial.rule_stop is not None
    steps = next(iter(sweep.reports().values())).steps
    left = 120 - len(steps)
    assert trial.rule_stop.steps_not_run == left
    assert trial.rule_stop.not_spent == cost(sum(step.wall_ns for step in steps.values()) * left // len(steps))


def test_the_stop_is_committed_before_the_command_that_the_trainer_receives(tmp_path: Path) -> None:
    sweep = single(tmp_path, COLLAPSE, "search.prompts_per_step=[8]").run()
    kinds = [e.kind for e in sweep_events(sweep.ledger, "smoke-test-1")]
    assert kinds[kinds.index("rule_stopped") + 1] == "command"
    assert kinds[kinds.index("rule_stopped") - 1] == "messages"
    assert load(sweep.ledger, "smoke-test-1") == sweep.journal.record


def test_a_sweep_of_stopped_trials_closes_the_gate_and_reports_the_money(tmp_path: Path) -> None:
    verdict = single(tmp_path, COLLAPSE, "search.prompts_per_step=[8]").run().verdict()
    failed = {c.name: c.reason for c in verdict.checks if c.ok is False}
    assert set(failed) == {"all steps done", "reward collapsed"}
    assert "steps not run" in failed["reward collapsed"]
    assert "not spent" in failed["reward collapsed"]


class OneDiverges(SimulatedTrainer):
    """Trials of seed 0 collapse."""

    def run(self, spec: TrialSpec, checkpoint: Path | None) -> Generator[Event, Command | None, None]:
        simulated = replace(spec.trainer.simulated, diverge_at_step=41 if spec.seed == 0 else 0)
        yield from super().run(replace(spec, trainer=replace(spec.trainer, simulated=simulated)), checkpoint)


def test_a_healthy_trial_beside_a_stopped_one_keeps_the_gate_open(tmp_path: Path) -> None:
    sweep = single(tmp_path, "search.prompts_per_step=[8]", "search.seeds=[0,1]")
    sweep.executor = InProcessExecutor(sweep.clock, OneDiverges)
    sweep.run()
    assert [t.state for t in sweep.journal.record.trials.values()] == [TrialState.PRUNED, TrialState.COMPLETED]
    verdict = sweep.verdict()
    check = next(c for c in verdict.checks if c.name == "reward collapsed")
    assert (check.ok, check.warning) == (None, True)
    assert "failed in 1 of 2 judged trials" in check.reason
    assert "not spent" in check.reason
    assert verdict.healthy


def test_a_resumed_driver_judges_by_the_steps_of_the_driver_before(tmp_path: Path) -> None:
    sweep = single(tmp_path, "search.prompts_per_step=[8]").run()
    again = SweepController(
        sweep.cfg,
        ledger=sweep.ledger,
        journal=sweep.journal,
        lease_id="lease-1",
        sweep_dir=tmp_path,
        view=Silent(),
        cards=1,
        rules=stage_rules(sweep.cfg).rules,
    )
    assert again.trial_rules.results() == sweep.controller.trial_rules.results()
    assert any(again.trial_rules.results()["reward collapsed"])


def test_no_rule_stops_a_healthy_sweep(tmp_path: Path) -> None:
    sweep = single(tmp_path).run()
    assert {t.state for t in sweep.journal.record.trials.values()} == {TrialState.COMPLETED}
    assert [e for e in sweep_events(sweep.ledger, "smoke-test-1") if e.kind == "rule_stopped"] == []
