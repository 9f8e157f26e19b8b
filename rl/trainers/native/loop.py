"""The GRPO loop of one attempt, as the conversation of `rl.spec.Trainer`: sample, judge, learn, sync, report.

Everything it works with is handed to it ready (`Components`); every random draw is seeded by what it is for, so a
resumed attempt draws what the uninterrupted one would have. Never reads a date, never decides when to stop.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl import checkpoint as checkpoints
from rl import spec as s
from rl.advantages import overlong_penalty, zero_variance
from rl.curves import RolloutSums, step_curves
from rl.deadline import SYNC_SECONDS, within
from rl.phases import PhaseClock
from rl.policy import Policy
from rl.rollout.engine import Completion, RolloutEngine, Sampling
from rl.seeds import derived_seed
from rl.tasks import PromptSampler, Question, Task
from rl.tasks.rewards import Scorer, Scores
from rl.trainers.native.learner import Group, Learner

Conversation = Generator[s.Event, s.Command | None, None]


@dataclass(frozen=True)
class Components:
    """What the loop works with."""

    policy: Policy
    learner: Learner
    engine: RolloutEngine
    task: Task
    prompts: Mapping[str, tuple[int, ...]]
    """Token ids of every question, training and evaluation, by question id."""
    sampler: PromptSampler
    scorer: Scorer
    clock: PhaseClock


@dataclass(frozen=True)
class _Judged:
    """The groups of some questions, with all that the curves need of them."""

    groups: list[Group]
    scores: Scores


class Loop:
    """One attempt. `run` may be called once."""

    def __init__(
        self, trial: s.TrialSpec, parts: Components, restored: Mapping[str, Any] | None, restored_from: Path | None
    ):
        self._trial = trial
        self._parts = parts
        self._folder = Path(trial.checkpoint_dir)
        self._restored_from = restored_from
        self._step: int = restored["step"] if restored else 0
        self._evaluated: int | None = restored["evaluated_step"] if restored else None
        """The last step that was evaluated."""
        self._stop: s.Stop | None = None
        """The command that ends the attempt early."""
        self._saved: tuple[Any, ...] | None = self._savable() if restored else None
        """What the newest checkpoint stands for: it is not written twice."""

    def run(self) -> Conversation:
        """See `rl.spec.Trainer.run`."""
        trial = self._trial
        yield from self._say(self._started())
        while self._stop is None:
            if self._evaluation_due():
                yield from self._say(self._evaluate())
            elif self._checkpoint_due():
                yield from self._say(self._write_checkpoint())
            elif self._step < trial.steps:
                for event in self._train():
                    yield from self._say(event)
            else:
                break
        if self._stop is not None and self._saved != self._savable():
            yield from self._say(self._write_checkpoint())
        yield s.Finished(
            step=self._step,
            policy_version=self._parts.engine.policy_version,
            stopped=self._stop,
            phase_card_ns=self._parts.clock.lap()[1],
        )

    def _say(self, event: s.Event) -> Conversation:
        """Yield the event and do what the answer asks for."""
        command = yield event
        if isinstance(event, s.CheckpointWritten):
            # Only now: had the driver died without hearing of it, it would resume from the one before.
            checkpoints.prune(self._folder, self._trial.trainer.keep_checkpoints)
        if isinstance(command, s.SetLr):
            self._parts.learner.base_lr = command.lr
        elif isinstance(command, s.Stop):
            self._stop = command
        elif isinstance(command, s.Checkpoint) and self._saved != self._savable():
            yield from self._say(self._write_checkpoint())

    def _started(self) -> s.Started:
        parts = self._parts
        return s.Started(
            step=self._step,
            policy_version=parts.engine.policy_version,
            cards=self._trial.cards,
            engine=parts.engine.name,
            device=str(parts.policy.device),
            parameters=sum(p.numel() for p in parts.policy.model.parameters()),
            trainable_parameters=sum(p.numel() for _, p in parts.policy.parameters()),
            train_questions=len(parts.task.train),
            eval_questions=len(parts.task.evaluation),
            phase_card_ns=parts.clock.lap()[1],
            restored_from=None if self._restored_from is None else str(self._restored_from),
        )

    # -----------------------------------------------------------------------------------------------------------------
    # One step
    # -----------------------------------------------------------------------------------------------------------------

    def _train(self) -> Conversation:
        """One step: the restarts of reward workers on the way, then its report."""
        parts, step = self._parts, self._step + 1
        version = parts.engine.policy_version
        judged, kept = self._roll_out(step)
        groups = [g for j, keep in zip(judged, kept, strict=True) for g, k in zip(j.groups, keep, strict=True) if k]
        learned = parts.learner.learn(groups, parts.clock)
        with parts.clock.phase("sync"):
            what = f"weight sync to rollout engine {parts.engine.name} rank 0"
            within(SYNC_SECONDS, what, lambda: parts.engine.sync(parts.policy, version + 1))
        self._step = step
        reports = [
            s.RoleRestarted("reward_worker", r.index, r.reason, phase_card_ns={})
            for j in judged
            for r in j.scores.restarts
        ]
        every = [g for j in judged for g in j.groups]
        wall, phases = parts.clock.lap()
        yield from reports
        yield s.StepReport(
            step=step,
            policy_version=version,
            staleness=0,
            wall_ns=wall,
            phase_card_ns=phases,
            tokens=s.TokenCounts(
                prompt=sum(len(g.prompt) * len(g.completions) for g in every),
                completion=sum(len(c.ids) for g in every for c in g.completions),
                loss=learned.loss_tokens,
            ),
            prompts=s.PromptCounts(
                trained=sum(learned.trained),
                filtered=len(every) - len(groups),
                failed=len(groups) - sum(learned.trained),
            ),
            curves=step_curves(
                _rollout_sums(judged, kept, learned.rewards.tolist(), learned.zero_std),
                learned.sampler,
                learned.updates,
            ),
            lr=learned.updates[-1].lr,
        )

    def _roll_out(self, step: int) -> tuple[list[_Judged], list[list[bool]]]:
        """Groups of this step, round by round, and which of them are trained on.

        With `drop_zero_variance_groups`, groups without variance are replaced by fresh prompts for some rounds. Should
        no group at all be left, the last round's are kept: a step always has something to report.
        """
        algorithm = self._trial.algorithm
        wanted = self._trial.prompts_per_step
        judged: list[_Judged] = []
        kept: list[list[bool]] = []
        for draw in range(1 + (algorithm.max_resample_rounds if algorithm.drop_zero_variance_groups else 0)):
            missing = wanted - sum(map(sum, kept))
            if not missing:
                break
            judged.append(self._judge_round(step, draw, missing))
            if algorithm.drop_zero_variance_groups:
                rewards = torch.tensor([g.rewards for g in judged[-1].groups], dtype=torch.float64)
                kept.append([not equal for equal in zero_variance(rewards).tolist()])
            else:
                kept.append([True] * missing)
        if not any(map(any, kept)):
            kept[-1] = [True] * len(kept[-1])
        return judged, kept

    def _judge_round(self, step: int, draw: int, prompts: int) -> _Judged:
        trial, parts = self._trial, self._parts
        questions = parts.sampler.draw(prompts)
        sampling = Sampling(
            n=trial.group_size,
            temperature=trial.rollout.temperature,
            max_tokens=trial.rollout.max_completion_tokens,
            seed=derived_seed(trial.seed, "rollout", step, draw),
        )
        with parts.clock.phase("rollout"):
            sampled = parts.engine.generate([parts.prompts[q.question_id] for q in questions], sampling)
        with parts.clock.phase("reward"):
            scores = self._score(questions, sampled)
            lengths = torch.tensor([[len(c.ids) for c in group] for group in sampled])
            penalty = overlong_penalty(lengths, sampling.max_tokens, trial.algorithm).tolist()
        n = trial.group_size
        groups = [
            Group(
                question_id=q.question_id,
                prompt=parts.prompts[q.question_id],
                completions=tuple(sampled[i]),
                rewards=tuple(r + p for r, p in zip(scores.reward[i * n : (i + 1) * n], penalty[i], strict=True)),
            )
            for i, q in enumerate(questions)
        ]
        return _Judged(groups, scores)

    def _score(self, questions: Sequence[Question], sampled: Sequence[Sequence[Completion]]) -> Scores:
        policy = self._parts.policy
        texts, answers = [], []
        for question, group in zip(questions, sampled, strict=True):
            for completion in group:
                texts.append(policy.text(completion.ids))
                answers.append(question.answer)
        return self._parts.scorer.score(texts, answers)

    # -----------------------------------------------------------------------------------------------------------------
    # Evaluation
    # -----------------------------------------------------------------------------------------------------------------

    def _evaluation_due(self) -> bool:
        every = self._trial.evaluation.every_steps
        due = self._step in (0, self._trial.steps) or (every > 0 and self._step % every == 0)
        return due and self._evaluated != self._step

    def _evaluate(self) -> s.EvalReport:
        """The fixed evaluation set with the same random streams every time, so that evaluations are paired."""
        trial, parts = self._trial, self._parts
        questions = parts.task.evaluation
        n = trial.evaluation.samples_per_question
        sampling = Sampling(
            n=n,
            temperature=trial.evaluation.temperature,
            max_tokens=trial.rollout.max_completion_tokens,
            seed=derived_seed(trial.task.data_seed, "evaluation"),
        )
        with parts.clock.phase("evaluation"):
            sampled = parts.engine.generate([parts.prompts[q.question_id] for q in questions], sampling)
            acc = self._score(questions, sampled).acc
        self._evaluated = self._step
        flat = [c for group in sampled for c in group]
        wall, phases = parts.clock.lap()
        return s.EvalReport(
            step=self._step,
            policy_version=parts.engine.policy_version,
            wall_ns=wall,
            phase_card_ns=phases,
            results=tuple(
                s.QuestionResult(q.question_id, int(sum(acc[i * n : (i + 1) * n])), n) for i, q in enumerate(questions)
            ),
            response_length=s.Mean(sum(len(c.ids) for c in flat), len(flat)),
            truncated=s.Mean(sum(c.truncated for c in flat), len(flat)),
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Checkpoints
    # -----------------------------------------------------------------------------------------------------------------

    def _checkpoint_due(self) -> bool:
        every = self._trial.trainer.checkpoint_every_steps
        due = self._step == self._trial.steps or (every > 0 and self._step > 0 and self._step % every == 0)
        return due and self._saved != self._savable()

    def _savable(self) -> tuple[Any, ...]:
        return self._step, self._evaluated, self._parts.learner.base_lr

    def _write_checkpoint(self) -> s.CheckpointWritten:
        parts = self._parts
        with parts.clock.phase("checkpoint"):
            path, size = checkpoints.write(
                self._folder,
                self._step,
                tensors={
                    "model": dict(parts.policy.parameters()),
                    **parts.learner.state_dict(),
                    "rng": {"torch": torch.get_rng_state()},
                },
                state={
                    "step": self._step,
                    "evaluated_step": self._evaluated,
                    "policy_version": parts.engine.policy_version,
                    "updates_done": parts.learner.updates_done,
                    "base_lr": parts.learner.base_lr,
                    "data": parts.sampler.state_dict(),
                },
            )
        self._saved = self._savable()
        wall, phases = parts.clock.lap()
        return s.CheckpointWritten(self._step, str(path), size, wall, phases)


def _rollout_sums(
    judged: Sequence[_Judged],
    kept: Sequence[Sequence[bool]],
    optimised: Sequence[Sequence[float]],
    zero_std: Sequence[bool],
) -> RolloutSums:
    """Over all groups that were sampled, dropped ones included; their reward is the one before any KL."""
    reward: list[float] = []
    flat_zero: list[bool] = []
    trained, trained_zero = iter(optimised), iter(zero_std)
    for j, keep in zip(judged, kept, strict=True):
        for group, k in zip(j.groups, keep, strict=True):
            reward += next(trained) if k else group.rewards
            flat_zero.append(next(trained_zero) if k else True)
    completions = [c for j in judged for g in j.groups for c in g.completions]
    return RolloutSums.of(
        reward=reward,
        correct=[x for j in judged for x in j.scores.acc],
        rewards={name: [x for j in judged for x in j.scores.raw[name]] for name in judged[0].scores.raw},
        errors=[e is not None for j in judged for e in j.scores.errors],
        lengths=[len(c.ids) for c in completions],
        truncated=[c.truncated for c in completions],
        zero_std=flat_zero,
    )
