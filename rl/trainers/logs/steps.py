"""Which step, and which attempt, each record of a log belongs to."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rl.trainers.logs.names import Names
from rl.trainers.logs.progress_bars import Bar, elapsed_by_count
from rl.trainers.logs.records import Parsed, Record
from rl.trainers.logs.run import Facts, Note

_LOOK_AHEAD = 100
"""A step that was logged late is followed by a newer one within so many records."""
_COARSEST = 0.3
"""Rows are counted by the epoch if its last printed digit is less than this share of its change from row to row."""
_ROUNDING = 0.0005
"""Half of the last digit of the steps per second in a summary."""


@dataclass
class Placed:
    """A record at its place in the run."""

    attempt: int
    step: int
    line: int
    index: int
    """Position among the document's lines, or entries."""
    values: dict[str, float]
    covers: int = 1
    """Steps that it is the mean of."""
    step_seconds: float | None = None
    """From the progress bar."""


@dataclass
class Placement:
    """All records of training in order, evaluations beside them, and what was noticed."""

    rows: list[Placed] = field(default_factory=list)
    evaluations: list[Placed] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    logging_steps: int | None = None


def place(parsed: Parsed, names: Names, facts: Facts, rows_are_means_of: int | None) -> Placement:
    """Number the records, put those of one step together, and find restarts."""
    training, evaluations = [], []
    for record in parsed.records:
        if any(names.is_training(name) for name in record.values):
            training.append(record)
        elif any(names.is_evaluation(name) for name in record.values):
            evaluations.append(record)
    placement = Placement()
    with_step = [record for record in training if record.step is not None]
    if 2 * len(with_step) >= len(training):
        if len(with_step) < len(training):
            text = f"{len(training) - len(with_step)} rows without a step number are left out."
            placement.notes.append(Note("skipped", text))
        training = with_step
        _by_counter(placement, training, names)
        _cover(placement, parsed, facts, rows_are_means_of)
    else:
        _by_count(placement, parsed, training, facts, rows_are_means_of)
    _note_restarts(placement)
    _place_evaluations(placement, evaluations)
    _note_empty_attempts(placement, parsed, training)
    return placement


# ---------------------------------------------------------------------------------------------------------------------
# Logs with step numbers
# ---------------------------------------------------------------------------------------------------------------------


def _by_counter(placement: Placement, records: Sequence[Record], names: Names) -> None:
    attempt: dict[int, Placed] = {}
    attempts = [attempt]
    last, repeated, late = -1, 0, 0
    for position, record in enumerate(records):
        step = record.step or 0
        known = attempt.get(step)
        if known is not None:
            relation = _relation(known.values, record.values, names)
            if relation == "same":
                repeated += 1
                continue
            if relation == "more":
                known.values |= {name: value for name, value in record.values.items() if name not in known.values}
                last = max(last, step)
                continue
        elif step < last and _is_late(records, position, attempt, last):
            late += 1
            attempt[step] = Placed(len(attempts), step, record.line, record.index, dict(record.values))
            continue
        if known is not None or step < last:
            attempt = {}
            attempts.append(attempt)
        last = step
        attempt[step] = Placed(len(attempts), step, record.line, record.index, dict(record.values))
    for one in attempts:
        placement.rows += [one[step] for step in sorted(one)]
    if repeated:
        placement.notes.append(
            Note("repeated_steps", f"{repeated} rows are in the log more than once; each is kept once.")
        )
    if late:
        placement.notes.append(
            Note("out_of_order", f"{late} rows were logged after rows of later steps; they are sorted.")
        )
    if placement.rows and min(row.step for row in placement.rows) == 0:
        for row in placement.rows:
            row.step += 1
        placement.notes.append(Note("step_numbers", "The log counts steps from 0; its step 0 is step 1 here."))


def _relation(known: Mapping[str, float], new: Mapping[str, float], names: Names) -> str:
    """Whether two records with one step number are the same row, parts of one row, or rows of two attempts."""
    mine = {name for name in known if names.is_training(name)}
    theirs = {name for name in new if names.is_training(name)}
    shared = mine & theirs
    differ = [
        name for name in shared if known[name] != new[name] and not (math.isnan(known[name]) and math.isnan(new[name]))
    ]
    if not differ:
        return "same" if theirs <= mine else "more"
    return "other" if 2 * len(shared) > min(len(mine), len(theirs)) else "more"


def _is_late(records: Sequence[Record], position: int, attempt: Mapping[int, Placed], last: int) -> bool:
    """Whether a step below the newest one was only logged late: the steps after it go on from the newest one."""
    for record in records[position + 1 : position + 1 + _LOOK_AHEAD]:
        step = record.step or 0
        if step > last:
            return True
        if step in attempt:
            return False
    return False


