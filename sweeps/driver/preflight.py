"""Runs the preflight stage, and the part of it that a smoke runs first. No lease is opened, and nothing is billed.

Tested in tests/sweeps/driver/test_preflight.py.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from cost.copies.s3 import BucketError, s3_client
from cost.ledger.ledger import Ledger
from cost.money import money_text
from cost.records import NoLedgerError, StoreError
from rl.checks.result import CheckResult
from rl.spec import ConfigurationError, TrialSpec
from rl.tasks import Task, load_task
from sweeps.config.build import canonical
from sweeps.config.overrides import COMMAND
from sweeps.config.types import MONEY_KEYS, ConfigError, SweepConfig
from sweeps.driver.finish import EXIT_GATE, EXIT_OK
from sweeps.driver.preconditions import check_writable
from sweeps.driver.trial_check import TrialInputs, inputs_of, read_inputs, trial_problems
from sweeps.journal.preflight_results import PreflightResult, Scope, has_passed, record_result
from sweeps.machines.pricing import Pricing, find_price
from sweeps.planning.plan import Plan, make_plan, trial_spec
from sweeps.protocol.preflight import model_checks, prompts_of, reward_and_questions
from sweeps.protocol.promotion import recipe_hash
from sweeps.report.console import make_console
from sweeps.report.preflight_text import print_checks, totals
from sweeps.scheduling.limits import check_limits
from sweeps.storage.sweep_bucket import bucket_of

BYTES_PER_PARAMETER = 12
"""Of a checkpoint: fp32 weights and two moments of the optimiser."""


def run(cfg: SweepConfig, typed: Sequence[str]) -> int:
    """Run all checks; returns the exit code of `sweep.py`.

    Raises:
        ConfigError: the configuration cannot run; found before the checks.
    """
    console = make_console()
    inputs = read_inputs(cfg)
    cfg = replace(cfg, content=inputs.content)
    plan = make_plan(cfg)
    pricing = find_price(cfg)
    check_limits(cfg, pricing)
    check_writable(Path(cfg.paths.root))
    if problems := trial_problems(cfg, plan, inputs):
        raise ConfigError("\n".join(problems))
    spec = _spec(cfg, plan)
    model = cfg.model.path or cfg.model.kind
    console.print(Text(f"Stage preflight: model {model}, task {cfg.task.name}, {cfg.algorithm.name}", style="bold"))
    if cfg.dry_run:
        console.print("dry_run=true: nothing was run and nothing was written.")
        return EXIT_OK
    task, tokenizer, parameters = _inputs(cfg, spec, inputs)
    results: list[CheckResult] = []

    def add(*found: CheckResult) -> None:
        print_checks(console, found)
        results.extend(found)

    add(_prices(cfg, pricing), _budget(cfg), _storage(cfg), _disk(cfg, parameters))
    add(*reward_and_questions(spec, task, *prompts_of(spec, tokenizer, task)))
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        spec = replace(spec, checkpoint_dir=folder)
        for result in model_checks(spec, parameters, lambda text: console.print(Text(f"        {text}", style="dim"))):
            add(result)
    result = _recorded(cfg, "all", results)
    console.print(f"\nPreflight: {totals(results)}.")
    if not result.passed:
        failed = ", ".join(r.name for r in results if r.status == "failed")
        console.print(Text(f"Gate:     closed: {failed}", style="red"), soft_wrap=True)
        return EXIT_GATE
    overrides = " ".join(shlex.quote(o) for o in typed if not o.startswith("+stage="))
    console.print(Text(f"Next:     {COMMAND} +stage={cfg.stage.next_stage} {overrides}".rstrip()), soft_wrap=True)
    return EXIT_OK


def passes_before_smoke(cfg: SweepConfig, plan: Plan, inputs: TrialInputs, console: Console) -> bool:
    """Run the checks of reward and questions unless this recipe has passed them; print what does not pass.

    Simulated trials read neither questions nor rewards, so nothing is checked for them.
    """
    if not cfg.stage.preflight or cfg.simulated or _passed_before(cfg):
        return True
    spec = _spec(cfg, plan)
    task, tokenizer = inputs_of(spec, inputs)
    if task is None:
        return True
    results = reward_and_questions(spec, task, *prompts_of(spec, tokenizer, task))
    result = _recorded(cfg, "reward and questions", results)
    if shown := [r for r in results if r.status in ("warned", "failed")]:
        print_checks(console, shown)
    console.print(f"  preflight: reward and questions: {totals(results)}")
    if not result.passed:
        names = ", ".join(r.name for r in results if r.status == "failed")
        console.print(
            Text(f"Gate:     closed: preflight: {names}; stage.preflight=false starts without it", style="red"),
            soft_wrap=True,
        )
    return result.passed


def _spec(cfg: SweepConfig, plan: Plan) -> TrialSpec:
    """The first trial of the plan, on this host's CPU."""
    spec = trial_spec(cfg, (*plan.trials, *plan.typical)[0], attempt=1, sweep_dir=Path())
    return replace(spec, cards=1, trainer=replace(spec.trainer, device="cpu"))


