"""Loss, gradient and curves do not depend on the split into micro-batches, on padding or on masked values."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl.batch import Denominators, LossBatch, count_denominators
from rl.curves import SamplerSums, UpdateSums
from rl.losses import policy_loss
from rl.spec import AlgorithmSpec, UpdateCurves

ALGORITHMS = {
    "grpo": AlgorithmSpec(name="grpo", kl_coef=0.1),
    "dapo": AlgorithmSpec(name="dapo", clip_eps_high=0.28, aggregation="token_mean"),
    "dr_grpo": AlgorithmSpec(name="dr_grpo", aggregation="constant", aggregation_constant=7, kl_coef=0.1),
    "gspo": AlgorithmSpec(name="gspo", ratio_level="sequence", clip_eps_low=3e-4, clip_eps_high=4e-4),
    "gspo_token_mean": AlgorithmSpec(name="gspo_token_mean", ratio_level="sequence", aggregation="token_mean"),
    "cispo": AlgorithmSpec(
        name="cispo", surrogate="cispo", clip_eps_low=0.0, clip_eps_high=5.0, aggregation="token_mean"
    ),
    "dual_clip": AlgorithmSpec(name="dual_clip", dual_clip=1.5, kl_coef=0.1, kl_estimator="k2"),
    "corrected": AlgorithmSpec(name="corrected", sampler_correction="sequence"),
    "corrected_tokens": AlgorithmSpec(name="corrected_tokens", sampler_correction="token", aggregation="token_mean"),
}
TENSORS = ("logprobs", "old_logprobs", "sampler_logprobs", "reference_logprobs", "entropy", "loss_mask", "advantages")

# Per sequence: unpadded tensors by name, each of shape [tokens]. A sequence may have no tokens.
Rows = list[dict[str, Tensor]]


def make_rows(lengths: list[int], seed: int) -> Rows:
    g = torch.Generator().manual_seed(seed)
    rows = []
    for n in lengths:
        old = -3 * torch.rand(n, generator=g, dtype=torch.float64)
        rows.append(
            {
                "logprobs": old + 0.5 * torch.randn(n, generator=g, dtype=torch.float64),
                "old_logprobs": old,
                "sampler_logprobs": old + 0.3 * torch.randn(n, generator=g, dtype=torch.float64),
                "reference_logprobs": old + 0.3 * torch.randn(n, generator=g, dtype=torch.float64),
                "entropy": 2 * torch.rand(n, generator=g, dtype=torch.float64),
                "loss_mask": torch.rand(n, generator=g) < 0.8,
                "advantages": torch.randn((), generator=g, dtype=torch.float64),
            }
        )
    return rows


def pad_rows(rows: Rows, left: int = 0, right: int = 0, fill: float = 0.0) -> LossBatch:
    """Rows as one micro-batch, padded to the longest row plus `left` and `right` columns with the value `fill`."""
    width = max((len(r["logprobs"]) for r in rows), default=0) + left + right
    fields = {}
    for name in TENSORS[:-1]:
        kind = torch.bool if name == "loss_mask" else torch.float64
        out = torch.full((len(rows), width), False if name == "loss_mask" else fill, dtype=kind)
        for i, row in enumerate(rows):
            out[i, left : left + len(row[name])] = row[name]
        fields[name] = out
    fields["advantages"] = torch.stack([r["advantages"] for r in rows]) if rows else torch.zeros(0).double()
    return LossBatch(**fields)


@dataclasses.dataclass
class Outcome:
    loss: float
    grads: list[Tensor]
    curves: UpdateCurves


def run(rows: Rows, shares: list[list[int]], spec: AlgorithmSpec, **padding) -> Outcome:
    """Loss, gradients and curves of one update, added up over micro-batches (`shares` lists the rows of each)."""
    leaves = [dict(r, logprobs=r["logprobs"].clone().requires_grad_()) for r in rows]
    batches = [pad_rows([leaves[i] for i in share], **padding) for share in shares]
    denominators = sum((count_denominators(b.loss_mask) for b in batches), Denominators(0, 0))
    total, sums = 0.0, UpdateSums.empty()
    for batch in batches:
        loss, part = policy_loss(batch, spec, denominators)
        if loss.requires_grad:
            loss.backward()
        total += loss.item()
        sums = sums + part
    grads = [r["logprobs"].grad if r["logprobs"].grad is not None else torch.zeros(0) for r in leaves]
    return Outcome(total, grads, sums.curves(grad_norm=1.0, lr=1.0, ratio_is_one=False))


def assert_same(a: Outcome, b: Outcome) -> None:
    assert a.loss == pytest.approx(b.loss, rel=1e-10, abs=1e-13)
    for x, y in zip(a.grads, b.grads, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-14, equal_nan=False)
    for field in dataclasses.fields(UpdateCurves):
        x, y = getattr(a.curves, field.name), getattr(b.curves, field.name)
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            x, y = dataclasses.astuple(x), dataclasses.astuple(y)
        assert x == (y if y is None else pytest.approx(y, rel=1e-10, abs=1e-13)), field.name


@st.composite
def split_batches(draw):
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=9))
    shares = draw(st.integers(1, 5))
    home = draw(st.lists(st.integers(0, shares - 1), min_size=len(lengths), max_size=len(lengths)))
    split = [[i for i, h in enumerate(home) if h == share] for share in range(shares)]
    return lengths, split, draw(st.integers(0, 1000))


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=40)
@given(case=split_batches())
def test_any_split_with_unequal_lengths_and_empty_parts_changes_nothing(name, case):
    lengths, split, seed = case
    rows = make_rows(lengths, seed)
    whole = run(rows, [list(range(len(rows)))], ALGORITHMS[name])
    assert_same(run(rows, split, ALGORITHMS[name]), whole)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_accumulating_four_micro_batches_of_two_equals_one_of_eight(name):
    rows = make_rows([5, 1, 3, 6, 2, 2, 4, 1], seed=1)
    accumulated = run(rows, [[0, 1], [2, 3], [4, 5], [6, 7]], ALGORITHMS[name])
    assert_same(accumulated, run(rows, [list(range(8))], ALGORITHMS[name]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_ranks_of_unequal_length_equal_one_and_differ_from_the_mean_of_their_means(name):
    rows = make_rows([6, 6, 1], seed=2)
    spec = ALGORITHMS[name]
    whole = run(rows, [[0, 1, 2]], spec)
    assert_same(run(rows, [[0, 1], [2]], spec), whole)
    per_rank_mean = (run(rows[:2], [[0, 1]], spec).loss + run(rows[2:], [[0]], spec).loss) / 2
    assert abs(per_rank_mean - whole.loss) > 1e-3


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    ("left", "right", "fill"), list(itertools.product((0, 3), (0, 5), (float("nan"), float("inf"), -1e30, 3.0)))
)
def test_side_amount_and_values_of_padding_change_nothing(name, left, right, fill):
    rows = make_rows([5, 0, 3, 6, 1], seed=3)
    shares = [[0, 1, 2, 3, 4]]
    assert_same(
        run(rows, shares, ALGORITHMS[name], left=left, right=right, fill=fill), run(rows, shares, ALGORITHMS[name])
    )


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30, -7.0])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_masked_values_change_neither_loss_nor_gradient_nor_curves(name, garbage):
    rows = make_rows([5, 4, 3, 6, 1], seed=4)
    rows[2]["loss_mask"][:] = False
    clean = run(rows, [[0, 1], [2, 3, 4]], ALGORITHMS[name])
    dirty = [{k: v.clone() for k, v in r.items()} for r in rows]
    for row in dirty:
        for name_of in TENSORS[:5]:
            row[name_of][~row["loss_mask"]] = garbage
    dirty[2]["advantages"].fill_(garbage)
    assert_same(run(dirty, [[0, 1], [2, 3, 4]], ALGORITHMS[name]), clean)


def test_denominators_count_tokens_and_sequences_after_masking():
    rows = make_rows([5, 5, 5, 5], seed=5)
    for row in rows:
        row["loss_mask"][:] = True
    half = [{k: v.clone() for k, v in r.items()} for r in rows]
    for row in half[2:]:
        row["loss_mask"][:] = False
    for name in ("grpo", "dapo", "dr_grpo", "gspo", "cispo"):
        spec = ALGORITHMS[name]
        assert run(half, [[0, 1, 2, 3]], spec).loss == pytest.approx(run(rows[:2], [[0, 1]], spec).loss, rel=1e-12)


def test_fp32_splits_agree_to_1e_5_of_the_gradient_norm():
    rows = make_rows([40, 7, 33, 1, 64, 20, 9, 50], seed=6)
    rows = [{k: v if v.dtype == torch.bool else v.float() for k, v in r.items()} for r in rows]
    for spec in ALGORITHMS.values():
        grads = [
            torch.cat(run32(rows, shares, spec)) for shares in ([list(range(8))], [[0, 1], [2, 3], [4, 5, 6], [7]])
        ]
        assert (grads[0] - grads[1]).norm() <= 1e-5 * grads[0].norm()


def run32(rows: Rows, shares: list[list[int]], spec: AlgorithmSpec) -> list[Tensor]:
    """The gradients of one update in fp32, per sequence."""
    leaves = [r["logprobs"].clone().requires_grad_() for r in rows]
    denominators = Denominators(sum(int(r["loss_mask"].sum()) for r in rows), len(rows))
    for share in shares:
        batch = pad_rows([rows[i] for i in share])
        kept = {name: getattr(batch, name).float() if name != "loss_mask" else batch.loss_mask for name in TENSORS[1:]}
        width = batch.loss_mask.shape[1]
        logprobs = torch.stack([torch.nn.functional.pad(leaves[i], (0, width - len(leaves[i]))) for i in share])
        policy_loss(LossBatch(logprobs=logprobs, **kept), spec, denominators)[0].backward()
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


@given(case=split_batches())
@settings(max_examples=60)
def test_any_split_leaves_the_sampler_sums_unchanged(case):
    lengths, split, seed = case
    spec = AlgorithmSpec(name="test", sampler_correction="sequence")
    batch = pad_rows(make_rows(lengths, seed))
    whole = SamplerSums.of(batch.old_logprobs, batch.sampler_logprobs, batch.loss_mask, spec)  # type: ignore[arg-type]
    parts = SamplerSums.empty()
    for share in split:
        b = pad_rows([make_rows(lengths, seed)[i] for i in share], right=2, fill=float("nan"))
        parts = parts + SamplerSums.of(b.old_logprobs, b.sampler_logprobs, b.loss_mask, spec)  # type: ignore[arg-type]
    torch.testing.assert_close(parts.sums, whole.sums, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(parts.maxima, whole.maxima, rtol=0, atol=0)