def _cover(placement: Placement, parsed: Parsed, facts: Facts, stated: int | None) -> None:
    """How many steps each row is the mean of, and which steps have no row."""
    rows = placement.rows
    gaps = [b.step - a.step for a, b in pairwise(rows) if a.attempt == b.attempt]
    usual = Counter(gaps).most_common(1)[0][0] if gaps else 0
    spacing = facts.logging_steps or stated or usual or 1
    placement.logging_steps = spacing if spacing > 1 or facts.logging_steps else None
    previous: Placed | None = None
    missing: list[tuple[int, int]] = []
    for row in rows:
        before = previous.step if previous is not None and previous.attempt == row.attempt else None
        if stated is not None:
            row.covers = stated
        elif parsed.rows_are_means:
            row.covers = max(1, min(spacing, row.step if before is None else row.step - before))
        if before is not None and row.step - before > spacing:
            missing.append((before + 1, row.step - spacing))
        previous = row
    if missing:
        placement.notes.append(_missing(missing))
    if rows and not parsed.rows_are_means and stated is None and spacing > 1:
        text = f"Logged every {spacing} steps; a row is taken as one step, not as a mean of {spacing}."
        placement.notes.append(Note("step_numbers", text))


# ---------------------------------------------------------------------------------------------------------------------
# Logs without step numbers: rows are counted
# ---------------------------------------------------------------------------------------------------------------------


def _by_count(
    placement: Placement, parsed: Parsed, records: Sequence[Record], facts: Facts, stated: int | None
) -> None:
    clock = next((n for n in ("num_tokens", "epoch") if all(n in record.values for record in records)), None)
    attempts = _attempts(records, [summary.index for summary in parsed.summaries], clock)
    exact = _rows_by_epoch(records) if attempts[-1] == 1 else None
    numbers = exact or _row_numbers(records, attempts, clock)
    gap = None if exact else _gap(records, clock)
    bars = _steps_by_bar(parsed.bars, records, attempts)
    if bars is not None and {stated, facts.logging_steps} <= {None, bars[1]}:
        steps, k = bars
        basis = "from the progress bar"
    else:
        k, basis = _steps_a_row(parsed, numbers, facts, stated, whole=attempts[-1] == 1 and gap is None)
        steps = [number * k for number in numbers]
    placement.logging_steps = k if k > 1 else None
    for attempt, step, record in zip(attempts, steps, records, strict=True):
        placement.rows.append(Placed(attempt, step, record.line, record.index, dict(record.values), k))
    a_row = "1 step a row" if k == 1 else f"{k} steps a row"
    placement.notes.append(Note("step_numbers", f"The log has no step numbers: rows are counted, {a_row} ({basis})."))
    _note_missing(placement, k, gap, clock)
    if attempts[-1] == 1:
        elapsed = {0: 0, **elapsed_by_count(parsed.bars)}
        for row in placement.rows:
            if row.step in elapsed and row.step - k in elapsed:
                row.step_seconds = (elapsed[row.step] - elapsed[row.step - k]) / k


def _attempts(records: Sequence[Record], ends: Sequence[int], clock: str | None) -> list[int]:
    """The attempt of each record: a new one starts after a reported end, and where the clock of the run goes back."""
    attempts = [1]
    for before, record in pairwise(records):
        ended = any(before.index < end < record.index for end in ends)
        back = clock is not None and record.values[clock] < before.values[clock]
        attempts.append(attempts[-1] + (ended or back))
    return attempts


def _row_numbers(records: Sequence[Record], attempts: Sequence[int], clock: str | None) -> list[int]:
    """Rows counted from 1; a later attempt goes on from the rows that were logged at an earlier time of its clock."""
    numbers: list[int] = []
    for i, record in enumerate(records):
        if i and attempts[i] == attempts[i - 1]:
            numbers.append(numbers[-1] + 1)
            continue
        earlier = {r.values[clock] for r in records[:i] if r.values[clock] < record.values[clock]} if clock else ()
        numbers.append(len(earlier) + 1)
    return numbers


def _steps_by_bar(
    bars: Sequence[Bar], records: Sequence[Record], attempts: Sequence[int]
) -> tuple[list[int], int] | None:
    """The count of the progress bar when each row was printed, and the steps a row; None if they do not fit.

    Output to a file is held back in blocks and comes long after its bar: then several rows have one count.
    """
    counts: list[int] = []
    position, current = 0, 0
    for record in records:
        while position < len(bars) and bars[position].index <= record.index:
            current = bars[position].count
            position += 1
        counts.append(current)
    changes = [b - a for (a, b), (i, j) in zip(pairwise(counts), pairwise(attempts), strict=True) if i == j]
    k = Counter(changes).most_common(1)[0][0] if changes else counts[0]
    fits = k > 0 and all(change > 0 for change in changes) and all(count > 0 and count % k == 0 for count in counts)
    return (counts, k) if fits else None


def _note_missing(placement: Placement, k: int, gap: int | None, clock: str | None) -> None:
    rows = placement.rows
    missing = [(a.step + 1, b.step - k) for a, b in pairwise(rows) if a.attempt == b.attempt and b.step - a.step > k]
    if rows[0].step > k:
        missing.insert(0, (1, rows[0].step - k))
    if missing:
        placement.notes.append(_missing(missing))
    elif gap is not None:
        text = f"Rows are missing before line {gap}: {clock} jumps there; steps after it are too low."
        placement.notes.append(Note("missing_steps", text))


