"""The commands over the ledger: report, check, budget, and the groups `leases` and `prices`.

A command that cannot do what it was asked says why and exits 2; `check` exits 1 where something is wrong.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost.cli.commitments import commitments_app
from cost.cli.common import (
    DEFAULT_ROOT,
    Db,
    Json,
    Pricing,
    Root,
    exit_on_error,
    ledger_location,
    open_ledger,
    print_json,
)
from cost.cli.leases import leases_app
from cost.cli.prices import prices_app
from cost.cli.reconcile import reconcile

if TYPE_CHECKING:
    from cost.ledger.ledger import Ledger
    from cost.money import Money
    from cost.prices.book import PriceBook
    from cost.reports.grouped import ReportScope

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="What it cost: exact reports, machines held, prices, and whether the books are whole.",
    epilog="Examples:  python -m cost report  |  python -m cost report --by day --json  |  python -m cost check",
)
app.add_typer(leases_app, name="leases")
app.add_typer(commitments_app, name="commitments")
app.add_typer(prices_app, name="prices")
app.command()(reconcile)

Endpoint = Annotated[str, typer.Option(help="URL of an S3 server other than AWS; default: boto3's own settings.")]
Region = Annotated[str, typer.Option(help="Region of the bucket; default: boto3's own settings.")]
FORMATS = ("table", "csv", "json", "focus")


@app.command()
def report(
    sweep: Annotated[str | None, typer.Option(help="One sweep; default: the latest, or with --by all.")] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="trial, stage, sweep, day, week, month, user, project, cost_center, machine, category or tag:NAME."
        ),
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help="Only what falls on or after 2026-11-01.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only what falls before 2026-12-01.")] = None,
    tz: Annotated[str, typer.Option(help="Time zone in which days begin.")] = "UTC",
    currency: Annotated[str | None, typer.Option(help="Convert to this currency at the rate of each day.")] = None,
    idle: Annotated[
        str, typer.Option(help="Idle time: apart, spread over the trials, or left to the owner.")
    ] = "apart",
    as_of: Annotated[str | None, typer.Option(help="As the books stood at this moment.")] = None,
    form: Annotated[str | None, typer.Option("--format", help="table, csv, json or focus.")] = None,
    focus_version: Annotated[
        str | None,
        typer.Option(help="Of --format focus: 1.2 (default), or 1.3 with the split by trial in columns of its own."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead.")] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
    as_json: Json = False,
) -> None:
    """What was spent: trials and overheads, summing to the bill exactly."""
    from dataclasses import replace
    from textwrap import fill

    from cost.ledger.release_requests import unconfirmed_releases, unconfirmed_text
    from cost.money import checked_currency
    from cost.periods import instant_ns, zone_of
    from cost.prices.book import PriceBook
    from cost.records import LedgerError
    from cost.reports import unaccounted
    from cost.reports.csv_json import as_json as json_text
    from cost.reports.csv_json import csv_text, write_text
    from cost.reports.grouped import ReportScope, grouped_report
    from cost.reports.terminal import report_table

    with open_ledger(root, db) as ledger:
        form = _form(form, as_json, out, by=by, currency=currency, focus_version=focus_version)
        zone, now = zone_of(tz), ledger.now_ns()
        one, by = _what(ledger, sweep, by, every=form == "focus")
        scope = ReportScope(
            by=by,
            sweep_id=one,
            from_ns=instant_ns(since, zone) if since else None,
            to_ns=instant_ns(until, zone) if until else None,
            zone=zone,
            currency=checked_currency(currency) if currency else None,
            idle=idle,
            as_of_ns=instant_ns(as_of, zone) if as_of else None,
        )
        if scope.from_ns is not None and scope.to_ns is not None and scope.from_ns >= scope.to_ns:
            raise LedgerError(f"--from {since} is not before --to {until}: nothing lies between them")
        at_ns = now if scope.as_of_ns is None else min(now, scope.as_of_ns)
        book = PriceBook.load(pricing)
        if form == "focus":
            _focus(ledger, book, scope, at_ns, focus_version or "1.2", out)
            return
        found = grouped_report(ledger, book, scope, at_ns)
        if scope.as_of_ns is None:
            more = [unconfirmed_text(name, text) for name, text in unconfirmed_releases(ledger).items()]
            more += unaccounted.describe(unaccounted.unaccounted_times(ledger), book, now).values()
            if form == "table":
                more = [fill(text, 100, break_on_hyphens=False) for text in more]
            found = replace(found, notes=(*found.notes, *more))
        text = {"json": json_text, "csv": csv_text, "table": report_table}[form](found)
        text = text if text.endswith("\n") else text + "\n"
        if form == "csv":
            _print_notes(found.notes)
        if out is not None:
            write_text(text, out)
            return
    typer.echo(text, nl=False)


@app.command()
def check(root: Root = DEFAULT_ROOT, db: Db = None, pricing: Pricing = None, as_json: Json = False) -> None:
    """Are the books whole? Says nothing and exits 0 when they are; names what is wrong and exits 1 when not."""
    from cost.close.check import run_checks
    from cost.prices.book import PriceBook

    with open_ledger(root, db) as ledger:
        findings = run_checks(ledger, PriceBook.load(pricing), ledger.now_ns())
    if as_json:
        print_json({"findings": [{"check": f.check, "where": f.where, "what": f.what} for f in findings]})
    else:
        for finding in findings:
            typer.echo(f"{finding.check}: {finding.where}: {finding.what}")
    if findings:
        raise typer.Exit(1)


@app.command()
def correct(
    lease_id: Annotated[str, typer.Argument(help="The lease that it belongs to.")],
    amount: Annotated[str, typer.Option(help="Up or down, in the lease's currency: '-5.00 USD'.")],
    reason: Annotated[str, typer.Option(help="Why, such as the number of a credit note.")],
    category: Annotated[str, typer.Option(help="credit, refund, fee, storage, egress, tax ...")] = "adjustment",
    sweep: Annotated[str, typer.Option(help="The sweep that it belongs to, if any.")] = "",
    trial: Annotated[str, typer.Option(help="The trial that it belongs to, if any.")] = "",
    at: Annotated[
        str | None, typer.Option(help="The day it is reported under (UTC); default: the lease's end.")
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="Its id: the same one again changes nothing.")] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Change what a lease cost by an entry of its own: a credit note, a fee, disks, a closed month. Prints its id."""
    from cost.money import Money
    from cost.periods import instant_ns
    from cost.records import Correction

    with open_ledger(root, db, write=True) as ledger:
        money, state = Money.parse(amount), ledger.leases.get(lease_id)
        at_ns = instant_ns(at) if at else min(state.to_ns or ledger.now_ns(), ledger.now_ns())
        correction = Correction(
            name or f"hand-{ledger.now_ns():x}",
            *(lease_id, category, money.pico, money.currency, at_ns, reason),
            sweep_id=sweep,
            trial_id=trial,
        )
        ledger.corrections.add(correction)
    typer.echo(correction.correction_id)


