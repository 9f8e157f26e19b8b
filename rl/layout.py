"""How completions are laid out as model inputs: one row each, or one row per group with the prompt shared.

A layout is pure index arithmetic: it says what goes into the model and where each completion token's prediction comes
out. Which layout is used changes nothing but rounding. Never touches a model.

Padded: row = prompt, completion; padding on the right. Packed: row = prompt, completion 1, completion 2, ...; a mask
lets each completion see the prompt and itself, and its positions go on from the prompt's. The prompt is then computed
once for all completions of its group, forward and backward, which for short answers is most of the work.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Token ids of the completions of one prompt; all that a layout needs to know of them."""

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class MicroBatch:
    """Model inputs for some completions, and where their token predictions come out. All tensors on one device."""

    input_ids: Int[Tensor, "rows length"]
    position_ids: Int[Tensor, "rows length"]
    attention_mask: Bool[Tensor, "*shape"]
    """[rows, length] padded, [rows, 1, length, length] packed: True where a key may be seen."""
    source: Int[Tensor, " tokens"]
    """Flat index into [rows, length]: the position whose output predicts this completion token."""
    target: Int[Tensor, " tokens"]
    """The completion token itself."""
    place: Int[Tensor, " tokens"]
    """Flat index into [sequences, width]: where the token stands in what the loss sees."""
    sequences: tuple[int, ...]
    """Which completions these are, numbered through all groups that were laid out."""
    width: int
    """Tokens of the longest completion here."""

    def to(self, device: torch.device | str) -> MicroBatch:
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **tensors)

    def completion_mask(self) -> Bool[Tensor, "sequences width"]:
        mask = torch.zeros(len(self.sequences) * self.width, dtype=torch.bool, device=self.place.device)
        mask[self.place] = True
        return mask.view(len(self.sequences), self.width)


@dataclass(frozen=True)
class _Row:
    prompt: tuple[int, ...]
    completions: tuple[tuple[int, tuple[int, ...]], ...]
    """(number, ids) of each."""

    @property
    def length(self) -> int:
        # The last token of a completion predicts nothing, so it is not fed to the model.
        return len(self.prompt) + sum(max(len(ids) - 1, 0) for _, ids in self.completions)


def micro_batches(groups: Sequence[Sequences], max_tokens: int, packing: bool, pad_id: int) -> list[MicroBatch]:
    """Lay out all completions of `groups` in micro-batches of at most `max_tokens` positions, padding included.

    A row that is longer than `max_tokens` by itself becomes a micro-batch of its own. Rows are sorted by length, so
    that little is padding; `MicroBatch.sequences` says which completion is which.

    Raises:
        ValueError: an empty prompt or an empty completion.
    """
    rows = _rows(groups, max_tokens, packing)
    rows.sort(key=lambda r: r.length, reverse=True)
    batches: list[list[_Row]] = []
    for row in rows:
        # Sorted, so the first row of a batch is its longest and decides its padded length.
        if batches and (len(batches[-1]) + 1) * batches[-1][0].length <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [_lay_out(batch, packing, pad_id) for batch in batches]


def _rows(groups: Sequence[Sequences], max_tokens: int, packing: bool) -> list[_Row]:
    rows: list[_Row] = []
    number = 0
    for group in groups:
        if not group.prompt or not all(group.completions):
            raise ValueError("an empty prompt or completion has no token to predict, or nothing to predict it from")
        open_row: list[tuple[int, tuple[int, ...]]] = []
        used = len(group.prompt)
        for ids in group.completions:
            if open_row and (not packing or used + len(ids) - 1 > max_tokens):
                rows.append(_Row(group.prompt, tuple(open_row)))
                open_row, used = [], len(group.prompt)
            open_row.append((number, ids))
            used += len(ids) - 1
            number += 1
        if open_row:
            rows.append(_Row(group.prompt, tuple(open_row)))
    return rows


def _lay_out(rows: Sequence[_Row], packing: bool, pad_id: int) -> MicroBatch:
    length = max(r.length for r in rows)
    input_ids = torch.full((len(rows), length), pad_id, dtype=torch.long)
    position_ids = torch.zeros((len(rows), length), dtype=torch.long)
    # Which completion of its row a position belongs to: 0 the prompt, 1, 2, ... its completions, -1 padding.
    segment = torch.full((len(rows), length), -1, dtype=torch.long)
    width = max(len(ids) for r in rows for _, ids in r.completions)
    source: list[int] = []
    target: list[int] = []
    place: list[int] = []
    sequences: list[int] = []
    for i, row in enumerate(rows):
        at = len(row.prompt)
        input_ids[i, :at] = torch.tensor(row.prompt)
        position_ids[i, :at] = torch.arange(at)
        segment[i, :at] = 0
        last_of_prompt = i * length + at - 1
        for k, (number, ids) in enumerate(row.completions, start=1):
            fed = len(ids) - 1
            input_ids[i, at : at + fed] = torch.tensor(ids[:-1], dtype=torch.long)
            position_ids[i, at : at + fed] = len(row.prompt) + torch.arange(fed)
            segment[i, at : at + fed] = k
            source += [last_of_prompt, *range(i * length + at, i * length + at + fed)]
            target += ids
            place += range(len(sequences) * width, len(sequences) * width + len(ids))
            sequences.append(number)
            at += fed
    return MicroBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=_visible(segment) if packing else segment >= 0,
        source=torch.tensor(source),
        target=torch.tensor(target),
        place=torch.tensor(place),
        sequences=tuple(sequences),
        width=width,
    )


def _visible(segment: Int[Tensor, "rows length"]) -> Bool[Tensor, "rows 1 length length"]:
    """Causal, and within the own completion or the prompt. Padding sees itself, so that no row of scores is empty."""
    length = segment.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = segment[:, :, None] == segment[:, None, :]
    to_prompt = (segment[:, None, :] == 0) & (segment[:, :, None] >= 0)
    return ((same | to_prompt) & causal)[:, None]