def _inputs(cfg: SweepConfig, spec: TrialSpec, inputs: TrialInputs) -> tuple[Task, Any, int | None]:
    """(questions, tokenizer, parameters of the model). Of a simulated trial the questions are read here."""
    try:
        if cfg.simulated:
            return load_task(cfg.task), None, None
        from rl.checks.trial_inputs import read_model_inputs
        from rl.models import prepare

        task, _ = inputs_of(spec, inputs)
        folder = prepare(cfg.model, cfg.task, Path(cfg.paths.cache))
        found = read_model_inputs(folder, "model", with_weights=True)
        if task is None or found.problems:
            raise ConfigError("\n".join(found.problems or inputs.problems))
        return task, found.tokenizer, found.architecture.parameters if found.architecture else None
    except ConfigurationError as error:
        raise ConfigError(str(error)) from error


def _passed_before(cfg: SweepConfig) -> bool:
    if isinstance(cfg.database, Path) and not cfg.database.exists():
        return False
    try:
        with Ledger.open(cfg.database, create=False, read_only=True) as ledger:
            return has_passed(ledger, recipe_hash(canonical(cfg)), simulated=cfg.simulated)
    except NoLedgerError:
        return False
    except StoreError as error:
        raise ConfigError(str(error)) from error


def _recorded(cfg: SweepConfig, scope: Scope, results: Sequence[CheckResult]) -> PreflightResult:
    result = PreflightResult(recipe_hash(canonical(cfg)), scope, cfg.simulated, tuple(results))
    try:
        with Ledger.open(cfg.database) as ledger:
            record_result(ledger, result)
    except StoreError as error:
        raise ConfigError(str(error)) from error
    return result


# ---------------------------------------------------------------------------------------------------------------------
# What a sweep needs beside model and task
# ---------------------------------------------------------------------------------------------------------------------


def _prices(cfg: SweepConfig, pricing: Pricing) -> CheckResult:
    machine = cfg.machine
    if pricing.row is None:
        return CheckResult(
            "price", "warned", f"machine={machine.name} has no price; costs will be UNPRICED.", "Add its price."
        )
    return CheckResult(
        "price",
        "passed",
        f"machine={machine.name} ({machine.sku}) costs {pricing.per_hour_text} an hour, read {pricing.row.day_read}; "
        "its billing rule is known.",
    )


def _budget(cfg: SweepConfig) -> CheckResult:
    limits = {key: amount for key in MONEY_KEYS if (amount := getattr(cfg.budget, key))}
    if not limits:
        return CheckResult("budget", "passed", "No limit is set in budget.*; stored limits apply to every sweep.")
    text = ", ".join(f"budget.{key}={money_text(amount)}" for key, amount in limits.items())
    return CheckResult("budget", "passed", f"{text}, comparable with the machine's price.")


def _storage(cfg: SweepConfig) -> CheckResult:
    """Write a file where sweeps write, read it back and remove it; with a bucket, an object too."""
    name, content = f".preflight-{os.getpid()}", secrets.token_bytes(4096)
    root = Path(cfg.paths.root)
    places = [f"paths.root={cfg.paths.root}"]
    try:
        root.mkdir(parents=True, exist_ok=True)
        path = root / name
        path.write_bytes(content)
        same = path.read_bytes() == content
        path.unlink()
        if cfg.storage.bucket:
            places.append(f"storage.bucket={cfg.storage.bucket}")
            bucket = bucket_of(cfg.storage)
            key = f"{cfg.storage.prefix.rstrip('/')}/{name}".lstrip("/")
            with s3_client(bucket) as client:
                client.put_object(Bucket=bucket.name, Key=key, Body=content)
                same = same and client.get_object(Bucket=bucket.name, Key=key)["Body"].read() == content
                client.delete_object(Bucket=bucket.name, Key=key)
    except (OSError, BucketError) as error:
        return CheckResult("storage", "failed", f"{' and '.join(places)}: {error}", "Give a place that can be written.")
    if not same:
        return CheckResult("storage", "failed", f"{' and '.join(places)}: other bytes were read than written.")
    return CheckResult("storage", "passed", f"4,096 bytes written and read back: {' and '.join(places)}.")


def _disk(cfg: SweepConfig, parameters: int | None) -> CheckResult:
    free = shutil.disk_usage(cfg.paths.root).free
    if parameters is None:
        return CheckResult("free disk", "skipped", f"{free / 1e9:.1f} GB are free; the model's size is not known.")
    each = parameters * BYTES_PER_PARAMETER
    kept = cfg.trainer.keep_checkpoints + 1  # the new one is complete before the old one is removed
    needed = each * kept
    seen = (
        f"{free / 1e9:.1f} GB are free in paths.root={cfg.paths.root}. A trial needs {needed / 1e6:,.0f} MB: {kept} "
        f"checkpoints of {each / 1e6:,.0f} MB"
    )
    if free < needed:
        return CheckResult("free disk", "failed", f"{seen}.", "Free space, or choose another paths.root.")
    return CheckResult("free disk", "passed", f"{seen}.")
