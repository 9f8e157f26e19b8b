"""`python -m sweeps forecast`: what the next stage will cost, on which machine, and whether renting is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from sweeps.cli.common import (
    DEFAULT_ROOT,
    Db,
    Json,
    Root,
    chosen,
    echo,
    ledger_location,
    open_ledger,
    print_json,
)

if TYPE_CHECKING:
    from cost.forecast.hardware import Hardware, ModelSize
    from cost.forecast.rent import RentDecision, RentOption
    from cost.forecast.step_profile import StepProfile
    from sweeps.config.types import SweepConfig
    from sweeps.forecast.stage_forecast import LeaseTerms, StageForecast
    from sweeps.journal.state import SweepRecord
    from sweeps.planning.plan import Plan

COLLAPSE_PROBABILITY = "0.08"
"""5 of 65 public GRPO runs died; see docs/diagnosis.md."""


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:  python -m sweeps forecast --to single  |  python -m sweeps forecast --to multi "
        "--machine h100x8 --machine a100x8  |  python -m sweeps forecast --to multi --machine h100x8 --rent",
    )(forecast)


def forecast(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[OVERRIDE]...", help="As for sweep.py: algorithm.lr=1e-6 ...")
    ] = None,
    to: Annotated[str, typer.Option("--to", help="The stage to forecast: smoke, single or multi.")] = "single",
    source: Annotated[
        str, typer.Option("--from", help="The measured sweep: its name, `last`, or `none` for the data sheet alone.")
    ] = "last",
    machine: Annotated[
        list[str] | None, typer.Option("--machine", help="A machine of conf/machine; repeat it to compare.")
    ] = None,
    rent: Annotated[bool, typer.Option("--rent", help="Decide: rent or not, for one trial.")] = False,
    budget: Annotated[str | None, typer.Option(help="With --rent: the most to spend, as '50 USD'.")] = None,
    collapse: Annotated[str, typer.Option(help="With --rent: probability that a run dies.")] = COLLAPSE_PROBABILITY,
    bring_up: Annotated[str, typer.Option(help="Billed time before the first trial of a rented machine.")] = "10m",
    release: Annotated[str, typer.Option(help="Billed time after the last trial of a rented machine.")] = "5m",
    preemptions: Annotated[float, typer.Option(help="Preemptions per hour of a rented machine.")] = 0.0,
    extra: Annotated[
        list[str] | None, typer.Option("--extra", help="A fixed cost of a rented machine: storage=1.50")
    ] = None,
    score: Annotated[bool, typer.Option("--score", help="Score all stored forecasts instead.")] = False,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Forecast a stage from measured steps: time, card-hours and cost at P50 and P90, by category."""
    from cost.forecast.sampling import ForecastError
    from cost.money import MoneyError
    from cost.prices.book import PriceError
    from sweeps.config.types import ConfigError

    try:
        if score:
            _print_score(root, db, as_json)
            return
        terms = _terms(bring_up, release, preemptions, extra or [])
        basis = _basis(source, root, db)
        machines = machine or []
        if rent:
            _print_rent(basis, to, machines, overrides or [], terms, budget, collapse, as_json)
            return
        made, digest = _forecasts(basis, to, machines, overrides or [], terms)
    except (ConfigError, ForecastError, PriceError, MoneyError) as error:
        echo(str(error), err=True)
        raise typer.Exit(2) from error
    stored = _store(root, db, digest, made)
    _print(basis, to, made, stored, as_json)


@dataclass(frozen=True)
class _Basis:
    """What a forecast rests on: a measured sweep, or nothing but data sheets."""

    record: SweepRecord | None
    profile: StepProfile | None
    measured_on: Hardware | None
    model: ModelSize | None

    @property
    def machine(self) -> str:
        return "" if self.record is None else self.record.machine


def _terms(bring_up: str, release: str, preemptions: float, extra: Sequence[str]) -> LeaseTerms:
    from cost.money import exact_decimal, pico_of
    from sweeps.config.text_values import Duration
    from sweeps.forecast.stage_forecast import LeaseTerms

    seconds = {}
    for name, text in (("--bring-up", bring_up), ("--release", release)):
        try:
            seconds[name] = Duration.parse(text).seconds
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=name) from error
    amounts = {}
    for text in extra:
        name, _, amount = text.partition("=")
        if not name or not amount:
            raise typer.BadParameter(f"expected NAME=AMOUNT, got {text!r}", param_hint="--extra")
        amounts[name] = pico_of(exact_decimal(amount, negative=False))
    return LeaseTerms(seconds["--bring-up"], seconds["--release"], preemptions, amounts)


