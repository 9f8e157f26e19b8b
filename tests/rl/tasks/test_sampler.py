"""Draws of training questions are distinct, complete and seeded, and continue from a small state."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.spec import ConfigurationError
from rl.tasks import PromptSampler, Question


def questions(count: int) -> list[Question]:
    return [Question(f"{i:016x}", ({"role": "user", "content": f"q{i}"},), "1") for i in range(count)]


def ids(drawn: list[Question]) -> list[str]:
    return [q.question_id for q in drawn]


counts = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(counts=counts, seed=st.integers(0, 2**32), draws=st.integers(1, 30))
def test_draw_contains_no_question_twice_and_all_questions_are_drawn_equally_often(
    counts: tuple[int, int], seed: int, draws: int
) -> None:
    total, per_step = counts
    sampler = PromptSampler(questions(total), per_step, seed)
    seen = dict.fromkeys(ids(questions(total)), 0)
    for _ in range(draws):
        drawn = ids(sampler.draw())
        assert len(drawn) == per_step == len(set(drawn))
        for i in drawn:
            seen[i] += 1
    # A question that is deferred at the end of an epoch is one draw late, and less than one epoch late.
    assert max(seen.values()) - min(seen.values()) <= 2
    assert sum(seen.values()) == draws * per_step


@given(total=st.integers(1, 6), factor=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_epoch_of_whole_draws_contains_every_question_once(total: int, factor: int, seed: int) -> None:
    sampler = PromptSampler(questions(total * factor), total, seed)
    for _ in range(3):
        epoch = [i for _ in range(factor) for i in ids(sampler.draw())]
        assert sorted(epoch) == ids(questions(total * factor))


@given(
    counts=counts,
    seed=st.integers(0, 2**32),
    before=st.lists(st.integers(0, 12), max_size=12),
    after=st.lists(st.integers(0, 12), min_size=1, max_size=12),
)
def test_sampler_continues_exactly_from_its_state(
    counts: tuple[int, int], seed: int, before: list[int], after: list[int]
) -> None:
    total, per_step = counts
    whole = PromptSampler(questions(total), per_step, seed)
    for count in before:
        whole.draw(min(count, total))
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = PromptSampler(list(reversed(questions(total))), per_step, seed)
    resumed.load_state_dict(state)
    for count in after:
        assert resumed.draw(min(count, total)) == whole.draw(min(count, total))
    assert resumed.state_dict() == whole.state_dict()


def test_every_epoch_and_every_seed_has_its_own_order() -> None:
    first, other = PromptSampler(questions(30), 30, seed=0), PromptSampler(questions(30), 30, seed=1)
    one, two = ids(first.draw()), ids(first.draw())
    assert one != two
    assert ids(other.draw()) not in (one, two)
    assert first.state_dict()["epoch"] == 1


def test_state_is_small_for_many_questions() -> None:
    sampler = PromptSampler(questions(5000), 64, seed=0)
    for _ in range(100):
        sampler.draw()
    assert len(json.dumps(sampler.state_dict())) < 5000


def test_more_prompts_than_questions_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigurationError, match="prompts_per_step=9, and the task has 8 distinct training questions"):
        PromptSampler(questions(8), 9, seed=0)
    with pytest.raises(ConfigurationError, match="prompts_per_step=0"):
        PromptSampler(questions(8), 0, seed=0)
    with pytest.raises(ValueError, match="cannot draw 9 different questions of 8"):
        PromptSampler(questions(8), 8, seed=0).draw(9)


@pytest.mark.parametrize(("count", "seed"), [(9, 0), (8, 1)])
def test_state_of_other_questions_or_another_seed_is_refused(count: int, seed: int) -> None:
    state = PromptSampler(questions(8), 2, seed=0).state_dict()
    with pytest.raises(ConfigurationError, match="belongs to other training questions or another seed"):
        PromptSampler(questions(count), 2, seed).load_state_dict(state)
