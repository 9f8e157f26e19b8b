"""What a sweep measured, in the form of a forecast: steps by phase, off-step time, elapsed time, model size."""

from __future__ import annotations

from cost.forecast.step_profile import fit_profile
from sweeps.forecast.measurements import hardware_of, measured_runs, model_name, model_size
from sweeps.journal.journal import load
from sweeps.journal.trial_reports import trial_reports
from tests.sweeps.in_process import a_sweep


def test_phases_of_a_step_sum_to_its_wall_clock_and_elapsed_time_is_explained(tmp_path) -> None:
    sweep = a_sweep(tmp_path)
    sweep.run()
    record = load(sweep.ledger, sweep.journal.record.sweep_id)
    reports = trial_reports(sweep.ledger, record.sweep_id)
    runs = measured_runs(sweep.ledger, record)
    assert len(runs) == len(record.trials)
    for run, trial_id in zip(runs, record.trials, strict=True):
        assert run.name == f"{record.sweep_id}/{trial_id}"
        assert [step.step for step in run.steps] == list(range(1, 21))
        for step in run.steps:
            assert abs(step.ns - reports[trial_id].steps[step.step].wall_ns) <= 10
        assert [off.kind for off in run.off_steps].count("evaluation") == 2
        assert [off.kind for off in run.off_steps].count("start") == 1
        assert run.unexplained_ns is not None
        assert 0 <= run.unexplained_ns < 10**9


def test_a_profile_of_two_sizes_has_measured_lines(tmp_path) -> None:
    sweep = a_sweep(tmp_path)
    sweep.run()
    record = load(sweep.ledger, sweep.journal.record.sweep_id)
    profile = fit_profile(measured_runs(sweep.ledger, record))
    assert {level.completions for level in profile.levels} == {16, 32}
    assert all(profile.line(phase).basis == "measured" for phase in profile.phases)


def test_a_trial_of_two_attempts_has_no_elapsed_time(tmp_path) -> None:
    sweep = a_sweep(tmp_path, "trainer.simulated.preempt_at_step=7", "search.lr_scaling=[hold]")
    sweep.run()
    record = load(sweep.ledger, sweep.journal.record.sweep_id)
    for run, trial in zip(measured_runs(sweep.ledger, record), record.trials.values(), strict=True):
        assert len(trial.attempts) > 1
        assert run.elapsed_ns is None


def test_names_and_sizes_come_from_the_journal(tmp_path) -> None:
    sweep = a_sweep(tmp_path)
    record = load(sweep.ledger, sweep.journal.record.sweep_id)
    assert model_size(record) is None
    sweep.run()
    size = model_size(load(sweep.ledger, record.sweep_id))
    assert size is not None
    assert size.parameters == 1_000_000
    assert hardware_of(record.config["machine"]).card_type == "CPU"
    assert model_name({"kind": "tiny", "path": None}) == "tiny"
    assert model_name({"kind": "hf", "path": "Qwen/Qwen3-0.6B"}) == "hf:Qwen/Qwen3-0.6B"
