"""`python -m sweeps diagnose`: named findings on the trials of a sweep, or on the log of any GRPO run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweeps.cli.common import DEFAULT_ROOT, Db, Json, Root, chosen, echo, open_ledger, print_json

if TYPE_CHECKING:
    from rl.trainers.logs import ImportedRun
    from sweeps.protocol.diagnosis.finding import Diagnosis

Diagnoses = list[tuple[str, "Diagnosis"]]
"""A name for people and a diagnosis, per run."""


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:  python -m sweeps diagnose last  |  python -m sweeps diagnose train.log --trainer verl",
    )(diagnose)


def diagnose(
    run: Annotated[
        str, typer.Argument(metavar="SWEEP|LOG", help="A sweep's name, `last`, or the log of a run.")
    ] = "last",
    trial: Annotated[str | None, typer.Option("--trial", help="One trial of the sweep; default: each trial.")] = None,
    trainer: Annotated[str, typer.Option("--trainer", help="Whose names a log uses: trl, verl, ...")] = "auto",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Name what is wrong with a run, with evidence, likely cause, remedy, and what cannot be seen."""
    from sweeps.report.diagnosis_text import diagnosis_json, diagnosis_text, overview

    title, found = _of_log(Path(run), trainer) if Path(run).is_file() else _of_sweep(run, trial, root, db)
    if as_json:
        print_json({"run": title, "diagnoses": {name: diagnosis_json(d) for name, d in found}})
        return
    echo(title)
    if len(found) > 1:
        echo("\n".join(overview(found)))
    for name, diagnosis in found:
        echo("\n" + diagnosis_text(name, diagnosis))


def _of_log(path: Path, trainer: str) -> tuple[str, Diagnoses]:
    from rl.trainers.logs import TRAINERS, LogError, read_run
    from sweeps.protocol.curve_sources import run_of_log
    from sweeps.protocol.diagnosis.diagnose import diagnose as judge

    name = {"jsonl": "generic"}.get(trainer, trainer)
    if name not in ("auto", *TRAINERS):
        raise typer.BadParameter(f"unknown trainer {trainer!r}; known: auto, jsonl, {', '.join(TRAINERS)}")
    try:
        log = read_run(path, name)
        curves = run_of_log(log)
    except (LogError, ValueError) as error:
        echo(str(error), err=True)
        raise typer.Exit(2) from error
    return _title(path, log), [(path.name, judge(curves))]


def _title(source: Path | str, log: ImportedRun) -> str:
    """What the log is, and what a reader of its curves has to know."""
    from sweeps.report.diagnosis_text import wrapped

    notes = [line for note in log.notes for line in wrapped("Note:", note.text, "  ")]
    return "\n".join([f"{source}: {log.format}, names of {log.trainer}, {log.steps} steps", *notes])


def _of_sweep(sweep: str, trial: str | None, root: Path, db: str | None) -> tuple[str, Diagnoses]:
    from cost.records import LedgerError
    from sweeps.journal.journal import decisions, replay
    from sweeps.journal.trial_reports import trial_reports
    from sweeps.protocol.curve_sources import run_of_log, run_of_trial
    from sweeps.protocol.diagnosis.diagnose import diagnose as judge

    with open_ledger(root, db) as ledger:
        sweep_id = chosen(ledger, sweep)
        record = replay(sweep_id, decisions(ledger, sweep_id))
        if record.imported is not None:
            run = record.imported.run
            return f"{sweep_id}: {_title(record.imported.source, run)}", [(sweep_id, judge(run_of_log(run)))]
        if trial is not None and trial not in record.trials:
            raise LedgerError(f"{sweep_id} has no trial {trial!r}; it has: {', '.join(record.trials)}")
        found: Diagnoses = []
        for trial_id, planned in record.trials.items():
            if trial not in (None, trial_id):
                continue
            reports = trial_reports(ledger, sweep_id, {trial_id}).get(trial_id)
            if reports is not None:
                found.append((f"{trial_id} {planned.planned.label}", judge(run_of_trial(record, planned, reports))))
    if not found:
        raise LedgerError(f"{sweep_id}: no trial has reported a step, so there is nothing to diagnose")
    return sweep_id, found