@app.command()
def backup(
    to: Annotated[
        str | None, typer.Option("--to", help="Also a snapshot of ledger and price book there: s3://bucket/prefix.")
    ] = None,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """A whole copy of the ledger beside it, one per day, also while sweeps run. Prints where it is."""
    from cost.copies.s3 import parse_s3_url
    from cost.copies.s3_snapshot import upload_snapshot

    with open_ledger(root, db) as ledger:
        made = ledger.backup()
        typer.echo(made or "this ledger is on a server: back it up by the server's own means")
        if to is not None:
            place = parse_s3_url(to, endpoint_url=endpoint_url, region=region)
            typer.echo(upload_snapshot(ledger, place, pricing=pricing))


@app.command()
def restore(
    copy: Annotated[Path | None, typer.Argument(help="The copy to go back to: a file ending in .bak.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Or a snapshot: s3://bucket/prefix for the latest, or .../VERSION.")
    ] = None,
    endpoint_url: Endpoint = "",
    region: Region = "",
    root: Root = DEFAULT_ROOT,
    db: Db = None,
) -> None:
    """Put a copy in the ledger's place. A file that stood there is set aside, not deleted; a server's database
    (`--db postgresql://...`) has to be empty."""
    from cost.copies.restore import restore_ledger as put_back
    from cost.copies.s3 import parse_s3_url
    from cost.copies.s3_snapshot import restore_snapshot as from_archive
    from cost.ledger.database import shown_place
    from cost.records import LedgerError

    prices, target = None, ledger_location(root, db)
    with exit_on_error():
        if (copy is None) == (source is None):
            raise LedgerError("name one copy: a file ending in .bak, or --from s3://bucket/prefix")
        if source is not None:
            place = parse_s3_url(source, endpoint_url=endpoint_url, region=region)
            what, aside, prices = from_archive(place, target, root)
        else:
            assert copy is not None
            what, aside = str(copy), put_back(copy, target)
        shown = shown_place(target)
    typer.echo(f"{shown} is now what {what} was" + (f"; the one before is {aside}" if aside else ""))
    if prices is not None:
        typer.echo(f"its price book is in {prices}; use it with --pricing {prices}")


@app.command()
def close(
    period: Annotated[str, typer.Option(help="The month, such as 2026-11 (UTC).")],
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
) -> None:
    """Freeze a month: from then on only corrections change it, and `check` finds whatever else would."""
    from cost.close.close_month import close_month
    from cost.close.months import month_corrections
    from cost.money import Money
    from cost.prices.book import PriceBook

    with open_ledger(root, db, write=True) as ledger:
        totals = close_month(ledger, PriceBook.load(pricing), period, ledger.now_ns())
        corrections = month_corrections(ledger, period)
    found = {"": totals.values(), ", corrections ": corrections.values()}
    sums = {name: Money.sums(Money(*amount) for amount in amounts) for name, amounts in found.items()}
    what = "".join(name + ", ".join(map(str, amounts)) for name, amounts in sums.items() if amounts) or "nothing"
    typer.echo(f"{period} is closed: {len(totals)} leases, {what}")


@app.command()
def budget(
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A limit that sweeps hold to from now on: 'month=500 USD', 'stage:multi=200 USD', 'sweep:NAME=...'; "
            "'month=none' lifts it.",
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
    db: Db = None,
    pricing: Pricing = None,
    as_json: Json = False,
) -> None:
    """What may be spent, what running trials may still cost, what was spent, what is left: this month, and every stage
    and sweep with a limit.

    Sweeps hold to these limits and to those of their own configuration (budget.sweep_limit and others): a trial that
    does not fit is not started, and at a limit a sweep stops, or pauses.
    """
    from cost.budgets import budget as money
    from cost.money import rounded
    from cost.prices.book import PriceBook
    from cost.reports.text_table import table_text

    with (
        open_ledger(root, db, write=bool(setting), create=bool(setting)) as ledger,
        _one_transaction(ledger, bool(setting)),
    ):
        for text in setting or []:
            money.set_limit(ledger, *money.parse_setting(text))
        found, notes = money.budgets(ledger, PriceBook.load(pricing), ledger.now_ns())
    if as_json:
        amounts = ("limit", "reserved", "spent", "free")
        rows = [
            {"scope": b.scope, "name": b.name, "simulated": b.simulated}
            | {k: None if getattr(b, k) is None else str(getattr(b, k)) for k in amounts}
            for b in found
        ]
        print_json({"budgets": rows, "notes": list(notes)})
        return
    rows = [
        (b.name, *(f"{rounded(m.pico, _places(m))} {m.currency}" if m is not None else "-" for m in amounts))
        for b in found
        for amounts in [(b.limit, b.reserved, b.spent, b.free)]
    ]
    columns = ("limit", "reserved", "spent", "free")
    typer.echo(table_text(("budget", *columns), rows, right=columns))
    for note in notes:
        typer.echo(note)


def _one_transaction(ledger: Ledger, writes: bool) -> AbstractContextManager[None]:
    """A limit that cannot be shown, for want of an exchange rate, is not set either."""
    return ledger.transaction() if writes else nullcontext()


def _places(amount: Money) -> int:
    """To the cent, or to as many places as show that it is not nothing."""
    return next((places for places in (2, 4, 6, 9) if abs(amount.pico) >= 5 * 10 ** (12 - places)), 2)


def _form(form: str | None, as_json: bool, out: Path | None, **only_some: str | None) -> str:
    """The format that was asked for; what it has no use for is refused, not passed over."""
    from cost.records import LedgerError

    if as_json and form not in (None, "json"):
        raise LedgerError(f"--json and --format {form}: choose one")
    form = form or ("json" if as_json else "csv" if out and out.suffix == ".csv" else "table")
    if form not in FORMATS:
        raise LedgerError(f"there is no format {form!r}; one of {', '.join(FORMATS)}")
    useless = ("by", "currency") if form == "focus" else ("focus_version",)
    if given := [f"--{name.replace('_', '-')}" for name in useless if only_some[name]]:
        why = (
            "a FOCUS file has every charge, in the currency it is billed in"
            if form == "focus"
            else "see --format focus"
        )
        raise LedgerError(f"{' and '.join(given)} with --format {form}: {why}")
    return form


def _focus(ledger: Ledger, book: PriceBook, scope: ReportScope, now_ns: int, version: str, out: Path | None) -> None:
    """The lines of a scope as a FOCUS file, each within one calendar month of UTC."""
    import csv
    import sys

    from cost.records import LedgerError
    from cost.reports import focus
    from cost.reports.focus_columns import VERSIONS as FOCUS_VERSIONS
    from cost.reports.focus_columns import columns
    from cost.reports.grouped import scoped_attribution, simulated_note

    if version not in FOCUS_VERSIONS:
        raise LedgerError(f"FOCUS version {version!r} is not supported; choose one of {', '.join(FOCUS_VERSIONS)}")
    first = min((state.from_ns for state in ledger.leases.find()), default=now_ns)
    cuts = focus.month_cuts(first, now_ns + 32 * 86_400 * 10**9)
    found = scoped_attribution(ledger, book, scope, now_ns, cuts=cuts)
    _print_notes(simulated_note(scope, found))
    if out is not None:
        focus.write(found, out, version=version)
        return
    # All rows before the header: an error leaves the output empty.
    rows = list(focus.rows(found, version=version))
    writer = csv.DictWriter(sys.stdout, columns(version), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_notes(notes: tuple[str, ...]) -> None:
    """Print notes to standard error: a CSV file has no place for them."""
    for note in notes:
        typer.echo(note, err=True)


def _what(ledger: Ledger, sweep: str | None, by: str | None, *, every: bool) -> tuple[str | None, str]:
    """The sweep that a report is about (None: all leases), and what it is grouped by.

    Nothing asked for: the latest sweep to hold a machine; by category, where machines were held by no sweep.
    """
    from cost.ledger import queries
    from cost.records import LedgerError, NoLedgerError, no_ledger_message

    with ledger.read() as connection:
        known = [a.sweep_id for a in queries.attachments(connection)]
    if sweep is None and (by or every or (not known and ledger.leases.find())):
        return None, by or ("trial" if known else "category")
    if not known:
        raise NoLedgerError(no_ledger_message(ledger.place))
    if sweep in (None, "last"):
        return known[-1], by or "trial"
    if sweep not in known:
        recent = ", ".join(dict.fromkeys(reversed(known[-50:])))
        raise LedgerError(f"there is no sweep {sweep!r} in the books; the latest are {recent}")
    return sweep, by or "trial"
