"""The time in a plan on a machine that was never used: seconds of the real trainer instead of a data sheet.

A process of its own loads the model, samples a few tokens and trains on them (`rl.trainers.native.calibration`). The
driver itself loads neither torch nor a model.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rl.codec import from_json, to_json
from rl.trainers.native.calibration import Calibration
from sweeps.config.types import SweepConfig
from sweeps.forecast.step_time import StepTime, from_data_sheet, measured, parameters_of
from sweeps.journal.journal import SweepRecord
from sweeps.planning.plan import Plan, trial_spec

ALLOWANCE = 1.5
"""A bound on a trial's time is this many times the calibrated time."""
TIMEOUT_SECONDS = 180.0
SMALLEST_MODEL, LARGEST_MODEL = 1e7, 1e9
"""Parameters. A smaller model trains in minutes anyway; a larger one takes longer to load than its plan is worth."""
LENGTH_SHARE = 0.75
"""Assumed mean length of a completion as a share of its limit."""
BYTES_PER_PARAMETER = 12
"""Of a checkpoint: fp32 weights and two moments of AdamW."""
DISK_BYTES_PER_SECOND = 500e6


def plan_time(
    records: Sequence[SweepRecord], cfg: SweepConfig, plan: Plan, show: Callable[[str], None]
) -> StepTime | None:
    """From an earlier sweep; else calibrated now, if the model is on this host; else from the data sheet."""
    return measured(records, cfg) or calibrated(cfg, plan, show) or from_data_sheet(cfg)


def calibrated(cfg: SweepConfig, plan: Plan, show: Callable[[str], None]) -> StepTime | None:
    """Seconds of a trial, measured now; None where that is not possible here.

    Possible for the native trainer on this host's CPU or card, if the model is in the cache and neither tiny nor large.
    """
    trials = plan.trials or plan.typical
    if not _possible(cfg) or not trials:
        return None
    largest = max(trials, key=lambda trial: trial.prompts_per_step * trial.group_size)
    spec = trial_spec(cfg, largest, attempt=1, sweep_dir=Path(cfg.paths.root) / "calibration")
    show("  Measuring this machine with the model, for the plan ...")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rl.trainers.native.calibration"],
            input=json.dumps(to_json(spec)),
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_SECONDS,
            cwd=Path(__file__).resolve().parents[2],
        )
        return step_time(from_json(Calibration, json.loads(done.stdout)), cfg)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None  # building the trials reports what is wrong


def step_time(found: Calibration, cfg: SweepConfig) -> StepTime:
    """Seconds per step, per completion and per trial from the calibrated parts."""
    limit, rollout = cfg.rollout.max_completion_tokens, cfg.rollout
    completion = limit * found.row_seconds + LENGTH_SHARE * limit * found.train_token_seconds
    batch = found.prompt_seconds + limit * found.turn_seconds
    answers = cfg.task.eval_questions * cfg.evaluation.samples_per_question
    evaluation = math.ceil(answers / rollout.max_batch_completions) * batch + answers * limit * found.row_seconds
    every = cfg.evaluation.every_steps
    evaluations = 1 + (-(-cfg.stage.steps // every) if every else 1)
    checkpoints = -(-cfg.stage.steps // cfg.trainer.checkpoint_every_steps)
    checkpoint = BYTES_PER_PARAMETER * found.parameters / DISK_BYTES_PER_SECOND
    return StepTime(
        completion,
        found.startup_seconds + evaluations * evaluation + checkpoints * checkpoint,
        f"calibrated on this machine in {found.startup_seconds:.0f} s of loading and a few steps of short completions",
        ALLOWANCE,
        seconds_per_turn=batch + found.train_step_seconds,
        completions_per_turn=rollout.max_batch_completions,
    )


def _possible(cfg: SweepConfig) -> bool:
    parameters = parameters_of(cfg)
    here = cfg.machine.cluster in ("auto", "local") and not cfg.machine.up
    right_size = parameters is not None and SMALLEST_MODEL <= parameters <= LARGEST_MODEL
    one_card = cfg.trainer.name == "native" and cfg.search.cards_per_trial == 1
    if not (one_card and here and right_size and _device_is_here(cfg)):
        return False
    from rl.models import is_prepared

    return is_prepared(cfg.model, cfg.task, Path(cfg.paths.cache))


def _device_is_here(cfg: SweepConfig) -> bool:
    """Whether trials of this configuration would run on this host's own device."""
    return cfg.machine.device == "cpu" or Path("/dev/nvidia0").exists()
