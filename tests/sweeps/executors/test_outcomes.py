"""The outcome of an attempt whose trainer raised."""

from __future__ import annotations

import pytest

from rl.spec import ConfigurationError, OutOfMemoryError, PreemptedError
from rl.tasks.prompts import encode_prompt
from rl.tasks.task import Question
from sweeps.executors import HungError, outcome_of_error
from sweeps.journal.events import AttemptOutcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConfigurationError("x"), AttemptOutcome.BAD_CONFIGURATION),
        (PreemptedError("x"), AttemptOutcome.PREEMPTED),
        (OutOfMemoryError("x"), AttemptOutcome.OUT_OF_MEMORY),
        (HungError("x"), AttemptOutcome.HUNG),
        (ValueError("x"), AttemptOutcome.CRASHED),
    ],
)
def test_the_type_of_an_error_decides_the_outcome(error: Exception, outcome: AttemptOutcome):
    assert outcome_of_error(error)[0] is outcome


class RefusingTokenizer:
    """A tokenizer whose chat template raises, as jinja does for `raise_exception`."""

    chat_template = "{{ raise_exception('only user and assistant') }}"

    def apply_chat_template(self, *_: object, **__: object) -> str:
        raise RuntimeError("only user and assistant")


def test_a_template_that_raises_inside_an_attempt_is_bad_configuration_and_not_a_crash():
    question = Question("q", ({"role": "system", "content": "s"}, {"role": "user", "content": "u"}), "1")
    with pytest.raises(ConfigurationError) as raised:
        encode_prompt(question, RefusingTokenizer(), chat_template=True)
    outcome, text = outcome_of_error(raised.value)
    assert outcome is AttemptOutcome.BAD_CONFIGURATION
    assert "task.system_prompt" in text
