"""The message for each kind of bad configuration: the key, the mistake and the remedy."""

from __future__ import annotations

import re

import pytest

from sweeps.config.build import compose
from sweeps.config.types import ConfigError

ALL_COMMANDS = ("python sweep.py +stage=smoke", "python sweep.py +stage=single", "python sweep.py +stage=multi")

# The overrides, and texts that the message must contain.
STAGE = [
    ([], ("no stage was chosen", *ALL_COMMANDS)),
    (["machine=h100"], ("no stage was chosen", *ALL_COMMANDS)),
    (["~stage"], ("no stage was chosen", *ALL_COMMANDS)),
    (["+stage=smoke", "+stage=single"], ("2 stages were chosen (smoke, single)", *ALL_COMMANDS)),
    (["+stage=[smoke,single]"], ("2 stages were chosen (smoke, single)", *ALL_COMMANDS)),
    (["+stage=smoke,single"], ("2 stages were chosen (smoke, single)", *ALL_COMMANDS)),
    (["+stage=smokey"], ("no stage 'smokey'", "did you mean +stage=smoke?", *ALL_COMMANDS)),
    (["+stage=banana"], ("no stage 'banana'.", *ALL_COMMANDS)),
    (["+stage="], ("no stage ''", *ALL_COMMANDS)),
    (["stage=smoke"], ("stage=smoke", "one plus sign: python sweep.py +stage=smoke")),
    (["++stage=smoke"], ("++stage=smoke", "one plus sign: python sweep.py +stage=smoke")),
    (["smoke"], ("'smoke' is not of the form KEY=VALUE", "did you mean +stage=smoke?")),
]
NAMES = [
    (["machine=foo"], ("no machine 'foo'", "cpu", "h100x8", "p5", "rtx4090")),
    (["machine=rtx409"], ("did you mean machine=rtx4090?",)),
    (["machine=null"], ("no machine 'null'",)),
    (["model=_base"], ("no model '_base'", "hf, smollm2_135m, tiny")),
    (["task=[gsm8k,products]"], ("no task 'gsm8k,products'",)),
    (["~model"], ("model cannot be left out",)),
    (["+machine=h100"], ("write machine=h100, without a plus sign",)),
    (["algorithm=grop"], ("did you mean algorithm=grpo?",)),
    (["machine.crads=2"], ("no key 'machine.crads'", "did you mean machine.cards?", "machine has: ")),
    (["search.promts_per_step=[2]"], ("did you mean search.prompts_per_step=[2]?",)),
    (["lr=1e-5"], ("no key 'lr'", "did you mean algorithm.lr?")),
    (["group_size=4"], ("did you mean search.group_size?",)),
    (["machin=cpu"], ("did you mean machine?",)),
    (["+no_such_key=1"], ("no key 'no_such_key'", "--help")),
    (["++machine.no_such_key=1"], ("no key 'machine.no_such_key'", "machine has: ")),
    (["pricing=aws"], ("no key 'pricing'",)),
    (["+paths.root=x"], ("write paths.root=x, without a plus sign",)),
    (
        ["trainer.simulated.crash_at_step=3"],
        ("does not exist", "write trainer=simulated trainer.simulated.crash_at_step=3"),
    ),
    (["task.params.foo=3"], ("+task.params.foo=",)),
    (["search.seeds=0,1"], ("'search.seeds=[0,1]'",)),
    (["search.seeds=range(3)"], ("several values for a key that takes one",)),
    (["gate.force=low, but ok"], ("'gate.force=\"low, but ok\"'",)),
    (["search.seeds=[0,1"], ("'search.seeds=[0,1' cannot be read", "write 'search.seeds=[0,1]'")),
]
TYPES = [
    (["stage.steps=2.5"], ("stage.steps=2.5", "whole number")),
    (["search.prompts_per_step=[2,x]"], ("search.prompts_per_step[1]='x'", "whole number")),
    (["search.group_size=null"], ("search.group_size", "None")),
    (["search.lr_scaling=[cubic]"], ("'cubic'", "'hold'", "'sqrt'", "'linear'", "'clip_frac'")),
    (["algorithm.lr=fast"], ("algorithm.lr='fast'", "write a number")),
    (["algorithm.surrogate=ppo"], ("algorithm.surrogate='ppo'", "'clip'", "'cispo'")),
    (["dry_run=yes"], ("dry_run='yes'", "true or false")),
    (["resume=12"], ("'resume=\"12\"'",)),
    (["paths.root=null"], ("paths.root", "null is not possible")),
    (["machine.purchase=stolen"], ("machine.purchase='stolen'", "'spot'")),
    (["paths=3"], ("paths=3", "mapping")),
    (["tracking.uri=${oc.env:NO_SUCH_VARIABLE_HERE}"], ("NO_SUCH_VARIABLE_HERE", "tracking.uri")),
    (["+task.reward_weights.correct=1"], ("task.reward_weights.correct", "without a plus sign")),
]
VALUES = [
    (["search.group_size=1"], ("search.group_size=1 trains nothing", "2 or more")),
    (["search.group_size=[8,0]"], ("search.group_size=0", "2 or more")),
    (["search.prompts_per_step=0"], ("search.prompts_per_step=0 should be 1 or more",)),
    (["search.prompts_per_step=[]"], ("search.prompts_per_step=[] has no value",)),
    (["search.prompts_per_step=[2,3]"], ("search.prompts_per_step=3", "updates_per_rollout=2", "1, 3 updates")),
    (["algorithm.updates_per_rollout=0"], ("algorithm.updates_per_rollout=0",)),
    (["algorithm.updates_per_rollout=8"], ("algorithm.updates_per_rollout=8", "prompts_per_step=2")),
    (["search.seeds=[-1]"], ("search.seeds=-1",)),
    (["search.trials=0"], ("search.trials=0", "null")),
    (["search.max_concurrent=-1"], ("search.max_concurrent=-1",)),
    (["stage.steps=0"], ("stage.steps=0 should be 1 or more",)),
    (["algorithm.lr=-1e-5"], ("algorithm.lr=-1e-05", "above 0")),
    (["algorithm.lr=0"], ("algorithm.lr=0.0", "above 0")),
    (["algorithm.lr=nan"], ("algorithm.lr=nan", "finite")),
    (["algorithm.max_grad_norm=inf"], ("algorithm.max_grad_norm=inf", "finite")),
    (["algorithm.kl_estimator=k1"], ("algorithm.kl_estimator=k1", "expectation on-policy is zero", "k3")),
    (["rollout.top_p=0.9"], ("rollout.top_p=0.9", "do not model", "1.0")),
    (["rollout.top_k=50"], ("rollout.top_k=50", "do not model", "should be 0")),
    (["rollout.min_p=0.1"], ("rollout.min_p=0.1", "do not model")),
    (["rollout.repetition_penalty=1.1"], ("rollout.repetition_penalty=1.1", "do not model")),
    (["rollout.temperature=0"], ("rollout.temperature=0.0 should be above 0",)),
    (["rollout.gpu_memory_utilization=1.5"], ("rollout.gpu_memory_utilization=1.5",)),
    (["rollout.max_completion_tokens=0"], ("rollout.max_completion_tokens=0",)),
    (["rollout=simulated"], ("rollout=simulated", "trainer=native needs rollout=auto")),
    (["evaluation.temperature=0", "evaluation.samples_per_question=4"], ("greedy",)),
    (["trainer.checkpoint_every_steps=0"], ("trainer.checkpoint_every_steps=0",)),
    (["trainer=simulated", "trainer.simulated.acc_final=2"], ("acc_final=2.0", "at most 1")),
    (["trainer=simulated", "trainer.simulated.hang_at_step=-1"], ("hang_at_step=-1",)),
    (["trainer=simulated", "trainer.simulated.steps_to_half=0"], ("steps_to_half=0.0",)),
    (["trainer.device=cuda"], ("trainer.device=cuda", "machine=cpu has no CUDA card")),
    (["model=hf"], ("model=hf needs model.path", "hub id")),
    (["model=hf", "model.path=/no/such/model"], ("model.path=/no/such/model is not a folder", "owner/name")),
    (["model=hf", "model.path=just-a-name"], ("model.path=just-a-name is not a folder",)),
    (["model.path=owner/name"], ("model=hf model.path=owner/name",)),
    (["model.lora_rank=-1"], ("model.lora_rank=-1",)),
    (
        ["+model.chat_template_kwargs.enable_thinking=false", "model.chat_template=false"],
        ("model.chat_template_kwargs has no effect", "model.chat_template=false"),
    ),
    (
        ["model.chat_template=true", "+model.chat_template_kwargs.tools=[1]"],
        ("model.chat_template_kwargs.tools=[1]", "a text, a number, true or false"),
    ),
    (["model.lora_rank=8", "model.lora_targets=[]"], ("model.lora_targets=[]",)),
    (["task=gsm8k", "task.path=/no/such/gsm8k"], ("task.path=/no/such/gsm8k", "no such file")),
    (["task=gsm8k", "task.path=questions.jsonl"], ("task.path=questions.jsonl", "no such file")),
    (["task=gsm8k", "task.path=null"], ("task.path is missing",)),
    (["task.path=questions.jsonl"], ("task.path=questions.jsonl is used by tasks from files only",)),
    (["task=module"], ("task.name=''", "package.module:function")),
    (["task.prompt_template=hello"], ("task.prompt_template='hello'", "{question}")),
    (["'task.format_pattern=(a'"], ("cannot be read",)),
    (['task.format_pattern="(a"'], ("task.format_pattern='(a'", "no regular expression")),
    (["task.eval_questions=0"], ("task.eval_questions=0",)),
    (["task.reward_weights.format=nan"], ("task.reward_weights.format=nan",)),
    (["search.cards_per_trial=8"], ("search.cards_per_trial=8", "machine=cpu", "machine=h100x8")),
    (["machine.cards=0"], ("machine.cards=0 should be 1 or more",)),
    (["machine.watts=0"], ("machine.watts=0.0", "electricity", "watts")),
    (["machine.sku="], ("machine.sku is empty",)),
    (["budget.sweep_limit=12.10"], ("budget.sweep_limit=12.1 has no currency", "'budget.sweep_limit=12.10 USD'")),
    (["budget.sweep_limit=12"], ("has no currency",)),
    (["budget.sweep_limit=twelve USD"], ("budget.sweep_limit=twelve USD", "not a plain decimal number")),
    (["budget.sweep_limit=0 USD"], ("budget.sweep_limit=0 USD should be above 0",)),
    (["budget.sweep_limit=-1 USD"], ("budget.sweep_limit=-1 USD should be above 0",)),
    (["budget.sweep_limit=5 dollars"], ("'dollars' is not a currency",)),
    (["gate.ratio_tolerance=0"], ("gate.ratio_tolerance=0.0 should be above 0",)),
    (["resume=a/b"], ("resume='a/b'", "auto, never")),
    (["resume="], ("resume=''", "auto, never")),
    (["paths.root="], ("paths.root is empty",)),
    (["tracking.uri=mlruns"], ("tracking.uri=mlruns", "http://HOST:PORT")),
    (["tracking.experiment="], ("tracking.experiment is empty",)),
    (["storage.database_url=mysql://u:pw@h/d"], ("storage.database_url", "postgresql")),
]