def _basis(source: str, root: Path, db: str | None) -> _Basis:
    from cost.forecast.step_profile import fit_profile
    from sweeps.forecast.measurements import hardware_of, measured_runs, model_size
    from sweeps.journal.journal import load

    if source == "none":
        return _Basis(None, None, None, None)
    with open_ledger(root, db) as ledger:
        record = load(ledger, chosen(ledger, source))
        runs = measured_runs(ledger, record)
    return _Basis(record, fit_profile(runs), hardware_of(record.config["machine"]), model_size(record))


def _forecasts(
    basis: _Basis, to: str, machines: Sequence[str], overrides: Sequence[str], terms: LeaseTerms
) -> tuple[list[StageForecast], str]:
    """One forecast per machine; the measured machine comes first if it can run the stage. And the plan's digest."""
    made, digest = [], ""
    for name in _machines(basis, to, machines):
        cfg, plan = _target(basis, to, name, overrides)
        made.append(_forecast(basis, cfg, plan, terms))
        digest = plan.digest
    return made, digest


def _machines(basis: _Basis, to: str, machines: Sequence[str]) -> list[str]:
    """The measured machine, and the chosen ones; without a choice, the stage's own."""
    chosen_machines = machines or [_compose([f"+stage={to}"]).machine.name]
    return list(dict.fromkeys(name for name in (basis.machine, *chosen_machines) if name))


def _compose(overrides: Sequence[str]) -> SweepConfig:
    from sweeps.config.build import compose

    return compose([*overrides, "dry_run=true"])


def _target(basis: _Basis, to: str, machine: str, overrides: Sequence[str]) -> tuple[SweepConfig, Plan]:
    from sweeps.forecast.stage_forecast import with_recipe_of
    from sweeps.planning.plan import make_plan

    # A forecast is no run: it may be of a machine with too few cards for the stage.
    cfg = _compose([f"+stage={to}", f"machine={machine}", "stage.min_cards=1", *overrides])
    if basis.record is not None:
        cfg = with_recipe_of(cfg, basis.record.config, overrides)
    return cfg, make_plan(cfg)


def _forecast(basis: _Basis, cfg: SweepConfig, plan: Plan, terms: LeaseTerms) -> StageForecast:
    from cost.clock import SystemClock
    from cost.prices.billing import load_rules
    from cost.prices.book import PriceBook
    from sweeps.config.overrides import CONF_DIR
    from sweeps.forecast.stage_forecast import forecast_stage, size_by_name

    return forecast_stage(
        cfg,
        plan,
        profile=basis.profile,
        measured_on=basis.measured_on,
        model=basis.model or size_by_name(cfg),
        book=PriceBook.load(CONF_DIR / "pricing"),
        rules=load_rules(CONF_DIR / "pricing"),
        from_ns=SystemClock().utc_ns(),
        terms=terms,
    )


def _store(root: Path, db: str | None, digest: str, made: Sequence[StageForecast]) -> int:
    """Store the forecasts where there is a ledger; returns how many."""
    from sweeps.forecast.stored import store_forecasts

    place = ledger_location(root, db)
    if isinstance(place, Path) and not place.exists():
        return 0
    with open_ledger(root, db, write=True) as ledger:
        return store_forecasts(ledger, digest, made)


def _print(basis: _Basis, to: str, made: Sequence[StageForecast], stored: int, as_json: bool) -> None:
    from sweeps.report.forecast_text import forecast_json, forecast_text

    if as_json:
        source = None if basis.record is None else basis.record.sweep_id
        print_json({"stage": to, "from": source, "forecasts": forecast_json(made)})
        return
    echo(_title(basis, to))
    echo(forecast_text(made))
    if stored:
        echo("\nStored. After the stage:  python -m sweeps forecast --score")


def _title(basis: _Basis, to: str) -> str:
    if basis.record is None or basis.profile is None:
        return f"Stage {to}, from model size and data sheets alone"
    return f"Stage {to}, from {basis.profile.steps} measured steps of {basis.record.sweep_id} on {basis.machine}"


