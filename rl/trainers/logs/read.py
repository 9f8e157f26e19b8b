"""The entry for all formats: choose the reader that finds most rows, map its names to our curves, and add notes.

Tested in tests/rl/trainers/logs/test_public_logs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rl.trainers.logs import configuration, zeros
from rl.trainers.logs.formats import (
    json_files,
    labelled_lines,
    nemo_rl_console,
    openrlhf_console,
    prime_rl_console,
    slime_console,
    tables,
    trl_console,
    verl_console,
)
from rl.trainers.logs.names import (
    PREFERENCE_TRAINING,
    RL_CURVES,
    TRAINERS,
    Mapped,
    Names,
    binary_prefixes,
    recognised,
)
from rl.trainers.logs.records import Parsed
from rl.trainers.logs.run import Evaluation, Facts, ImportedRun, LogError, Note, Row
from rl.trainers.logs.steps import Placed, place
from rl.trainers.logs.text import Document, read_document

_READERS: Sequence[tuple[Callable[[Document], Parsed | None], str]] = (
    (json_files.read, json_files.LOOKED_FOR),
    (verl_console.read, verl_console.LOOKED_FOR),
    (slime_console.read, slime_console.LOOKED_FOR),
    (openrlhf_console.read, openrlhf_console.LOOKED_FOR),
    (nemo_rl_console.read, nemo_rl_console.LOOKED_FOR),
    (prime_rl_console.read, prime_rl_console.LOOKED_FOR),
    (trl_console.read, trl_console.LOOKED_FOR),
    (tables.read, tables.LOOKED_FOR),
    (labelled_lines.read, labelled_lines.LOOKED_FOR),
)
"""Where two readers find equally many rows, the first one counts."""

_PHASES_OF_A_STEP = ("rollout", "reward", "logprob", "train", "sync", "other")
"""Phases that lie within a step in every trainer."""


_GROUP_ESTIMATORS = frozenset(
    {"grpo", "grpo_passk", "rloo", "gspo", "cispo", "dr_grpo", "group_norm", "reinforce_plus_plus_baseline"}
)
"""Settings of verl, slime and OpenRLHF that compare the completions of one prompt."""
_FIRST_KL = 0.05
"""Nats a token. One step does not move a policy so far from where it started."""


def read_run(path: str | Path, trainer: str = "auto", *, rows_are_means_of: int | None = None) -> ImportedRun:
    """Read the log of one GRPO run.

    path: any file that a trainer, a terminal or a notebook wrote; gzip is recognised.
    trainer: `auto`, or a key of `TRAINERS` where the names of metrics alone do not tell.
    rows_are_means_of: how many steps a row covers, where the log does not say.

    Raises:
        LogError: the file cannot be read, is empty, has no step, or is not of a GRPO run. The message says which, what
            was looked for, and what was found.
    """
    path = Path(path)
    if trainer not in ("auto", *TRAINERS):
        raise LogError(f"trainer {trainer!r} is not known; there are: auto, {', '.join(TRAINERS)}")
    if rows_are_means_of is not None and rows_are_means_of < 1:
        raise LogError(f"rows_are_means_of is {rows_are_means_of}; a row covers at least 1 step")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from None
    return read_bytes(data, path.name, trainer, rows_are_means_of=rows_are_means_of)


def read_bytes(
    data: bytes, name: str = "the log", trainer: str = "auto", *, rows_are_means_of: int | None = None
) -> ImportedRun:
    """As `read_run`, from the contents of the file; `name` is for messages."""
    if not data.strip(b" \t\r\n\0"):
        raise LogError(f"{name} is empty")
    document = read_document(data)
    if not document.text.strip(" \t\r\n\0"):
        raise LogError(f"{name} is empty" if not document.notes else f"{name}: nothing of it can be decompressed")
    best: tuple[tuple[int, int], Parsed, Names] | None = None
    for reader, _ in _READERS:
        parsed = reader(document)
        if parsed is None or (trainer != "auto" and parsed.trainer not in (None, trainer)):
            continue
        names = Names(_trainer_of(parsed, trainer))
        score = (sum(_is_of_rl(record.values, names) for record in parsed.records), len(parsed.records))
        if best is None or score > best[0]:
            best = (score, parsed, names)
    if best is not None and best[0][0]:
        _, parsed, names = best
        parsed.rows_are_means = parsed.rows_are_means or names.trainer == "trl"
        if run := _run(parsed, names, document, rows_are_means_of):
            return run
    raise LogError(_refusal(document, name, trainer, best[1] if best else None))


def _trainer_of(parsed: Parsed, trainer: str) -> str:
    if trainer != "auto":
        return trainer
    return parsed.trainer or recognised({name for record in parsed.records for name in record.values})


def _is_of_rl(values: Mapping[str, float], names: Names) -> bool:
    """Whether a row has a curve that only reinforcement learning has."""
    return not RL_CURVES.isdisjoint(names.map(values, Facts()).curves)


def _run(parsed: Parsed, names: Names, document: Document, rows_are_means_of: int | None) -> ImportedRun | None:
    """The run; None where no row of it has a curve."""
    facts = configuration.facts(parsed.configuration)
    if facts.steps_planned is None and parsed.bars:
        facts = replace(facts, steps_planned=parsed.bars[-1].total)
    placement = place(parsed, names, facts, rows_are_means_of)
    binary = binary_prefixes([row.values for row in placement.rows])
    rows: list[Row] = []
    evaluations: list[Evaluation] = []
    unmapped: set[str] = set()
    derived: list[Note] = []
    for placed in placement.rows:
        mapped = names.map(placed.values, facts, binary)
        unmapped |= mapped.unmapped
        evaluations += _evaluations(placed, mapped)
        if mapped.curves or mapped.phases or mapped.rewards:
            derived += _derive_step_seconds(placed, mapped)
            rows.append(_row(placed, mapped))
    for placed in placement.evaluations:
        evaluations += _evaluations(placed, names.map(placed.values, facts, binary))
    if not rows:
        return None
    kept, zero_notes = zeros.judge(rows, facts)
    notes = [*document.notes, *parsed.notes, *placement.notes, *zero_notes, *derived, *_meanings(kept, binary)]
    notes += _not_grpo(facts, parsed)
    if facts.lr is None:
        facts = replace(facts, lr=max((row.lr for row in kept if row.lr), default=None))
    if facts.logging_steps is None and placement.logging_steps:
        facts = replace(facts, logging_steps=placement.logging_steps)
    last = max(row.step for row in kept)
    if facts.steps_planned and last < facts.steps_planned - (facts.logging_steps or 1) + 1:
        notes.append(Note("stopped_early", f"The log ends at step {last} of {facts.steps_planned}."))
    return ImportedRun(
        trainer=names.trainer,
        format=parsed.format,
        rows=kept,
        evaluations=tuple(sorted(evaluations, key=lambda e: (e.attempt, e.step))),
        facts=facts,
        notes=tuple(dict.fromkeys(notes)),
        elapsed_seconds=parsed.elapsed_seconds,
        unmapped=tuple(sorted(unmapped)),
    )


def _derive_step_seconds(placed: Placed, mapped: Mapped) -> list[Note]:
    """Fill in the time of a step where it is not logged, and note where it comes from."""
    if "step_seconds" in mapped.curves:
        return []
    if placed.step_seconds is not None:
        mapped.curves["step_seconds"] = placed.step_seconds
        return [Note("derived", "step_seconds is taken from the progress bar, in whole seconds.", "step_seconds")]
    if within := [mapped.phases[phase] for phase in _PHASES_OF_A_STEP if phase in mapped.phases]:
        mapped.curves["step_seconds"] = sum(within)
        text = "step_seconds is the sum of the phases that are logged; time outside of them is not in it."
        return [Note("derived", text, "step_seconds")]
    return []


def _row(placed: Placed, mapped: Mapped) -> Row:
    return Row(
        step=placed.step,
        rows_are_means_of=placed.covers,
        attempt=placed.attempt,
        line=placed.line,
        phase_seconds=mapped.phases,
        rewards=mapped.rewards,
        **mapped.curves,
    )


def _evaluations(placed: Placed, mapped: Mapped) -> list[Evaluation]:
    return [Evaluation(placed.step, name, value, curve, placed.attempt) for name, value, curve in mapped.evaluations]


def _not_grpo(facts: Facts, parsed: Parsed) -> list[Note]:
    notes: list[Note] = []
    if facts.group_size == 1:
        notes.append(
            Note("meaning", "Groups have one completion: there is no group to compare with, so this is not GRPO.")
        )
    estimator = next(
        (v for path, v in parsed.configuration.items() if path.endswith(("adv_estimator", "advantage_estimator"))), None
    )
    if isinstance(estimator, str) and estimator not in _GROUP_ESTIMATORS:
        notes.append(Note("meaning", f"Advantages come from {estimator}, not from groups."))
    return notes


def _meanings(rows: Sequence[Row], binary: frozenset[str]) -> list[Note]:
    """Notes on curves whose meaning rests on an assumption, or differs from our definition in this log."""
    notes: list[Note] = []
    if binary and any(row.acc is not None for row in rows):
        text = (
            "acc is read from the score, whose smallest and largest values are 0 and 1: a score that gives part of a"
            " point for less than a right answer is not correctness."
        )
        notes.append(Note("meaning", text, "acc"))
    if any(row.reward is not None and row.reward < 0 for row in rows):
        text = "Rewards are negative in part: rules on a share of the best reward have no meaning here."
        notes.append(Note("meaning", text, "reward"))
    first = rows[0]
    if first.step == 1 and first.kl is not None and first.kl > _FIRST_KL:
        text = (
            f"kl is {first.kl:g} in step 1: the reference seems to be another model than the one training started with."
        )
        notes.append(Note("meaning", text, "kl"))
    if any(row.kl is not None and row.kl < 0 for row in rows):
        notes.append(Note("meaning", "kl is negative in part: it is a signed estimate (k1), not k3.", "kl"))
    return notes


# ---------------------------------------------------------------------------------------------------------------------
# Refusals
# ---------------------------------------------------------------------------------------------------------------------


def _refusal(document: Document, name: str, trainer: str, parsed: Parsed | None) -> str:
    """Why the file cannot be read as a GRPO run, in one line."""
    if parsed is not None and parsed.records:
        seen = Counter(metric for record in parsed.records for metric in record.values)
        if any(metric.endswith(PREFERENCE_TRAINING) for metric in seen):
            return f"{name} is a log of preference training (DPO or a reward model), not of GRPO: it has {_shown(seen)}"
        if any(metric.split("/")[-1] in ("loss", "train_loss", "Training Loss") for metric in seen):
            return (
                f"{name} is a log of training without a reward (supervised fine-tuning, for example), not of GRPO: "
                f"it has {_shown(seen)}"
            )
        rows = f"{len(parsed.records)} rows ({parsed.format})"
        return f"{name} has {rows}, but no curve of GRPO in them: it has {_shown(seen)}"
    if parsed is not None and parsed.summaries:
        return f"{name}: the trainer reports that it completed after 0 steps; there is nothing to import"
    if trainer != "auto" and (other := _other_trainer(document, trainer)):
        return f"{name} has no step of {TRAINERS[trainer]}; it looks like {TRAINERS[other]}: --trainer {other}"
    if _looks_like_training(document):
        return f"{name} has no step: the run ended before its first one. {_looked_for(document)}"
    return f"{name} is not the log of a GRPO run that can be read. {_looked_for(document)}"


def _other_trainer(document: Document, trainer: str) -> str | None:
    for reader, _ in _READERS:
        parsed = reader(document)
        if parsed is not None and parsed.records:
            found = _trainer_of(parsed, "auto")
            if found != trainer and any(_is_of_rl(record.values, Names(found)) for record in parsed.records):
                return found
    return None


def _looks_like_training(document: Document) -> bool:
    marks = ("actor_rollout_ref", "GRPOConfig", "Total training steps", "num_generations", "rollout_batch_size")
    return any(mark in document.text for mark in marks)


def _looked_for(document: Document) -> str:
    formats = "; ".join(looked_for for _, looked_for in _READERS)
    lines = " | ".join(document.first_lines())
    return f"Looked for: {formats}. First lines: {lines}"


def _shown(names: Counter[str]) -> str:
    some = [name for name, _ in names.most_common(6)]
    return ", ".join(some) + (", ..." if len(names) > 6 else "")
