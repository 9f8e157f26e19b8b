"""Layout of completions as model inputs: one row per completion, or one row per group with a shared prompt.

Pure index arithmetic: a layout gives the model's inputs, and the position at which each completion token is predicted.
The choice of layout changes results by rounding only.

- Padded: a row is a prompt and one completion, padded on the right. Causal attention needs no mask: no token attends
  to the padding after it.
- Packed: a row is a prompt and several of its completions. An attention mask lets each completion attend to the prompt
  and to itself, and its positions continue from the prompt's. The prompt is computed once for all completions of its
  group, forward and backward; with short completions that is most of the work. With long completions the padded form
  is faster, since a packed row computes attention between all of its tokens.
"""
# ruff: noqa: F722 - jaxtyping's shape strings are not Python

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

_PADDED_PAIRS = 0.5
"""Share of the pairs of a row that causal attention without a mask computes."""
_PACKED_PAIRS = 1.5
"""With a mask attention computes all pairs and reads the mask: 1.5 fits times measured on a CPU."""


@dataclass(frozen=True)
class Sequences:
    """Token ids of a prompt and of its completions."""

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class MicroBatch:
    """Model inputs for some completions, and the positions of their token predictions. All tensors on one device."""

    input_ids: Int[Tensor, "rows length"]
    position_ids: Int[Tensor, "rows length"]
    segment: Int[Tensor, "rows length"] | None
    """Packed: 0 for the prompt, 1, 2, ... for completions, -1 for padding. None: padded, without a mask."""
    source: Int[Tensor, " tokens"]
    """Per completion token: flat index into [rows, length] of the position whose output predicts it."""
    target: Int[Tensor, " tokens"]
    """Per completion token: its id."""
    place: Int[Tensor, " tokens"]
    """Per completion token: flat index into [sequences, width], the shape that the loss works on."""
    sequences: tuple[int, ...]
    """The completions in this micro-batch, as numbers counted through all groups that were laid out."""
    width: int
    """Tokens of the longest completion in this micro-batch."""

    def to(self, device: torch.device | str) -> MicroBatch:
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **tensors)

    def completion_mask(self) -> Bool[Tensor, "sequences width"]:
        mask = torch.zeros(len(self.sequences) * self.width, dtype=torch.bool, device=self.place.device)
        mask[self.place] = True
        return mask.view(len(self.sequences), self.width)

    def visible(self, window: int | None = None) -> Bool[Tensor, "rows 1 length length"]:
        """Packed: True where a token (third dimension) may attend to another (fourth).

        Causal attention within each completion, and from each completion to the prompt. With a `window`, only to the
        last `window` tokens, counted by position. Padding attends to padding, so that no softmax is taken over an
        empty set. Computed on demand, because the mask of a long row is larger than all other inputs together.

        Raises:
            ValueError: the micro-batch is padded.
        """
        if self.segment is None:
            raise ValueError("a padded micro-batch has no mask")
        query, key = self.segment[:, :, None], self.segment[:, None, :]
        length = self.segment.shape[1]
        mask = (query == key) | ((key == 0) & (query >= 0))
        mask &= torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        if window is not None:
            mask &= self.position_ids[:, :, None] - self.position_ids[:, None, :] < window
        return mask[:, None]


@dataclass(frozen=True)
class _InputRow:
    """One row of the model's input: a prompt and one completion (padded) or several (packed)."""

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, tuple[int, ...]], ...]
    """(number of the completion, its token ids)."""

    @property
    def length(self) -> int:
        # Nothing is predicted after the last token of a completion, so that token is not a model input.
        return len(self.prompt) + sum(max(len(ids) - 1, 0) for _, ids in self.completions)


def micro_batches(groups: Sequence[Sequences], max_tokens: int, packing: bool, pad_id: int) -> list[MicroBatch]:
    """Lay out all completions of `groups` in micro-batches of at most `max_tokens` positions, padding included.

    A row longer than `max_tokens` becomes a micro-batch of its own. Rows are sorted by length to reduce padding;
    `MicroBatch.sequences` gives the completions in their new order.

    Raises:
        ValueError: an empty prompt or an empty completion.
    """
    return [_lay_out(batch, packing, pad_id) for batch in _batches(groups, max_tokens, packing)]


def packing_is_faster(groups: Sequence[Sequences], max_tokens: int, pair_cost: float) -> bool:
    """Whether packed rows are estimated to take less time than padded ones in micro-batches of `max_tokens`.

    The estimate counts the tokens of all rows, and the pairs of tokens in their attention. It depends on lengths only,
    so that a resumed attempt chooses the same form. `pair_cost` is the work of attention between two tokens, as a share
    of the work of all other layers on one token (`Policy.pair_cost`).
    """
    padded = _estimated_work(_batches(groups, max_tokens, packing=False), pair_cost * _PADDED_PAIRS)
    return _estimated_work(_batches(groups, max_tokens, packing=True), pair_cost * _PACKED_PAIRS) < padded


def _estimated_work(batches: Sequence[Sequence[_InputRow]], pair_cost: float) -> float:
    lengths = [(len(batch), batch[0].length) for batch in batches]
    return sum(rows * length * (1 + pair_cost * length) for rows, length in lengths)


def _batches(groups: Sequence[Sequences], max_tokens: int, packing: bool) -> list[list[_InputRow]]:
    rows = _rows(groups, max_tokens, packing)
    rows.sort(key=lambda r: r.length, reverse=True)
    batches: list[list[_InputRow]] = []
    for row in rows:
        # Rows are sorted: the first row of a batch is the longest and sets the padded length.
        if batches and (len(batches[-1]) + 1) * batches[-1][0].length <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _rows(groups: Sequence[Sequences], max_tokens: int, packing: bool) -> list[_InputRow]:
    rows: list[_InputRow] = []
    number = 0
    for group in groups:
        if not group.prompt or not all(group.completions):
            raise ValueError("an empty prompt or completion: each needs at least one token id")
        open_row: list[tuple[int, tuple[int, ...]]] = []
        used = len(group.prompt)
        for ids in group.completions:
            if open_row and (not packing or used + len(ids) - 1 > max_tokens):
                rows.append(_InputRow(group.prompt, tuple(open_row)))
                open_row, used = [], len(group.prompt)
            open_row.append((number, ids))
            used += len(ids) - 1
            number += 1
        if open_row:
            rows.append(_InputRow(group.prompt, tuple(open_row)))
    return rows


def _lay_out(rows: Sequence[_InputRow], packing: bool, pad_id: int) -> MicroBatch:
    length = max(r.length for r in rows)
    input_ids = torch.full((len(rows), length), pad_id, dtype=torch.long)
    # Positions go on in the padding: transformers would take a jump for the start of another sequence.
    position_ids = torch.arange(length).repeat(len(rows), 1)
    segment = torch.full((len(rows), length), -1, dtype=torch.long)
    width = max(len(ids) for r in rows for _, ids in r.completions)
    source: list[int] = []
    target: list[int] = []
    place: list[int] = []
    sequences: list[int] = []
    for i, row in enumerate(rows):
        at = len(row.prompt)
        input_ids[i, :at] = torch.tensor(row.prompt)
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
        segment=segment if packing else None,
        source=torch.tensor(source),
        target=torch.tensor(target),
        place=torch.tensor(place),
        sequences=tuple(sequences),
        width=width,
    )
