"""The configuration at a point of the search space."""

from __future__ import annotations

from sweeps.config.points import with_values
from sweeps.planning.plan import make_plan
from tests.sweeps.search_spaces import ONE_POINT, smoke


def test_keys_of_every_section_of_a_trial_can_be_varied():
    other = {
        "model.lora_rank": [4, 8],
        "task.prompt_template": ["{question}", "Q: {question}"],
        "algorithm.clip_eps_high": [0.2, 0.28],
        "algorithm.drop_zero_variance_groups": [True, False],
        "rollout.max_completion_tokens": [16, 24],
        "evaluation.samples_per_question": [1, 2],
        "trainer.precision": ["fp32", "bf16"],
        "task.reward_weights.format": [0.1, 0.2],
        "algorithm.dual_clip": [None, 3.0],
    }
    for key, (one, two) in other.items():
        cfg = with_values(smoke(*ONE_POINT), {key: one})
        trials = {make_plan(with_values(cfg, {key: v})).trials[0].trial_id for v in (one, two)}
        assert len(trials) == 2, key
