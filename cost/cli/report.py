"""`python -m cost report`: what sweeps and machines cost, as a table, CSV, JSON or FOCUS file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost.cli.common import DEFAULT_ROOT, Db, Json, Pricing, Root, echo, open_ledger

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from cost.prices.book import PriceBook
    from cost.reports.grouped import ReportScope
    from cost.reports.report import Report

FORMATS = ("table", "csv", "json", "focus")


def report(
    sweep: Annotated[
        str | None, typer.Option(help="One sweep, or `last`; default: the latest, or with --by all leases.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="trial, stage, sweep, day, week, month, user, project, cost_center, machine, category or tag:NAME."
        ),
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help="Only cost from this day on, such as 2026-11-01.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only cost before this day, such as 2026-12-01.")] = None,
    tz: Annotated[str, typer.Option(help="Time zone in which days begin.")] = "UTC",
    currency: Annotated[str | None, typer.Option(help="Convert to this currency at the rate of each day.")] = None,
    idle: Annotated[
        str,
        typer.Option(
            help="Idle time: `apart` in rows of its own, `spread` over the trials, or `owner`: leave it to the "
            "machine's owner."
        ),
    ] = "apart",
    as_of: Annotated[str | None, typer.Option(help="Report the ledger as it was at this moment.")] = None,
    form: Annotated[str | None, typer.Option("--format", help="table, csv, json or focus.")] = None,
    focus_version: Annotated[
        str | None,
        typer.Option(help="Version of --format focus: 1.2 (default), or 1.3 with the split by trial in its columns."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
    as_json: Json = False,
) -> None:
    """Report the cost of trials and overheads. The rows sum exactly to the charge of the leases."""
    from cost.money import checked_currency
    from cost.periods import instant_ns, zone_of
    from cost.prices.book import PriceBook
    from cost.records import LedgerError
    from cost.reports.atomic_file import write_text
    from cost.reports.grouped import ReportScope, grouped_report

    with open_ledger(root, db) as ledger:
        form = _checked_format(form, as_json, out, by=by, currency=currency, focus_version=focus_version)
        zone, now_ns = zone_of(tz), ledger.now_ns()
        sweep_id, by = _sweep_and_grouping(ledger, sweep, by, all_leases=form == "focus")
        scope = ReportScope(
            by=by,
            sweep_id=sweep_id,
            from_ns=instant_ns(since, zone) if since else None,
            to_ns=instant_ns(until, zone) if until else None,
            zone=zone,
            currency=checked_currency(currency) if currency else None,
            idle=idle,
            as_of_ns=instant_ns(as_of, zone) if as_of else None,
        )
        if scope.from_ns is not None and scope.to_ns is not None and scope.from_ns >= scope.to_ns:
            raise LedgerError(f"--from {since} is not before --to {until}: the range is empty")
        at_ns = now_ns if scope.as_of_ns is None else min(now_ns, scope.as_of_ns)
        book = PriceBook.load(pricing)
        if form == "focus":
            _write_focus(ledger, book, scope, at_ns, focus_version or "1.2", out)
            return
        found = grouped_report(ledger, book, scope, at_ns)
        if scope.as_of_ns is None:
            found = replace(found, notes=(*found.notes, *_open_risks(ledger, book, now_ns, wrap=form == "table")))
        if form == "table":
            found = replace(found, notes=(*_shares(found), *found.notes))
        text = _formatted(found, form)
        if form == "csv":
            _print_notes(found.notes)
        if out is not None:
            write_text(text, out)
            return
    echo(text, nl=False)


def _shares(report: Report) -> list[str]:
    """One sentence per currency on what the money was spent on."""
    from textwrap import fill

    from cost.reports.shares import shares_text

    return [fill(text, 100) for currency in report.currencies if (text := shares_text(report, currency))]


def _open_risks(ledger: Ledger, book: PriceBook, now_ns: int, *, wrap: bool) -> list[str]:
    """Notes on machines that may cost money although no lease is open: unconfirmed releases, unaccounted time."""
    from textwrap import fill

    from cost.ledger.release_requests import unconfirmed_releases, unconfirmed_text
    from cost.reports import unaccounted

    notes = [unconfirmed_text(lease_id, text) for lease_id, text in unconfirmed_releases(ledger).items()]
    notes += unaccounted.describe(unaccounted.unaccounted_times(ledger), book, now_ns).values()
    return [fill(note, 100, break_on_hyphens=False) for note in notes] if wrap else notes


def _formatted(report: Report, form: str) -> str:
    from cost.reports.csv_json import as_json, csv_text
    from cost.reports.terminal import report_table

    text = {"json": as_json, "csv": csv_text, "table": report_table}[form](report)
    return text if text.endswith("\n") else text + "\n"


def _checked_format(form: str | None, as_json: bool, out: Path | None, **options: str | None) -> str:
    """The format of the output. Raises LedgerError for an option that the format would ignore."""
    from cost.records import LedgerError

    if as_json and form not in (None, "json"):
        raise LedgerError(f"--json and --format {form}: choose one")
    form = form or ("json" if as_json else "csv" if out and out.suffix == ".csv" else "table")
    if form not in FORMATS:
        raise LedgerError(f"unknown format {form!r}; choose one of {', '.join(FORMATS)}")
    ignored = ("by", "currency") if form == "focus" else ("focus_version",)
    if given := [f"--{name.replace('_', '-')}" for name in ignored if options[name]]:
        reason = (
            "a FOCUS file contains every charge in the currency in which it is billed"
            if form == "focus"
            else "it applies to --format focus only"
        )
        raise LedgerError(f"{' and '.join(given)} with --format {form}: {reason}")
    return form


def _write_focus(
    ledger: Ledger, book: PriceBook, scope: ReportScope, now_ns: int, version: str, out: Path | None
) -> None:
    """Write the charges of a scope as a FOCUS file to `out`, or print them."""
    import csv
    import sys

    from cost.records import LedgerError
    from cost.reports import focus
    from cost.reports.focus_columns import VERSIONS, columns
    from cost.reports.grouped import MAX_INCREMENT_NS, scoped_attribution, simulated_note

    if version not in VERSIONS:
        raise LedgerError(f"FOCUS version {version!r} is not supported; choose one of {', '.join(VERSIONS)}")
    first_ns = min((state.from_ns for state in ledger.leases.find()), default=now_ns)
    cuts = focus.month_cuts(first_ns, now_ns + MAX_INCREMENT_NS)
    attribution = scoped_attribution(ledger, book, scope, now_ns, cuts=cuts)
    _print_notes(simulated_note(scope, attribution))
    if out is not None:
        focus.write(attribution, out, version=version)
        return
    # All rows before the header: after an error the output is empty.
    rows = list(focus.rows(attribution, version=version))
    writer = csv.DictWriter(sys.stdout, columns(version), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_notes(notes: tuple[str, ...]) -> None:
    """Print notes to standard error: a CSV file has no place for them."""
    for note in notes:
        echo(note, err=True)


def _sweep_and_grouping(
    ledger: Ledger, sweep: str | None, by: str | None, *, all_leases: bool
) -> tuple[str | None, str]:
    """The sweep of the report (None: all leases), and its grouping.

    Without options: the latest sweep by trial, or all leases by category if no sweep has used a machine.
    """
    from cost.ledger import queries
    from cost.records import LedgerError, NoLedgerError, no_ledger_message

    with ledger.read() as connection:
        sweeps = [attachment.sweep_id for attachment in queries.attachments(connection)]
    if sweep is None and (by or all_leases or (not sweeps and ledger.leases.find())):
        return None, by or ("trial" if sweeps else "category")
    if not sweeps:
        raise NoLedgerError(no_ledger_message(ledger.place))
    if sweep in (None, "last"):
        return sweeps[-1], by or "trial"
    if sweep not in sweeps:
        recent = ", ".join(dict.fromkeys(reversed(sweeps[-50:])))
        raise LedgerError(f"there is no sweep {sweep!r} in the ledger; the latest are {recent}")
    return sweep, by or "trial"
