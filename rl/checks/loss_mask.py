"""The loss mask: which tokens are trained, checked on real completions and shown token by token.

Completions of several lengths are laid out as the learner lays them out, padded and packed: a short one, a long one,
and one that is cut at the limit. Every token of a completion must be predicted from the token before it, once. The
token that ends a completion is trained, and is never added to a truncated completion. Prompts and padding are not
trained.

Tested in tests/rl/checks/test_loss_mask.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from rl.batch import make_loss_mask
from rl.checks.result import CheckResult
from rl.layout import MicroBatch, Sequences, micro_batches
from rl.rollout.engine import Completion
from rl.spec import AlgorithmSpec

NAME = "loss mask"
WIDTH = 68
"""Columns of the shown tokens."""
PROMPT_TOKENS_SHOWN = 12
COMPLETION_TOKENS_SHOWN = 24


def check_loss_mask(
    prompt: Sequence[int],
    completions: Sequence[Completion],
    *,
    eos_ids: frozenset[int],
    pad_id: int,
    algorithm: AlgorithmSpec,
    packing: bool,
    decode: Callable[[int], str],
) -> CheckResult:
    """Lay out completions of one prompt and check what is trained.

    Args:
        packing: packed rows are checked too.
        decode: the text of one token.
    """
    chosen = examples(completions, eos_ids)
    problems = [text for form in (False, True)[: 1 + packing] for text in _problems(prompt, chosen, pad_id, form)]
    problems += [text for c in chosen for text in _end_problems(c, eos_ids)]
    masks = _loss_masks(prompt, chosen, pad_id, algorithm)
    lengths = ", ".join(f"{len(c.ids)} ({'truncated' if c.truncated else 'ended'})" for c in chosen)
    forms = "padded and packed rows" if packing else "padded rows"
    seen = f"{len(chosen)} completions of {lengths} tokens laid out in {forms}; sampling pads left, training right."
    if pad_id in eos_ids:
        seen += " The padding token is an end-of-sequence token: masks come from lengths, so the real one is trained."
    lines = tuple(_shown(prompt, chosen, masks, pad_id, decode))
    if problems:
        return CheckResult(NAME, "failed", f"{seen} {problems[0]}", "Report this: the layout is wrong.", lines)
    return CheckResult(NAME, "passed", f"{seen} Every completion token is trained once, nothing else.", lines=lines)


def examples(completions: Sequence[Completion], eos_ids: frozenset[int]) -> list[Completion]:
    """The shortest and the longest completion that ended, and a truncated one; made by cutting if none was sampled."""
    by_length = sorted(completions, key=lambda c: len(c.ids))
    ended = [c for c in by_length if not c.truncated]
    truncated = [c for c in by_length if c.truncated][:1]
    if not truncated and len(ended[-1].ids) > 1:
        truncated = [replace(ended[-1], ids=ended[-1].ids[:-1], logprobs=ended[-1].logprobs[:-1], finish="length")]
    if not ended:  # an end is added to see that it would be trained
        cut = by_length[0]
        ended = [replace(cut, ids=(*cut.ids[:2], min(eos_ids)), logprobs=(*cut.logprobs[:2], 0.0), finish="stop")]
    return list(dict.fromkeys([ended[0], ended[-1], *truncated]))


def _problems(prompt: Sequence[int], completions: Sequence[Completion], pad_id: int, packing: bool) -> Iterator[str]:
    """Where a token is predicted from another token than the one before it, or is missing."""
    for batch in _batches(prompt, completions, pad_id, packing):
        mask, inputs = batch.completion_mask(), batch.input_ids.flatten()
        start = 0
        for row, number in enumerate(batch.sequences):
            ids = completions[number].ids
            target = batch.target[start : start + len(ids)].tolist()
            before = inputs[batch.source[start : start + len(ids)]].tolist()
            if tuple(target) != ids or before != [prompt[-1], *ids[:-1]]:
                yield f"Completion {number} is not predicted token by token from what precedes it."
            if int(mask[row].sum()) != len(ids):
                yield f"Completion {number} has {len(ids)} tokens, and {int(mask[row].sum())} are marked."
            start += len(ids)


def _end_problems(completion: Completion, eos_ids: frozenset[int]) -> Iterator[str]:
    ends = [i for i, token in enumerate(completion.ids) if token in eos_ids]
    if completion.truncated and ends:
        yield "A truncated completion has an end-of-sequence token."
    if not completion.truncated and ends != [len(completion.ids) - 1]:
        yield "A completion that ended has tokens after its end-of-sequence token, or none."


def _batches(prompt: Sequence[int], completions: Sequence[Completion], pad_id: int, packing: bool) -> list[MicroBatch]:
    group = Sequences(tuple(prompt), tuple(c.ids for c in completions))
    return micro_batches([group], 10**6, packing, pad_id)


def _loss_masks(
    prompt: Sequence[int], completions: Sequence[Completion], pad_id: int, algorithm: AlgorithmSpec
) -> dict[int, list[bool]]:
    """The loss mask of each completion by its number, padding included."""
    found = {}
    for batch in _batches(prompt, completions, pad_id, packing=False):
        truncated = torch.tensor([completions[number].truncated for number in batch.sequences])
        masks = make_loss_mask(batch.completion_mask(), truncated, algorithm)
        found |= {number: masks[row].tolist() for row, number in enumerate(batch.sequences)}
    return found


def _shown(
    prompt: Sequence[int],
    completions: Sequence[Completion],
    masks: dict[int, list[bool]],
    pad_id: int,
    decode: Callable[[int], str],
) -> Iterator[str]:
    yield "1: trained, 0: left out of the loss, .: prompt or padding"
    yield f"prompt of {len(prompt)} tokens" + (", its end:" if len(prompt) > PROMPT_TOKENS_SHOWN else ":")
    yield from _cells([(_text(decode(t)), ".") for t in prompt[-PROMPT_TOKENS_SHOWN:]])
    for number, completion in enumerate(completions):
        mask = masks[number]
        padding = [pad_id] * min(len(mask) - len(completion.ids), 3)
        cells = [(_text(decode(t)), "1" if m else "0") for t, m in zip(completion.ids, mask, strict=False)]
        if len(cells) > COMPLETION_TOKENS_SHOWN:
            half = COMPLETION_TOKENS_SHOWN // 2
            cells = [*cells[:half], ("...", "..."), *cells[-half:]]
        end = "truncated at the limit" if completion.truncated else "ended by itself"
        yield f"completion of {len(completion.ids)} tokens, {end}:"
        yield from _cells([*cells, *((_text(decode(t)), ".") for t in padding)])


def _cells(cells: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Two lines for each row of cells: tokens, and below each its mark."""
    tokens, marks = "", ""
    for token, mark in cells:
        width = max(len(token), len(mark)) + 1
        if tokens and len(tokens) + width > WIDTH:
            yield tokens.rstrip()
            yield marks.rstrip()
            tokens, marks = "", ""
        tokens += token.ljust(width)
        marks += mark.ljust(width)
    yield tokens.rstrip()
    yield marks.rstrip()


def _text(token: str) -> str:
    """A token's text in one line of printable characters; a space at its start is shown as `_`."""
    shown = token.encode("unicode_escape").decode() if not token.isprintable() else token
    shown = shown.replace(" ", "_") or "(empty)"
    return shown if len(shown) <= WIDTH // 3 else f"{shown[: WIDTH // 3 - 3]}..."
