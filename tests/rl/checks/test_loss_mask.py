"""The loss mask of real layouts, and of completions that break the rules for their end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl.checks.loss_mask import NAME, check_loss_mask, examples
from rl.checks.result import CheckResult
from rl.rollout.engine import Completion
from rl.spec import AlgorithmSpec

EOS, PAD = 1, 0


def a_completion(*ids: int, truncated: bool = False) -> Completion:
    return Completion(ids, (-1.0,) * len(ids), "length" if truncated else "stop", 0)


SAMPLED = (a_completion(5, EOS), a_completion(5, 6, 7, 8, EOS), a_completion(5, 6, 7, 8, 9, 10, truncated=True))


def checked(*completions: Completion, pad_id: int = PAD, **algorithm: object) -> CheckResult:
    return check_loss_mask(
        (20, 21, 22),
        completions,
        eos_ids=frozenset({EOS}),
        pad_id=pad_id,
        algorithm=AlgorithmSpec("grpo", **algorithm),  # type: ignore[arg-type]
        packing=True,
        decode=lambda token: f"t{token}",
    )


def test_every_completion_token_is_shown_as_trained_and_prompt_and_padding_are_not() -> None:
    result = checked(*SAMPLED)
    assert (result.name, result.status) == (NAME, "passed")
    assert "2 (ended), 5 (ended), 6 (truncated) tokens" in result.seen
    at = result.lines.index("t5 t1 t0 t0 t0")
    assert result.lines[at + 1] == "1  1  .  .  ."
    assert result.lines[2:4] == ("t20 t21 t22", ".   .   .")
    assert max(map(len, result.lines)) <= 70


def test_truncated_completions_are_shown_as_left_out_where_the_algorithm_masks_them() -> None:
    lines = checked(*SAMPLED, mask_truncated=True).lines
    assert lines[lines.index("t5 t6 t7 t8 t9 t10") + 1] == "0  0  0  0  0  0"


def test_the_end_of_a_completion_is_trained_where_it_is_the_padding_token_too() -> None:
    result = checked(*SAMPLED, pad_id=EOS)
    assert "The padding token is an end-of-sequence token" in result.seen
    assert result.lines[result.lines.index("t5 t1 t1 t1 t1") + 1] == "1  1  .  .  ."


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (a_completion(5, EOS, 6), "tokens after its end-of-sequence token"),
        (a_completion(5, 6), "tokens after its end-of-sequence token, or none"),
        (a_completion(5, EOS, truncated=True), "A truncated completion has an end-of-sequence token"),
    ],
)
def test_a_completion_with_a_wrong_end_fails(broken: Completion, problem: str) -> None:
    result = checked(SAMPLED[1], broken)
    assert result.status == "failed"
    assert problem in result.seen


def test_a_layout_that_predicts_from_the_wrong_token_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from rl.checks import loss_mask

    lay_out = loss_mask.micro_batches
    monkeypatch.setattr(
        loss_mask, "micro_batches", lambda *given: [replace(b, source=b.source.flip(0)) for b in lay_out(*given)]
    )
    assert "not predicted token by token" in checked(*SAMPLED).seen


def test_examples_have_a_truncated_and_an_ended_completion_where_none_was_sampled() -> None:
    eos = frozenset({EOS})
    made = examples([a_completion(5, 6, EOS)], eos)
    assert [(c.ids, c.truncated) for c in made] == [((5, 6, EOS), False), ((5, 6), True)]
    made = examples([a_completion(5, 6, 7, truncated=True)], eos)
    assert [(c.ids, c.truncated) for c in made] == [((5, 6, EOS), False), ((5, 6, 7), True)]
