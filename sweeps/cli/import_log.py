"""`python -m sweeps import-log`: the log of another trainer's run becomes a sweep in journal, MLflow and ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeps.cli.common import DEFAULT_ROOT, Db, Root, echo, exit_on_error, ledger_location

if TYPE_CHECKING:
    from rl.trainers.logs import ImportedRun
    from sweeps.storage.import_log import Billing


def add_to(app: typer.Typer) -> None:
    app.command(
        "import-log",
        epilog="Example:  python -m sweeps import-log train.log --machine h100 --cards 1 && python -m sweeps diagnose",
    )(import_log)


def import_log(
    file: Annotated[Path, typer.Argument(help="The log of a GRPO run: TRL, verl, slime, OpenRLHF, JSON, CSV ...")],
    trainer: Annotated[str, typer.Option("--trainer", help="Whose names the log uses: trl, verl, ...")] = "auto",
    machine: Annotated[str | None, typer.Option(help="Machine in conf/machine that ran it; with --cards.")] = None,
    cards: Annotated[int | None, typer.Option(min=1, help="Cards that the run used.")] = None,
    price_at: Annotated[
        str | None, typer.Option(help="Start of the run, UTC; sets the price. Default: the run ends now.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Import the log of a run: `show`, `diagnose` and `cost report` then work on it. Repeatable."""
    from cost.records import LedgerError
    from rl.trainers.logs import TRAINERS, read_run
    from sweeps.config.types import ConfigError
    from sweeps.protocol.curve_sources import run_of_log
    from sweeps.storage.import_log import import_log as write

    name = {"jsonl": "generic"}.get(trainer, trainer)
    with exit_on_error():
        if name not in ("auto", *TRAINERS):
            raise LedgerError(f"unknown trainer {trainer!r}; known: auto, jsonl, {', '.join(TRAINERS)}")
        if (machine is None) != (cards is None) or (price_at is not None and machine is None):
            raise LedgerError("--machine and --cards are given together, and --price-at only with them")
        try:
            run = read_run(file, name)
            run_of_log(run)  # refuses rows that no curve can be made of
            billing = None if machine is None or cards is None else _billing(run, machine, cards, price_at)
            root.mkdir(parents=True, exist_ok=True)
            done = write(ledger_location(root, db), file, run, billing)
        except (ValueError, ConfigError) as error:  # LogError is a ValueError
            raise LedgerError(str(error)) from error
        except OSError as error:
            raise LedgerError(f"{error.filename or file}: {error.strerror or error}") from error
    echo(done.sweep_id + ("" if done.new_journal or done.new_lease else ": imported before, nothing changes"))
    _track(root, db, done.sweep_id)


def _billing(run: ImportedRun, machine: str, cards: int, price_at: str | None) -> Billing:
    from cost.clock import SystemClock
    from cost.periods import instant_ns, instant_text
    from cost.records import LedgerError
    from sweeps.config.build import compose
    from sweeps.storage.import_log import Billing, duration_ns

    duration, now_ns = duration_ns(run), SystemClock().utc_ns()
    from_ns = now_ns - duration if price_at is None else instant_ns(price_at)
    if from_ns + duration > now_ns:
        raise LedgerError(
            f"a run from {instant_text(from_ns)} on would end at {instant_text(from_ns + duration)}, in the future"
        )
    found = compose(["+stage=smoke", "trainer=simulated", f"machine={machine}"]).machine
    if cards > found.cards:
        raise LedgerError(f"machine {machine} has {found.cards} cards, not {cards}")
    return Billing(found, cards, from_ns, duration)


def _track(root: Path, db: str | None, sweep_id: str) -> None:
    """Deliver the run to MLflow. An outage delays the delivery: `sweeps track` repeats it."""
    from cost.commands import command_text
    from cost.ledger.ledger import Ledger
    from sweeps.report.mlflow_store import default_uri
    from sweeps.report.mlflow_sync import IMPORTED_TRACKING, MlflowSync, first_line

    with Ledger.open(ledger_location(root, db), create=False, read_only=True) as ledger:
        try:
            experiment = IMPORTED_TRACKING["experiment"]
            MlflowSync(default_uri(root), experiment, root / "mlartifacts", sweep_id).deliver(ledger)
        except Exception as error:
            again = command_text("sweeps", "track", sweep_id, place=ledger.place)
            echo(f"MLflow does not answer: {first_line(error)}. Deliver later with: {again}", err=True)