def message(overrides: list[str]) -> str:
    with pytest.raises(ConfigError) as raised:
        compose(overrides)
    return str(raised.value)


@pytest.mark.parametrize(("typed", "parts"), STAGE, ids=[" ".join(t) or "nothing" for t, _ in STAGE])
def test_exactly_one_stage_is_chosen_with_one_plus_sign(typed: list[str], parts: tuple[str, ...]) -> None:
    text = message(typed)
    assert [p for p in parts if p not in text] == [], text


@pytest.mark.parametrize(
    ("typed", "parts"), NAMES + TYPES + VALUES, ids=[" ".join(t) for t, _ in NAMES + TYPES + VALUES]
)
def test_a_bad_name_type_or_value_is_one_sentence_with_its_place_and_remedy(
    typed: list[str], parts: tuple[str, ...]
) -> None:
    text = message(["+stage=smoke", *typed])
    assert [p for p in parts if p not in text] == [], text
    assert len(text.splitlines()) == 1, text
    assert not re.search(r"hydra|omegaconf|struct|SweepConfig|HYDRA_FULL_ERROR|Traceback", text, re.IGNORECASE), text


def test_all_bad_values_are_reported_in_one_message() -> None:
    text = message(["+stage=smoke", "search.group_size=1", "rollout.top_p=0.5", "gate.ratio_tolerance=-1"])
    assert len(text.splitlines()) == 3


def test_a_problem_that_several_trials_share_is_reported_once() -> None:
    text = message(["+stage=smoke", "search.prompts_per_step=[2,4,8]", "algorithm.lr=0"])
    assert len(text.splitlines()) == 1


def test_a_stage_for_many_cards_names_the_machines_that_have_them() -> None:
    text = message(["+stage=multi", "machine=rtx4090"])
    assert "machine=a100x8 or machine=h100x8 or machine=p5" in text


def test_a_password_in_a_bad_database_url_is_not_printed() -> None:
    assert "pw" not in message(["+stage=smoke", "storage.database_url=mysql://u:pw@h/d"])


def test_hub_ids_and_folders_and_files_that_exist_pass(tmp_path) -> None:
    (tmp_path / "q.jsonl").write_text("")
    cfg = compose(
        ["+stage=smoke", "model=hf", f"model.path={tmp_path}", "task=gsm8k", f"task.path={tmp_path / 'q.jsonl'}"]
    )
    assert cfg.model.path == str(tmp_path)
    cfg = compose(["+stage=smoke", "model=hf", "model.path=Qwen/Qwen3-0.6B", "task=gsm8k"])
    assert cfg.task.path == "openai/gsm8k"