def _missing(ranges: Sequence[tuple[int, int]]) -> Note:
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in ranges[:5])
    more = f" and {len(ranges) - 5} more" if len(ranges) > 5 else ""
    return Note("missing_steps", f"No rows for steps {shown}{more}.")


def _steps_a_row(
    parsed: Parsed, numbers: Sequence[int], facts: Facts, stated: int | None, *, whole: bool
) -> tuple[int, str]:
    """Steps a row, and what states them. `whole`: no row is missing at the end, so that the summary can be used."""
    if stated is not None:
        return stated, "as given"
    if facts.logging_steps:
        return facts.logging_steps, "logging_steps in the log"
    if whole and parsed.summaries:
        rows = numbers[-1]
        fits = {k for done in _steps_done(parsed) if (k := done // rows) and done // k == rows}
        if len(fits) == 1:
            return fits.pop(), "from the trainer's summary"
    return 1, "nothing in the log states how many steps a row covers"


def _steps_done(parsed: Parsed) -> range:
    """How many steps a run may have done that ended by its own report; empty where nothing tells."""
    if parsed.bars and parsed.bars[-1].count == parsed.bars[-1].total:
        return range(parsed.bars[-1].total, parsed.bars[-1].total + 1)
    summary = parsed.summaries[-1]
    if not summary.runtime_seconds or not summary.steps_per_second:
        return range(0)
    low = summary.runtime_seconds * (summary.steps_per_second - _ROUNDING)
    high = summary.runtime_seconds * (summary.steps_per_second + _ROUNDING)
    return range(max(1, math.ceil(low)), math.floor(high) + 1) if 0 < high < 1e7 and high - low < 1000 else range(0)


def _rows_by_epoch(records: Sequence[Record]) -> list[int] | None:
    """Row numbers from an epoch that is printed precisely enough; they show rows that are missing."""
    epochs = [record.values.get("epoch", math.nan) for record in records]
    if len(epochs) < 3 or not all(math.isfinite(epoch) and epoch > 0 for epoch in epochs):
        return None
    changes = sorted(b - a for a, b in pairwise(epochs[:10]))
    unit, digits = changes[len(changes) // 2], max(_digits(epoch) for epoch in epochs)
    if unit <= 0:
        return None
    positions: list[int] = []
    for epoch in epochs:
        last_digit = 10.0 ** (math.floor(math.log10(epoch)) + 1 - digits)
        rows = epoch / unit
        if rows > 1e9:
            return None
        position = round(rows)
        if last_digit > _COARSEST * unit or abs(rows - position) > _COARSEST or position <= (positions or [0])[-1]:
            return None
        positions.append(position)
        unit = epoch / position
    return positions


def _digits(value: float) -> int:
    """Significant digits that a number was printed with, or fewer."""
    return len(f"{value:.12f}".replace(".", "").strip("0")) or 1


def _gap(records: Sequence[Record], clock: str | None) -> int | None:
    """The line before which rows seem to be missing: the token counter jumps by several rows' worth."""
    if clock != "num_tokens" or len(records) < 4:
        return None
    changes = [b.values[clock] - a.values[clock] for a, b in pairwise(records)]
    usual = sorted(changes)[len(changes) // 2]
    return next((records[i + 1].line for i, change in enumerate(changes) if usual > 0 and change > 4 * usual), None)


# ---------------------------------------------------------------------------------------------------------------------
# Both
# ---------------------------------------------------------------------------------------------------------------------


def _note_restarts(placement: Placement) -> None:
    starts = [b for a, b in pairwise(placement.rows) if a.attempt != b.attempt]
    if starts:
        at = ", ".join(f"step {row.step} (line {row.line})" if row.line else f"step {row.step}" for row in starts[:5])
        more = f" and {len(starts) - 5} more" if len(starts) > 5 else ""
        times = "once" if len(starts) == 1 else f"{len(starts)} times"
        placement.notes.append(Note("restarted", f"The step counter starts again {times}: {at}{more}."))


def _place_evaluations(placement: Placement, evaluations: Sequence[Record]) -> None:
    """Evaluations belong to the attempt, and without a step number to the step, of the newest row before them."""
    rows = sorted(placement.rows, key=lambda row: row.index)
    indices = [row.index for row in rows]
    for record in evaluations:
        before = bisect_right(indices, record.index)
        newest = rows[before - 1] if before else None
        step = record.step if record.step is not None else (newest.step if newest else 0)
        attempt = newest.attempt if newest else 1
        placement.evaluations.append(Placed(attempt, step, record.line, record.index, dict(record.values)))


def _note_empty_attempts(placement: Placement, parsed: Parsed, training: Sequence[Record]) -> None:
    previous, empty = -1, 0
    for summary in parsed.summaries:
        empty += not any(previous < record.index < summary.index for record in training)
        previous = summary.index
    if empty:
        times = "once" if empty == 1 else f"{empty} times"
        placement.notes.append(Note("no_steps", f"The trainer reports {times} that it completed after 0 steps."))
