"""Which training questions the next step asks. Never sees a completion; its whole state is a small JSON value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rl.spec import ConfigurationError
from rl.tasks.task import Question, seeded_order


class PromptSampler:
    """Draws distinct training questions, each once per epoch, in an order that changes with every epoch and seed.

    A draw that reaches over the end of an epoch goes on in the next one; a question that the draw already holds is put
    off to the following draw, so that no draw has a question twice and no epoch leaves one out.
    """

    def __init__(self, questions: Sequence[Question], prompts_per_step: int, seed: int) -> None:
        """
        Raises:
            ConfigurationError: fewer questions than one step asks for.
        """
        if not 1 <= prompts_per_step <= len(questions):
            raise ConfigurationError(
                f"prompts_per_step={prompts_per_step}, and the task has {len(questions)} distinct training questions: "
                f"a step asks for 1 to {len(questions)}; fewer prompts, or a task with more questions"
            )
        self._by_id = {q.question_id: q for q in questions}
        self._prompts_per_step = prompts_per_step
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._deferred: list[str] = []
        self._order = self._shuffled()

    @property
    def epoch(self) -> int:
        """Times that all training questions were drawn."""
        return self._epoch

    def draw(self, count: int | None = None) -> list[Question]:
        """The next `count` questions (prompts_per_step by default), all different."""
        count = self._prompts_per_step if count is None else count
        if not 0 <= count <= len(self._order):
            raise ValueError(f"cannot draw {count} different questions of {len(self._order)}")
        drawn = dict.fromkeys(self._deferred[:count])
        del self._deferred[:count]
        while len(drawn) < count:
            if self._position == len(self._order):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._shuffled()
            question_id = self._order[self._position]
            self._position += 1
            if question_id in drawn:
                self._deferred.append(question_id)
            else:
                drawn[question_id] = None
        return [self._by_id[i] for i in drawn]

    def state(self) -> dict[str, Any]:
        """Where the sampler is, as JSON types, for a checkpoint."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "deferred": list(self._deferred),
            "questions": self._fingerprint(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken.

        Raises:
            ConfigurationError: it was taken over other questions or with another seed.
        """
        if state["questions"] != self._fingerprint():
            raise ConfigurationError(
                "the checkpoint's data position belongs to other training questions or another seed: "
                "resume with the task and the seed it was written with, or start afresh"
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._deferred = [str(i) for i in state["deferred"]]
        self._order = self._shuffled()

    def _shuffled(self) -> list[str]:
        return sorted(self._by_id, key=lambda i: seeded_order(f"{self._seed}/{self._epoch}", i))

    def _fingerprint(self) -> str:
        ids = "".join(sorted(self._by_id))
        return hashlib.sha256(f"{self._seed}/{ids}".encode()).hexdigest()[:16]
