"""What holds for every finding of a name: its title, likely cause, remedy, and what it cannot see.

Tested in tests/sweeps/protocol/diagnosis/test_diagnose.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class FindingText:
    title: str
    cause: str
    remedy: str
    cannot_see: str


TEXTS: Mapping[str, FindingText] = {
    "not_finite": FindingText(
        "values that are not finite",
        "A division by zero, an overflow in low precision, or log-probabilities of minus infinity.",
        "Resume from the last checkpoint before these steps. Check the precision, the mask of empty completions "
        "and the sampler's log-probabilities.",
        "A trainer that replaces NaN by 0 before it logs.",
    ),
    "scorer_errors": FindingText(
        "scorer errors",
        "The reward function raises errors or exceeds its deadline. These completions count as wrong.",
        "Read the errors in the trial's log, correct the reward function and start again.",
        "A reward function that catches its own errors and returns a number.",
    ),
    "reward_collapse": FindingText(
        "reward collapsed",
        "The policy broke: its completions no longer contain an answer. With reward near 0 no group has reward "
        "spread, so there is no gradient that leads back. Usual triggers: a learning rate that is too high, "
        "negative advantages that push probability away without limit, sampler and learner that differ.",
        "Stop the trial. Start again from a checkpoint before the first evidence, with a lower learning rate, a KL "
        "penalty, or a tighter clip. The same recipe can die with one seed and live with another: try two more "
        "seeds.",
        "A run that would have recovered after more than one window. Rewards that can be negative: a share of the "
        "best has no meaning there. Damage that the training reward does not show.",
    ),
    "reward_recovered": FindingText(
        "reward collapsed and recovered",
        "The policy broke and found its way back. The same recipe may not do so with another seed.",
        "Lower the learning rate before a longer stage, and run more than one seed.",
        "Whether it will happen again.",
    ),
    "reward_decline": FindingText(
        "reward is falling",
        "The policy loses what it had learned: often a learning rate that is too high late in the run, or harder "
        "prompts.",
        "Continue from the checkpoint with the best evaluation, with a lower learning rate. Check whether the "
        "order of the prompts explains the fall.",
        "A fall that has harder prompts as its only reason. A dip that will pass.",
    ),
    "no_learning": FindingText(
        "no learning",
        "The updates do not change what is rewarded: a learning rate that is too low, groups without reward "
        "spread, a reward that the model cannot reach, or masks that remove the gradient.",
        "Look at zero_std_frac and grad_norm first. If groups differ and the gradient is not 0, raise the learning "
        "rate and compare over the same number of completions. Otherwise choose easier prompts or a larger model.",
        "Gains below the noise of the training reward. An evaluation on fixed questions sees smaller gains.",
    ),
    "entropy_collapse": FindingText(
        "entropy collapsed",
        "The policy has become nearly deterministic, so the completions of a group are alike and teach nothing.",
        "Raise the upper clip (clip_eps_high), lower the learning rate, sample at temperature 1, or filter groups "
        "without spread.",
        "Whether the collapse is harmful where the task is nearly solved: a low entropy is normal there.",
    ),
    "entropy_explosion": FindingText(
        "entropy exploded",
        "The policy moves towards random tokens: often a learning rate that is too high, an entropy bonus, or "
        "negative advantages without a limit.",
        "Read a few completions. Lower the learning rate, remove the entropy bonus, add a KL penalty, and start "
        "again from a checkpoint before the first evidence.",
        "Healthy exploration on a task with many right answers, where entropy can rise for good.",
    ),
    "kl_runaway": FindingText(
        "KL grows without bound",
        "The policy leaves the reference model ever faster, and the reward does not pay for it.",
        "Raise the KL coefficient or lower the learning rate, and start again from a checkpoint before the first "
        "evidence.",
        "A run without a reference model. A reference that is another model, where KL is large from the first step.",
    ),
    "gradient_spikes": FindingText(
        "gradient spikes",
        "Single batches with extreme gradients: very long completions, tokens of very low probability, or a "
        "mismatch between sampler and learner.",
        "Check that gradient clipping is on. Look at the completions of these steps; lower the learning rate, or "
        "correct for the sampler's probabilities.",
        "Spikes within a row that is a mean of several steps, or whose value is that of its last step.",
    ),
    "learning_rate_too_high": FindingText(
        "learning rate too high",
        "Each update moves the policy further than the clip allows for, or repeatedly throws it off.",
        "Halve the learning rate, and compare over the same number of completions.",
        "With one update per rollout the ratio is 1 by construction, so clip_frac cannot show it; KL, gradient "
        "norms and reward must.",
    ),
    "learning_rate_too_low": FindingText(
        "learning rate too low",
        "The policy hardly moves although groups have reward spread.",
        "Try 3 times the learning rate in a paired trial, over the same number of completions. LoRA needs about 10 "
        "times the rate of full fine-tuning (about 1e-6).",
        "A low clip_frac is normal for healthy runs; without a lack of gain it proves nothing.",
    ),
    "length_explosion": FindingText(
        "completions grow without gain",
        "Length is rewarded, or not punished, more than correctness; or the policy repeats itself.",
        "Read the longest completions. Use a token-level loss without length bias, or an overlong penalty; check "
        "that truncated completions earn nothing by their length.",
        "Growth that will pay later: longer reasoning can precede higher accuracy.",
    ),
    "length_collapse": FindingText(
        "completions collapsed in length",
        "Short answers are rewarded or punished less, or the policy emits the end of sequence at once.",
        "Read a few completions. Check the reward of an empty or very short answer.",
        "Shorter answers that are as good: then the reward does not fall.",
    ),
    "limit_too_short": FindingText(
        "completion limit too short",
        "Most completions are cut before their answer, from the start. They score as failures with any "
        "content, and groups in which all are cut teach nothing.",
        "Raise rollout.max_completion_tokens, or use a model or prompt that answers in fewer tokens.",
        "Answers that stand before the cut: then the reward is not hurt. Without truncated_frac it is inferred "
        "from the mean length.",
    ),
    "dead_groups": FindingText(
        "groups teach nothing",
        "All completions of a group earn the same: the questions are too hard for the model (or the reward never "
        "pays).",
        "Use easier questions, more completions per prompt, or filter by the start model's accuracy. Check that "
        "the reward function pays a right answer.",
        "Without zero_std_frac only a reward that never changes is visible. A solved task has the same curve; "
        "there accuracy separates the two.",
    ),
    "groups_of_one": FindingText(
        "groups of one completion",
        "A group of one has no baseline to compare with: this is not GRPO, under any name.",
        "Sample at least 4 completions per prompt; 8 is a good start.",
        "A trainer that takes its baseline from elsewhere, for example from the batch or a critic.",
    ),
    "phantom_credit": FindingText(
        "phantom credit",
        "Groups whose members are all right or all wrong still differ in reward, by format or style. They push the "
        "policy without any information about correctness.",
        "Filter groups by accuracy instead of reward, lower the weight of the format reward, or pay format only "
        "with a right answer.",
        "Whether the pushed style helps accuracy later.",
    ),
    "reward_hacking": FindingText(
        "reward rises, accuracy does not",
        "The policy found something that pays other than right answers.",
        "Read completions with the highest reward. Compare the single reward functions; correct the one that pays, "
        "or lower its weight.",
        "A hack that the accuracy scorer accepts as well. Accuracy that follows later than format does.",
    ),
    "evaluation_fell": FindingText(
        "evaluation accuracy fell",
        "Training damaged the model on the questions outside training.",
        "Continue from the best checkpoint. Lower the learning rate or add a KL penalty.",
        "Differences below the resolution of the evaluation; pairs of the same questions see smaller ones.",
    ),
    "evaluation_gap": FindingText(
        "evaluation far below training accuracy",
        "The policy is worse on other questions than in training: it memorised the training questions, the scorer "
        "can be cheated in training, or the evaluation uses another template, temperature or limit.",
        "Compare template, temperature and limit of both. Look for duplicates between training and evaluation. "
        "Take more training questions.",
        "A training set that is easier than the evaluation from the start: measure the start model on both.",
    ),
    "evaluation_too_small": FindingText(
        "evaluation too small",
        "With this many questions chance alone moves the accuracy by more than the change that was seen.",
        "Evaluate on more questions, on the same ones each time, and compare in pairs.",
        "Pairs: on the same questions smaller differences can be seen than this estimate for independent samples.",
    ),
    "weight_sync_broken": FindingText(
        "weight sync broken",
        "The engine samples with weights of an earlier step: updates reach the learner only.",
        "Check that every sync advances the policy version and drops the prefix cache. Preflight tests it in seconds.",
        "A sync that is skipped now and then. Runs without logp_diff_mean, mismatch_kl or staleness.",
    ),
    "sampler_mismatch": FindingText(
        "sampler and learner drift apart",
        "Both have the same weights, but their probabilities differ more and more: precision, a kernel, or rarer "
        "tokens.",
        "Use the same precision on both sides, switch on algorithm.sampler_correction, and lower the learning rate.",
        "A mismatch that is constant from the first step: preflight measures its normal level.",
    ),
    "stale_policy": FindingText(
        "samples become stale",
        "Rollouts are trained on ever later than they were sampled: training is slower than sampling, and the "
        "queue grows.",
        "Limit the queue, move cards from sampling to training, or lower the number of prompts per step.",
        "Staleness that is high but constant; its effect shows in clip_frac and approx_kl.",
    ),
    "rollout_bound": FindingText(
        "most time goes into sampling",
        "Sampling is the bottleneck of a step.",
        "Give more cards to sampling, raise the engine's batch, shorten completions, or overlap sampling with "
        "training.",
        "Waiting that a trainer counts as sampling, for example loading weights.",
    ),
    "training_bound": FindingText(
        "most time goes into training",
        "Updates are the bottleneck of a step.",
        "Give more cards to training, pack sequences, raise the micro-batch, or use fewer updates per rollout.",
        "Waiting that a trainer counts as training.",
    ),
    "time_outside_steps": FindingText(
        "much time outside of steps",
        "Loading, evaluations, checkpoints and saving take a large part of the paid time.",
        "Evaluate and save less often or on fewer questions, keep the model in memory between trials, and count "
        "this time in forecasts.",
        "What the time was spent on.",
    ),
}
"""By the name of the finding."""