def _print_score(root: Path, db: str | None, as_json: bool) -> None:
    from dataclasses import asdict

    from cost.prices.book import PriceBook
    from sweeps.config.overrides import CONF_DIR
    from sweeps.forecast.stored import scored, stored_forecasts
    from sweeps.journal.journal import load, sweep_ids
    from sweeps.report.forecast_text import score_table

    with open_ledger(root, db) as ledger:
        records = [load(ledger, sweep_id) for sweep_id in sweep_ids(ledger)]
        records = [record for record in records if record.imported is None]
        count, rows = scored(ledger, records, PriceBook.load(CONF_DIR / "pricing"))
        made = len(stored_forecasts(ledger))
    if as_json:
        print_json({"stored": made, "scored": count, "rows": [asdict(row) for row in rows]})
        return
    echo(f"{made} stored forecasts, {count} with a finished sweep of the same plan on the same machine")
    if rows:
        echo(score_table(rows))


# ---------------------------------------------------------------------------------------------------------------------
# Rent or not
# ---------------------------------------------------------------------------------------------------------------------


def _print_rent(
    basis: _Basis,
    to: str,
    machines: Sequence[str],
    overrides: Sequence[str],
    terms: LeaseTerms,
    budget: str | None,
    collapse: str,
    as_json: bool,
) -> None:
    decision, compared = _rent(basis, to, machines, overrides, terms, budget, collapse)
    if as_json:
        print_json(
            {
                "sentence": decision.sentence,
                "equal_steps": decision.equal_steps.chosen,
                "equal_completions": decision.equal_completions.chosen,
                "reasons": list(decision.reasons),
                "balances_pico": dict(decision.balances_pico),
            }
        )
        return
    echo(f"{_title(basis, to)}\n{compared}")
    for reason in decision.reasons:
        echo("\n".join(wrap(reason, 100, initial_indent="  ", subsequent_indent="    ")))
    echo(decision.sentence)


def _rent(
    basis: _Basis,
    to: str,
    machines: Sequence[str],
    overrides: Sequence[str],
    terms: LeaseTerms,
    budget: str | None,
    collapse: str,
) -> tuple[RentDecision, str]:
    from cost.forecast.rent import RentTerms, decide
    from cost.money import Money, exact_decimal

    if not machines:
        raise typer.BadParameter("name the machines to compare with your own, as --machine h100x8", param_hint="--rent")
    own = basis.machine or "cpu"
    own_cfg, own_plan = _largest(*_target(basis, "single", own, overrides))
    options = [_option(basis, own_cfg, own_plan, own_cfg, own_plan, terms)]
    for name in dict.fromkeys(m for m in machines if m != own):
        cfg, plan = _largest(*_target(basis, to, name, overrides))
        options.append(_option(basis, cfg, plan, own_cfg, own_plan, terms))
    limit = None if budget is None else Money.parse(budget, negative=False)
    known = [o.equal_steps.money.currency for o in options if o.equal_steps is not None]
    decision = decide(
        options,
        RentTerms(
            known[0] if known else "USD",
            None if limit is None else limit.pico,
            collapse_probability=Fraction(exact_decimal(collapse, negative=False)),
        ),
    )
    trial = own_plan.trials[0]
    compared = f"One trial: {own_cfg.stage.steps} steps of {trial.prompts_per_step} x {trial.group_size} on {own}, and "
    return decision, compared + f"the largest trial of stage {to} on each other machine"


def _largest(cfg: SweepConfig, plan: Plan) -> tuple[SweepConfig, Plan]:
    """The plan's trial with the most completions a step, alone."""
    trials = plan.trials or plan.typical
    largest = max(trials, key=lambda trial: trial.prompts_per_step * trial.group_size)
    return cfg, replace(plan, trials=(largest,), typical=(), proposals=0)


def _option(
    basis: _Basis, cfg: SweepConfig, plan: Plan, own_cfg: SweepConfig, own_plan: Plan, terms: LeaseTerms
) -> RentOption:
    from cost.forecast.rent import Outcome, RentOption, equal_completions_steps

    def completions(of: Plan) -> int:
        return of.trials[0].prompts_per_step * of.trials[0].group_size

    steps = own_cfg.stage.steps
    fewer = equal_completions_steps(steps, completions(own_plan), completions(plan))
    outcomes = []
    for count in (steps, fewer):
        made = _forecast(basis, replace(cfg, stage=replace(cfg.stage, steps=count)), plan, terms)
        if made.problem or made.forecast is None or made.money is None:
            return RentOption(cfg.machine.name, cfg.machine.cards, made.rented, impossible=made.problem or "no price")
        outcomes.append(Outcome(made.forecast.lease_ns, made.money))
    return RentOption(cfg.machine.name, cfg.machine.cards, cfg.machine.purchase != "own", *outcomes)
