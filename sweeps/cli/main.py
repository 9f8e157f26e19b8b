"""`python -m sweeps`: the state and the history of sweeps, requests to their drivers, and deliveries to MLflow."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweeps.cli import diagnose, forecast, import_log, transfer
from sweeps.cli.common import (
    DEFAULT_ROOT,
    Db,
    Json,
    Reason,
    Root,
    Sweep,
    chosen,
    echo,
    ledger_location,
    open_ledger,
    print_json,
)

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from sweeps.journal.journal import Journal, SweepRecord, TrialRecord
    from sweeps.report.timeline import TimelineRow

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Show and diagnose sweeps, stop or cancel them, deliver curves to MLflow, move sweeps between machines.",
    epilog="Examples:  python -m sweeps status  |  python -m sweeps show last  |  python -m sweeps status --json",
)


@app.command()
def status(root: Root = DEFAULT_ROOT, db: Db = None, as_json: Json = False) -> None:
    """Show every sweep, newest last: its trials by state, and its gate."""
    from cost.ledger.release_requests import UNCONFIRMED, unconfirmed_releases, unconfirmed_text
    from sweeps.journal.journal import decisions, load, replay, sweep_ids

    place = ledger_location(root, db)
    with open_ledger(root, db) as ledger:
        releases, unaccounted = unconfirmed_releases(ledger), _unaccounted(ledger)
        if as_json:
            found = [_status_row(place, load(ledger, i), details=True) for i in sweep_ids(ledger)]
            print_json({"sweeps": found, UNCONFIRMED: releases, "unaccounted": unaccounted})
            return
        # The table needs neither trainer messages nor the return of cards.
        rows = [_status_row(place, replay(i, decisions(ledger, i, {"released"}))) for i in sweep_ids(ledger)]
    from sweeps.report.console import make_console
    from sweeps.report.fitted_table import Column, FittedTable

    table = FittedTable(
        (
            Column("sweep"),
            Column("stage", drop=2),
            Column("machine", drop=1),
            Column("trials", wraps=True),
            Column("state"),
            Column("gate"),
        )
    )
    for row in rows:
        trials = ", ".join(f"{n} {state.lower().replace('_', ' ')}" for state, n in row["trials"].items())
        table.add_row(row["sweep"], row["stage"], row["machine"], trials, row["state"], row["gate"] or "-")
    console = make_console()
    console.print(table)
    for lease_id, text in releases.items():
        console.print(unconfirmed_text(lease_id, text), soft_wrap=True)
    for sentence in unaccounted.values():
        console.print(sentence, soft_wrap=True)


def _unaccounted(ledger: Ledger) -> dict[str, str]:
    """Rented machines that sweeps have left without a confirmed release, each with its possible cost since."""
    from cost.reports import unaccounted

    if not (found := unaccounted.unaccounted_times(ledger)):
        return {}
    from cost.prices.book import PriceBook
    from sweeps.config.overrides import CONF_DIR

    return unaccounted.describe(found, PriceBook.load(CONF_DIR / "pricing"), ledger.now_ns())


@app.command()
def show(
    sweep: Sweep = "last",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    messages: Annotated[bool, typer.Option("--messages", help="Include every trainer message.")] = False,
    as_json: Json = False,
) -> None:
    """Show the events of one sweep in time order, with their costs."""
    from cost.money import money_text
    from cost.prices.book import PriceError
    from sweeps.journal.journal import decisions, replay, sweep_events
    from sweeps.report.timeline import read_costs, still_running, timeline

    with open_ledger(root, db) as ledger:
        sweep_id = chosen(ledger, sweep)
        decided = list(decisions(ledger, sweep_id))
        record = replay(sweep_id, decided)
        now_ns = record.last_ns if record.simulated else max(record.last_ns, ledger.now_ns())
        ends = [e.at_ns for e in decided if e.kind == "driver_ended"]
        try:
            costs = read_costs(ledger, sweep_id, ends, now_ns, money_text)
        except PriceError as error:
            costs = None
            echo(f"Costs unknown: {error}", err=True)
        lines = timeline(sweep_events(ledger, sweep_id) if messages else decided, costs)
        if costs:
            lines = itertools.chain(lines, still_running(record, costs, now_ns))
        _print_timeline(sweep_id, lines, as_json)


@app.command()
def track(
    sweep: Annotated[str, typer.Argument(help="A sweep's name, `last`, or `all`.")] = "all",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    uri: Annotated[str | None, typer.Option("--uri", help="MLflow's tracking URI; default: that of the sweep.")] = None,
) -> None:
    """Deliver new journal events to MLflow. Repeatable."""
    from cost.commands import command_text
    from cost.secrets import is_masked, mask_secrets
    from sweeps.journal.journal import sweep_ids
    from sweeps.report.mlflow_store import default_uri
    from sweeps.report.mlflow_sync import MlflowSync, first_line, tracking_of

    without_password: dict[str, list[str]] = {}
    with open_ledger(root, db) as ledger:
        for sweep_id in sweep_ids(ledger) if sweep == "all" else [chosen(ledger, sweep)]:
            tracking = tracking_of(ledger, sweep_id)
            where = uri or tracking["uri"] or default_uri(root)
            if uri is None and is_masked(where):
                without_password.setdefault(where, []).append(sweep_id)
                continue
            try:
                sync = MlflowSync(where, tracking["experiment"], root / "mlartifacts", sweep_id)
                sync.deliver(ledger)
            except Exception as error:
                echo(f"MLflow at {mask_secrets(where)} does not answer: {first_line(error)}", err=True)
                raise typer.Exit(1) from error
            for name, reason in sync.refused.items():
                echo(f"{sweep_id}: MLflow refuses {name!r} ({reason}); it is left out", err=True)
            echo(f"{sweep_id}: MLflow at {mask_secrets(where)} has everything")
        for where, sweeps in without_password.items():
            command = command_text("sweeps", "track", sweeps[-1], "--uri", where, place=ledger.place)
            text = f"the password of MLflow at {where} is not stored. Type it, for each sweep: {command}"
            echo(f"{', '.join(sweeps)}: {text}", err=True)
    if without_password:
        raise typer.Exit(2)


@app.command()
def stop(
    sweep: Sweep = "last",
    reason: Reason = "requested",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Stop the driver of a sweep. Trials write a checkpoint, and the sweep can be resumed."""
    from cost.ledger.ledger import HEARTBEAT_NS
    from cost.ledger.sweep_lock import lock_owner
    from cost.records import LedgerError
    from sweeps.journal.events import OperatorRequest

    with open_ledger(root, db, write=True) as ledger:
        journal = _journal(ledger, sweep)
        record = journal.record
        if lock_owner(ledger_location(root, db), record.sweep_id) is None:
            how = f"it ended ({record.ended})" if record.ended else "its driver died; the same command resumes it"
            raise LedgerError(f"{record.sweep_id} has no running driver: {how}")
        journal.append(OperatorRequest("stop", reason))
    echo(f"{record.sweep_id}: its driver stops at its next heartbeat, within {HEARTBEAT_NS // 10**9} s")


