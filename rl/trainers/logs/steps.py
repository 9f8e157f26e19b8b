"""Which step, and which attempt, each record of a log belongs to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rl.trainers.logs.names import Names
from rl.trainers.logs.progress_bars import Bar, elapsed_by_count
from rl.trainers.logs.records import Parsed, Record
from rl.trainers.logs.run import Facts, Note

_LOOK_AHEAD = 100
"""Records within which a step that was logged late has to be caught up with."""
_COARSEST = 0.3
"""Rows are counted by the epoch where its last printed digit is less than this share of its change in a row."""

_ROUNDING = 0.0005
"""Half of the last digit of the steps per second in a summary."""


@dataclass
class Placed:
    """A record at its place in the run."""

    attempt: int
    step: int
    line: int
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
    ended_without_steps: int = 0
    """Reports of an end with no step since the last one."""


def place(parsed: Parsed, names: Names, facts: Facts, rows_are_means_of: int | None) -> Placement:
    """Number the records, put those of one step together, and find restarts."""
    training, evaluations = [], []
    for record in parsed.records:
        if any(names.is_training(name) for name in record.values):
            training.append(record)
        elif any(names.is_evaluation(name) for name in record.values):
            evaluations.append(record)
    placement = Placement()
    if any(record.step is None for record in training):
        _count_rows(placement, parsed, training, facts, rows_are_means_of)
    else:
        _by_counter(placement, training, names)
        _cover(placement, parsed, facts, rows_are_means_of)
    _sort_in_evaluations(placement, training, evaluations)
    _count_empty_attempts(placement, parsed, training)
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
            attempt[step] = Placed(len(attempts), step, record.line, dict(record.values))
            continue
        if known is not None or step < last:
            attempt = {}
            attempts.append(attempt)
        last = step
        attempt[step] = Placed(len(attempts), step, record.line, dict(record.values))
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
    _note_restarts(placement)


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
    spacing = (
        facts.logging_steps
        or stated
        or (usual if len(gaps) >= 2 else 0)
        or (rows[0].step if len(rows) == 1 else usual)
        or 1
    )
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
        shown = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        placement.notes.append(Note("missing_steps", f"No rows for steps {shown}{more}."))
    if rows and not parsed.rows_are_means and stated is None and spacing > 1:
        placement.notes.append(
            Note(
                "step_numbers", f"Logged every {spacing} steps; a row is taken as one step, not as a mean of {spacing}."
            )
        )


# ---------------------------------------------------------------------------------------------------------------------
# Logs without step numbers: rows are counted
# ---------------------------------------------------------------------------------------------------------------------


def _count_rows(
    placement: Placement, parsed: Parsed, records: Sequence[Record], facts: Facts, stated: int | None
) -> None:
    clock = next((n for n in ("num_tokens", "epoch") if all(n in record.values for record in records)), None)
    ends = [summary.index for summary in parsed.summaries]
    attempt, positions = 1, []
    starts: list[int] = []
    for i, record in enumerate(records):
        before = records[i - 1] if i else None
        if before is not None:
            ended = any(before.index < end < record.index for end in ends)
            back = clock is not None and record.values[clock] < before.values[clock]
            if ended or back:
                attempt += 1
        if len(starts) < attempt:
            starts.append(i)
        positions.append((attempt, i - starts[attempt - 1] + 1))
    exact = _positions_from_epoch(records) if attempt == 1 else None
    numbered = [placed for _, placed in positions] if exact is None else exact
    for i, start in enumerate(starts[1:], 2):
        offset = _rows_before(records, start, clock)
        for j, (a, _) in enumerate(positions):
            if a == i:
                numbered[j] += offset
    steps, k, basis = _steps_a_row(parsed, records, numbered, attempt, exact is not None, clock, facts, stated)
    placement.logging_steps = k if k > 1 else None
    for (a, _), step, record in zip(positions, steps, records, strict=True):
        placement.rows.append(Placed(a, step, record.line, dict(record.values), k))
    what = "1 step a row" if k == 1 else f"{k} steps a row"
    placement.notes.append(Note("step_numbers", f"The log has no step numbers: rows are counted, {what} ({basis})."))
    rows = placement.rows
    missing = [(a.step + 1, b.step - k) for a, b in pairwise(rows) if a.attempt == b.attempt and b.step - a.step > k]
    if rows[0].step > k:
        missing.insert(0, (1, rows[0].step - k))
    if missing:
        shown = ", ".join(f"{first} to {last}" for first, last in missing[:5])
        placement.notes.append(Note("missing_steps", f"No rows for steps {shown}."))
    elif exact is None and (gap := _gap(records, clock)):
        placement.notes.append(
            Note(
                "missing_steps", f"Rows are missing before line {gap}: {clock} jumps there; steps after it are too low."
            )
        )
    _note_restarts(placement)
    if attempt == 1:
        elapsed = elapsed_by_count(parsed.bars)
        elapsed.setdefault(0, 0)
        for row in rows:
            if row.step in elapsed and row.step - k in elapsed:
                row.step_seconds = (elapsed[row.step] - elapsed[row.step - k]) / k


def _rows_before(records: Sequence[Record], start: int, clock: str | None) -> int:
    """How many rows of earlier attempts lie before the first row of this one, by the clock of the run."""
    if clock is None:
        return 0
    first = records[start].values[clock]
    return len({record.values[clock] for record in records[:start] if record.values[clock] < first})


def _steps_a_row(
    parsed: Parsed,
    records: Sequence[Record],
    numbered: Sequence[int],
    attempts: int,
    exact: bool,
    clock: str | None,
    facts: Facts,
    stated: int | None,
) -> tuple[list[int], int, str]:
    """Steps at the end of each row, steps a row, and what says so."""

    def times(k: int) -> list[int]:
        return [position * k for position in numbered]

    if stated is not None:
        return times(stated), stated, "as given"
    if facts.logging_steps:
        return times(facts.logging_steps), facts.logging_steps, "logging_steps in the log"
    if bars := _bars_at(parsed.bars, records):
        k = bars[0] if len(bars) == 1 else Counter(b - a for a, b in pairwise(bars)).most_common(1)[0][0]
        # Output that was held back comes in blocks, long after its bar: then the counts do not fit.
        if k > 0 and all(b > a for a, b in pairwise(bars)) and all(count % k == 0 for count in bars):
            return list(bars), k, "from the progress bar"
    if attempts == 1 and parsed.summaries and (exact or not _gap(records, clock)):
        rows = numbered[-1]
        fits = {
            k
            for done in _steps_done(parsed)
            for k in range(done // (rows + 1), done // rows + 1)
            if k and done // k == rows
        }
        if len(fits) == 1:
            k = fits.pop()
            return times(k), k, "from the trainer's summary"
    return times(1), 1, "nothing in the log says how many it covers"


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


def _bars_at(bars: Sequence[Bar], records: Sequence[Record]) -> list[int]:
    """The count of the progress bar when each row was printed; empty where a row has no bar before it."""
    counts, position, current = [], 0, None
    for record in records:
        while position < len(bars) and bars[position].index <= record.index:
            current = bars[position].count
            position += 1
        if current is None:
            return []
        counts.append(current)
    return counts


def _positions_from_epoch(records: Sequence[Record]) -> list[int] | None:
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


def _sort_in_evaluations(placement: Placement, training: Sequence[Record], evaluations: Sequence[Record]) -> None:
    """Evaluations without a step number belong to the newest row before them."""
    for record in evaluations:
        before = 0
        for other in training:
            if (other.index, other.line) > (record.index, record.line):
                break
            before += 1
        newest = _row_at(placement, training[before - 1].line) if before else None
        step = record.step if record.step is not None else (newest.step if newest else 0)
        attempt = newest.attempt if newest else 1
        placement.evaluations.append(Placed(attempt, step, record.line, dict(record.values)))


def _row_at(placement: Placement, line: int) -> Placed | None:
    candidates = [row for row in placement.rows if row.line <= line]
    return max(candidates, key=lambda row: (row.line, row.step), default=None)


def _count_empty_attempts(placement: Placement, parsed: Parsed, training: Sequence[Record]) -> None:
    previous = -1
    for summary in parsed.summaries:
        if not any(previous < record.index < summary.index for record in training):
            placement.ended_without_steps += 1
        previous = summary.index
    if placement.ended_without_steps and placement.rows:
        times = "once" if placement.ended_without_steps == 1 else f"{placement.ended_without_steps} times"
        placement.notes.append(Note("no_steps", f"The trainer reports an end {times} after 0 steps."))
