"""The GRPO loop of one attempt: sample, score, train, sync weights, report.

The loop yields messages and obeys commands as `rl.spec.Trainer` describes. It gets its components ready to use. Every
random stream is seeded by its purpose (`rl.seeds`), so a resumed attempt draws the same samples as an uninterrupted
one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl import checkpoint as checkpoints
from rl import spec as s
from rl.advantages import overlong_penalty, phantom_credit, zero_variance
from rl.curves import RolloutSums, step_curves
from rl.deadline import SYNC_SECONDS, within
from rl.phases import PhaseClock
from rl.policy import Policy
from rl.rollout.engine import Completion, RolloutEngine, Sampling
from rl.seeds import derived_seed
from rl.tasks import PromptSampler, Question, Task
from rl.tasks.rewards import Scorer, Scores
from rl.tasks.thinking import CompletionReader
from rl.trainers.native.learner import Group, Learner

Messages = Generator[s.Event, s.Command | None, None]

CHECK_RATIO_EVERY_STEPS = 10
"""In steps 1, 11, 21, ... the ratio of the first update is measured against a pass of its own. It costs the forward
passes of one update."""


@dataclass(frozen=True)
class Components:
    """The components of an attempt."""

    policy: Policy
    learner: Learner
    engine: RolloutEngine
    task: Task
    prompts: Mapping[str, tuple[int, ...]]
    """Token ids of the prompts of all questions, training and evaluation, by question id."""
    sampler: PromptSampler
    scorer: Scorer
    clock: PhaseClock
    notes: tuple[str, ...] = ()
    """Sentences for a person: what was chosen at load and why, and what the probe covered."""


@dataclass(frozen=True)
class _ScoredRound:
    """The groups of one round of sampling, and the scores of their completions in the same order."""

    groups: list[Group]
    scores: Scores
    phantom_credit: tuple[bool, ...]
    """Per group, as `rl.advantages.phantom_credit` gives it."""

    @property
    def rewards(self) -> torch.Tensor:
        """Per group and completion: the reward before a KL is subtracted, float64."""
        return torch.tensor([g.rewards for g in self.groups], dtype=torch.float64)

    @property
    def correct(self) -> torch.Tensor:
        """Per group and completion: raw correctness, 0 to 1, float64."""
        return _correct(self.scores, len(self.groups))


class Loop:
    """One attempt. `run` may be called once.

    Args:
        restored: the state of the checkpoint that the components were restored from; None: a fresh start.
        restored_from: the path of that checkpoint.
    """

    def __init__(
        self, trial: s.TrialSpec, components: Components, restored: Mapping[str, Any] | None, restored_from: Path | None
    ):
        self._trial = trial
        self._components = components
        self._folder = Path(trial.checkpoint_dir)
        self._restored_from = restored_from
        self._step: int = restored["step"] if restored else 0
        self._evaluated: int | None = restored["evaluated_step"] if restored else None
        """The last step at which an evaluation was done."""
        self._stop: s.Stop | None = None
        """The command that ends the attempt early."""
        self._saved: tuple[Any, ...] | None = self._progress() if restored else None
        """The progress in the newest checkpoint, so that the same checkpoint is not written twice."""

    def run(self) -> Messages:
        """See `rl.spec.Trainer.run`."""
        trial = self._trial
        yield from self._send(self._started())
        while self._stop is None:
            if self._evaluation_due():
                yield from self._send(self._evaluate())
            elif self._checkpoint_due():
                yield from self._send(self._write_checkpoint())
            elif self._step < trial.steps:
                for event in self._train():
                    yield from self._send(event)
            else:
                break
        if self._stop is not None and self._saved != self._progress():
            yield from self._send(self._write_checkpoint())
        yield s.Finished(
            step=self._step,
            policy_version=self._components.engine.policy_version,
            stopped=self._stop,
            phase_card_ns=self._components.clock.lap()[1],
        )

    def _send(self, event: s.Event) -> Messages:
        """Yield the message and carry out the command that the driver returns."""
        command = yield event
        if isinstance(event, s.CheckpointWritten):
            # The driver has received the message. Before that, a resume would use the previous checkpoint.
            checkpoints.prune(self._folder, self._trial.trainer.keep_checkpoints)
        if isinstance(command, s.SetLr):
            self._components.learner.base_lr = command.lr
        elif isinstance(command, s.Stop):
            self._stop = command
        elif isinstance(command, s.Checkpoint) and self._saved != self._progress():
            yield from self._send(self._write_checkpoint())

    def _started(self) -> s.Started:
        components = self._components
        return s.Started(
            step=self._step,
            policy_version=components.engine.policy_version,
            cards=self._trial.cards,
            engine=components.engine.name,
            device=str(components.policy.device),
            parameters=sum(p.numel() for p in components.policy.model.parameters()),
            trainable_parameters=sum(p.numel() for _, p in components.policy.parameters()),
            train_questions=len(components.task.train),
            eval_questions=len(components.task.evaluation),
            phase_card_ns=components.clock.lap()[1],
            restored_from=None if self._restored_from is None else str(self._restored_from),
            notes=components.notes,
        )

    # -----------------------------------------------------------------------------------------------------------------
    # One step
    # -----------------------------------------------------------------------------------------------------------------

    def _train(self) -> Messages:
        """One step. Yields a message per restart of a reward worker, then the step's report."""
        components, step = self._components, self._step + 1
        version = components.engine.policy_version
        rounds, kept = self._sample_groups(step)
        groups = [g for r, keep in zip(rounds, kept, strict=True) for g, k in zip(r.groups, keep, strict=True) if k]
        learned = components.learner.learn(groups, components.clock, check_ratio=step % CHECK_RATIO_EVERY_STEPS == 1)
        with components.clock.phase("sync"):
            what = f"weight sync to rollout engine {components.engine.name} rank 0"
            within(SYNC_SECONDS, what, lambda: components.engine.sync(components.policy, version + 1))
        self._step = step
        reports = [
            s.RoleRestarted("reward_worker", restart.index, restart.reason, phase_card_ns={})
            for r in rounds
            for restart in r.scores.restarts
        ]
        sampled = [g for r in rounds for g in r.groups]
        wall, phases = components.clock.lap()
        yield from reports
        yield s.StepReport(
            step=step,
            policy_version=version,
            staleness=0,
            wall_ns=wall,
            phase_card_ns=phases,
            tokens=s.TokenCounts(
                prompt=sum(len(g.prompt) * len(g.completions) for g in sampled),
                completion=sum(len(c.ids) for g in sampled for c in g.completions),
                loss=learned.loss_tokens,
            ),
            prompts=s.PromptCounts(
                trained=sum(learned.trained),
                filtered=len(sampled) - len(groups),
                failed=len(groups) - sum(learned.trained),
            ),
            curves=step_curves(
                _rollout_sums(rounds, kept, learned.rewards.tolist(), learned.zero_std),
                learned.sampler,
                learned.updates,
            ),
            lr=learned.updates[-1].lr,
            scorer_error=next((e for r in rounds for e in r.scores.errors if e), ""),
        )

    def _sample_groups(self, step: int) -> tuple[list[_ScoredRound], list[list[bool]]]:
        """(the groups of this step by round, per round and group whether the group is trained on).

        There is one round, unless `drop_zero_variance_groups` is on. Then groups without variance of what
        `zero_variance_of` names are replaced by new prompts, for up to `max_resample_rounds` more rounds. If no group
        has variance in the end, those of the last round are kept, so that every step makes updates. With `accuracy`
        each of them then has one reward, the mean of its group, so that its advantages are 0.
        """
        algorithm = self._trial.algorithm
        wanted = self._trial.prompts_per_step
        rounds: list[_ScoredRound] = []
        kept: list[list[bool]] = []
        for draw in range(1 + (algorithm.max_resample_rounds if algorithm.drop_zero_variance_groups else 0)):
            missing = wanted - sum(map(sum, kept))
            if not missing:
                break
            rounds.append(self._sample_round(step, draw, missing))
            if algorithm.drop_zero_variance_groups:
                scores = rounds[-1].correct if algorithm.zero_variance_of == "accuracy" else rounds[-1].rewards
                kept.append([not equal for equal in zero_variance(scores).tolist()])
            else:
                kept.append([True] * missing)
        if not any(map(any, kept)):
            kept[-1] = [True] * len(kept[-1])
            if algorithm.zero_variance_of == "accuracy":
                rounds[-1] = _without_differences(rounds[-1])
        return rounds, kept

    def _sample_round(self, step: int, draw: int, prompts: int) -> _ScoredRound:
        """Draw `prompts` questions, sample a group for each, and score the groups. `draw` numbers the round."""
        trial, components = self._trial, self._components
        questions = components.sampler.draw(prompts)
        sampling = Sampling(
            n=trial.group_size,
            temperature=trial.rollout.temperature,
            max_tokens=trial.rollout.max_completion_tokens,
            seed=derived_seed(trial.seed, "rollout", step, draw),
        )
        with components.clock.phase("rollout"):
            sampled = components.engine.generate([components.prompts[q.question_id] for q in questions], sampling)
        with components.clock.phase("reward"):
            scores = self._score(questions, sampled)
            lengths = torch.tensor([[len(c.ids) for c in group] for group in sampled])
            penalty = overlong_penalty(lengths, sampling.max_tokens, trial.algorithm).tolist()
        n = trial.group_size
        groups = [
            Group(
                question_id=q.question_id,
                prompt=components.prompts[q.question_id],
                completions=tuple(sampled[i]),
                rewards=tuple(r + p for r, p in zip(scores.reward[i * n : (i + 1) * n], penalty[i], strict=True)),
            )
            for i, q in enumerate(questions)
        ]
        rewards = torch.tensor([g.rewards for g in groups], dtype=torch.float64)
        return _ScoredRound(groups, scores, tuple(phantom_credit(rewards, _correct(scores, len(groups))).tolist()))

    def _score(self, questions: Sequence[Question], sampled: Sequence[Sequence[Completion]]) -> Scores:
        """The scores of all completions; `sampled` has the completions of each question."""
        components = self._components
        reader = CompletionReader(components.policy.tokenizer)
        texts, answers = [], []
        for question, group in zip(questions, sampled, strict=True):
            prompt = components.prompts[question.question_id]
            for completion in group:
                texts.append(reader.text(prompt, completion.ids))
                answers.append(question.answer)
        return self._components.scorer.score(texts, answers)

    # -----------------------------------------------------------------------------------------------------------------
    # Evaluation
    # -----------------------------------------------------------------------------------------------------------------

    def _evaluation_due(self) -> bool:
        every = self._trial.evaluation.every_steps
        due = self._step in (0, self._trial.steps) or (every > 0 and self._step % every == 0)
        return due and self._evaluated != self._step

    def _evaluate(self) -> s.EvalReport:
        """Evaluate the fixed questions. The seed is the same in every evaluation, so that evaluations are paired."""
        trial, components = self._trial, self._components
        questions = components.task.evaluation
        n = trial.evaluation.samples_per_question
        sampling = Sampling(
            n=n,
            temperature=trial.evaluation.temperature,
            max_tokens=trial.rollout.max_completion_tokens,
            seed=derived_seed(trial.task.data_seed, "evaluation"),
        )
        with components.clock.phase("evaluation"):
            sampled = components.engine.generate([components.prompts[q.question_id] for q in questions], sampling)
            acc = self._score(questions, sampled).acc
        self._evaluated = self._step
        flat = [c for group in sampled for c in group]
        wall, phases = components.clock.lap()
        return s.EvalReport(
            step=self._step,
            policy_version=components.engine.policy_version,
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
        return due and self._saved != self._progress()

    def _progress(self) -> tuple[Any, ...]:
        """Everything that can change between two checkpoints and determines their content."""
        return self._step, self._evaluated, self._components.learner.base_lr

    def _write_checkpoint(self) -> s.CheckpointWritten:
        components = self._components
        with components.clock.phase("checkpoint"):
            path, size = checkpoints.write(
                self._folder,
                self._step,
                tensors={
                    "model": dict(components.policy.parameters()),
                    **components.learner.state_dict(),
                    "rng": {"torch": torch.get_rng_state()},
                },
                state={
                    "step": self._step,
                    "evaluated_step": self._evaluated,
                    "policy_version": components.engine.policy_version,
                    "updates_done": components.learner.updates_done,
                    "base_lr": components.learner.base_lr,
                    "precision": "bf16" if components.policy.autocast else "fp32",
                    "data": components.sampler.state_dict(),
                },
            )
        self._saved = self._progress()
        wall, phases = components.clock.lap()
        return s.CheckpointWritten(self._step, str(path), size, wall, phases)


def _rollout_sums(
    rounds: Sequence[_ScoredRound],
    kept: Sequence[Sequence[bool]],
    optimised: Sequence[Sequence[float]],
    zero_std: Sequence[bool],
) -> RolloutSums:
    """Sums over all sampled groups. For dropped groups the reward is the one before a KL is subtracted.

    `optimised` and `zero_std` are the optimised rewards and the zero-variance flags of the kept groups, in their order.
    """
    reward: list[float] = []
    flat_zero: list[bool] = []
    trained, trained_zero = iter(optimised), iter(zero_std)
    for r, keep in zip(rounds, kept, strict=True):
        for group, k in zip(r.groups, keep, strict=True):
            reward += next(trained) if k else group.rewards
            flat_zero.append(next(trained_zero) if k else len(set(group.rewards)) == 1)
    completions = [c for r in rounds for g in r.groups for c in g.completions]
    return RolloutSums.of(
        reward=reward,
        correct=[x for r in rounds for x in r.scores.acc],
        rewards={name: [x for r in rounds for x in r.scores.raw[name]] for name in rounds[0].scores.raw},
        errors=[e is not None for r in rounds for e in r.scores.errors],
        lengths=[len(c.ids) for c in completions],
        truncated=[c.truncated for c in completions],
        zero_std=flat_zero,
        phantom_credit=[p for r in rounds for p in r.phantom_credit],
    )


def _correct(scores: Scores, groups: int) -> torch.Tensor:
    return torch.tensor(scores.raw["correct"], dtype=torch.float64).view(groups, -1)


def _without_differences(scored: _ScoredRound) -> _ScoredRound:
    """The round with the mean reward of each group as the reward of all its completions."""
    groups = [
        dataclasses.replace(g, rewards=(sum(g.rewards) / len(g.rewards),) * len(g.rewards)) for g in scored.groups
    ]
    return dataclasses.replace(scored, groups=groups)
