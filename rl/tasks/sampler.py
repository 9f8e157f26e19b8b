"""Selects the training questions of each step. The state of the selection is a small JSON value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rl.spec import ConfigurationError
from rl.tasks.task import Question, seeded_order


class PromptSampler:
    """Draws training questions, each once per epoch, in an order that depends on the epoch and the seed.

    A draw at the end of an epoch continues in the next epoch. If it meets a question that it already contains, that
    question is deferred to the following draw. So no draw contains a question twice, and no epoch leaves one out.
    """

    def __init__(self, questions: Sequence[Question], prompts_per_step: int, seed: int) -> None:
        """
        Raises:
            ConfigurationError: `prompts_per_step` is below 1 or above the number of questions.
        """
        if not 1 <= prompts_per_step <= len(questions):
            raise ConfigurationError(
                f"prompts_per_step={prompts_per_step}, and the task has {len(questions)} distinct training questions: "
                f"use 1 to {len(questions)} prompts per step, or a task with more questions"
            )
        self._by_id = {q.question_id: q for q in questions}
        self._prompts_per_step = prompts_per_step
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._deferred: list[str] = []
        self._order = self._shuffled()

    def draw(self, count: int | None = None) -> list[Question]:
        """The next `count` questions (`prompts_per_step` by default), all different.

        Raises:
            ValueError: `count` is negative or above the number of questions.
        """
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

    def state_dict(self) -> dict[str, Any]:
        """The position of the sampler, as JSON types, for a checkpoint."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "deferred": list(self._deferred),
            "questions": self._fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which `state_dict` returned.

        Raises:
            ConfigurationError: `state` belongs to other questions or to another seed.
        """
        if state["questions"] != self._fingerprint():
            raise ConfigurationError(
                "the data position in the checkpoint belongs to other training questions or another seed: "
                "resume with the task and the seed of the checkpoint, or start without a checkpoint"
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._deferred = [str(i) for i in state["deferred"]]
        self._order = self._shuffled()

    def _shuffled(self) -> list[str]:
        return sorted(self._by_id, key=lambda i: seeded_order(f"{self._seed}/{self._epoch}", i))

    def _fingerprint(self) -> str:
        ids = "".join(sorted(self._by_id))
        return hashlib.sha256(f"{self._seed}/{ids}".encode()).hexdigest()[:16]