@app.command()
def cancel(
    sweep: Sweep = "last",
    trial: Annotated[list[str] | None, typer.Option("--trial", help="A trial; default: all unfinished trials.")] = None,
    reason: Reason = "requested",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Cancel trials: running ones are stopped, and none is started or resumed any more."""
    from cost.records import LedgerError
    from sweeps.journal.events import OperatorRequest, SearchEnded
    from sweeps.journal.journal import TrialState

    with open_ledger(root, db, write=True) as ledger:
        journal = _journal(ledger, sweep)
        record = journal.record
        left = {t.trial_id for t in record.unfinished}
        cancelled = sorted(left) if trial is None else trial
        for trial_id in cancelled:
            if trial_id not in record.trials:
                known = ", ".join(record.trials)
                raise LedgerError(f"{record.sweep_id} has no trial {trial_id!r}; it has: {known}")
            if trial_id not in left:
                raise LedgerError(f"{trial_id} has ended already: {record.trials[trial_id].state}")
        to_propose = record.to_propose if trial is None else 0
        if to_propose:
            journal.append(SearchEnded(len(record.trials)))
        elif not cancelled:
            raise LedgerError(f"{record.sweep_id} has no unfinished trial")
        journal.append(OperatorRequest("cancel", reason, tuple(cancelled)))
        running = [t for t in cancelled if record.trials[t].state is TrialState.RUNNING]
    stopping = f"; {len(running)} running; they stop at their next report" if running else ""
    echo(f"{record.sweep_id}: {len(cancelled) + to_propose} trials cancelled{stopping}")


def _journal(ledger: Ledger, sweep: str) -> Journal:
    from sweeps.journal.journal import Journal

    return Journal(ledger, chosen(ledger, sweep))


def _status_row(place: str | Path, record: SweepRecord, *, details: bool = False) -> dict[str, Any]:
    from cost.ledger.sweep_lock import lock_owner
    from cost.periods import instant_text
    from sweeps.journal.journal import TrialState

    owner = lock_owner(place, record.sweep_id) if record.ended is None else None
    states = [t.state for t in record.trials.values()]
    to_propose = {"TO_PROPOSE": record.to_propose} if record.to_propose else {}
    return {
        "sweep": record.sweep_id,
        "stage": record.stage,
        "machine": record.machine,
        "planned_at": instant_text(record.planned_ns),
        "simulated": record.simulated,
        "trials": {str(s): n for s in TrialState if (n := states.count(s))} | to_propose,
        "state": record.ended or ("running" if owner else "lost"),
        "driver": str(owner) if owner else None,
        "gate": None if record.gate is None else record.gate.status,
        **({"details": [_trial_row(t) for t in record.trials.values()]} if details else {}),
    }


def _trial_row(trial: TrialRecord) -> dict[str, Any]:
    return {
        "trial": trial.trial_id,
        "state": str(trial.state),
        "attempts": len(trial.attempts),
        "step": trial.summary.step,
        "prompts_per_step": trial.planned.prompts_per_step,
        "group_size": trial.planned.group_size,
        "lr": trial.planned.lr,
        "lr_scaling": list(trial.planned.names),
        "seed": trial.planned.seed,
        "acc": trial.summary.acc,
        "checkpoint": trial.checkpoint.path if trial.checkpoint else None,
    }


def _print_timeline(sweep_id: str, lines: Iterable[TimelineRow], as_json: bool) -> None:
    from cost.periods import instant_text
    from cost.printable import printable_line

    if as_json:
        rows = [
            {"at": instant_text(t.at_ns), "kind": t.kind, "text": t.text, **({"cost": t.money} if t.money else {})}
            for t in lines
        ]
        print_json({"sweep": sweep_id, "events": rows})
        return
    from rich.text import Text

    from sweeps.report.console import WIDTH, make_console

    console = make_console()
    console.print(sweep_id)
    width = min(console.width, WIDTH)
    for line in lines:
        money = f"  {line.money}" if line.money else ""
        text = Text(f"{instant_text(line.at_ns)[:19]}  {printable_line(line.text)}", style=line.style)
        text.truncate(width - len(money), overflow="ellipsis", pad=bool(money))
        console.print(text.append(money, style="bold"), no_wrap=True, overflow="ignore", crop=False)


@app.command()
def deadman(
    sweep: Annotated[str, typer.Option(help="The sweep to watch, by name.")],
    after: Annotated[
        str, typer.Option(help="Time without heartbeats of a dead driver before machine.down runs: 90s, 15m, 2h.")
    ],
    root: Root = DEFAULT_ROOT,
    db: Annotated[str | None, typer.Option("--db", envvar="GRPO_LADDER_DB", help="The ledger's database.")] = None,
) -> None:
    """Release the machine of a dead driver. The driver starts this process if machine.deadman is set."""
    from sweeps.config.text_values import Duration
    from sweeps.driver.deadman import watch

    try:
        seconds = Duration.parse(after).seconds
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--after") from error
    if not (root / sweep).is_dir():
        echo(f"There is no sweep {sweep!r} in {root}", err=True)
        raise typer.Exit(2)
    watch(ledger_location(root, db), root / sweep, seconds, lambda text: echo(f"{_now()}  {text}"))


def _now() -> str:
    import time

    from cost.periods import instant_text

    return instant_text(time.time_ns())


diagnose.add_to(app)
import_log.add_to(app)
forecast.add_to(app)
transfer.add_to(app)
