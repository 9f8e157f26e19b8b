"""Loading a policy, its frozen copy, and its weights under the names that engines expect."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from rl.layout import Sequences, micro_batches
from rl.models import prepare
from rl.policy import Policy, load_policy
from rl.spec import ConfigurationError, ModelSpec, TaskSpec, TrainerSpec
from tests.rl.random_llama import random_llama_policy
from tests.rl.small_models import VOCABULARY, save_model

SUMS = TaskSpec("reasoning_gym", "chain_sum", params={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})


def load(cache: Path, lora_rank: int = 0, precision: Any = "fp32") -> Policy:
    model = ModelSpec("tiny", lora_rank=lora_rank)
    torch.manual_seed(0)
    return load_policy(prepare(model, SUMS, cache), model, TrainerSpec(precision=precision), torch.device("cpu"))


def perturb(policy: Policy) -> None:
    """Add seeded noise to all trained parameters."""
    torch.manual_seed(1)
    with torch.no_grad():
        for _, parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def logprobs(policy: Policy) -> torch.Tensor:
    (batch,) = micro_batches([Sequences((5, 6, 7), ((8, 9, 1), (10, 1)))], 100, packing=True, pad_id=0)
    with torch.no_grad():
        return policy.forward(batch, 1.0)[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_frozen_copy_changes_only_when_updated_and_then_equals_the_policy(
    model_cache: Path, lora_rank: int, precision: str
) -> None:
    policy = load(model_cache, lora_rank, precision)
    frozen = policy.frozen_copy()
    assert torch.equal(logprobs(frozen), logprobs(policy))
    perturb(policy)
    assert not torch.allclose(logprobs(frozen), logprobs(policy), atol=1e-3)
    frozen.copy_trained_from(policy)
    assert torch.equal(logprobs(frozen), logprobs(policy))
    assert not frozen.parameters()


def test_lora_weights_are_merged_under_the_names_of_the_plain_model(model_cache: Path) -> None:
    adapted = load(model_cache, lora_rank=4)
    perturb(adapted)
    merged = copy.deepcopy(adapted.model).merge_and_unload().state_dict()  # type: ignore[operator]
    found = dict(adapted.weights())
    assert sorted(found) == sorted(merged) == sorted(dict(load(model_cache).weights()))
    for name, weight in merged.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6)


def test_lora_reference_is_the_model_without_adapters(model_cache: Path) -> None:
    plain, adapted = load(model_cache), load(model_cache, lora_rank=4)
    perturb(adapted)
    assert not torch.allclose(logprobs(adapted), logprobs(plain), atol=1e-3)
    with adapted.reference_weights():
        torch.testing.assert_close(logprobs(adapted), logprobs(plain))


def test_frozen_layers_of_lora_are_bf16_and_compute_the_same_as_fp32_weights_under_autocast(model_cache: Path) -> None:
    policy = load(model_cache, lora_rank=4, precision="bf16")
    perturb(policy)
    frozen = {name: p.dtype for name, p in policy.model.named_parameters() if not p.requires_grad}
    assert {p.dtype for _, p in policy.parameters()} == {torch.float32}
    linear = {name for name in frozen if "_proj" in name}
    assert {frozen[name] for name in linear} == {torch.bfloat16}
    assert {frozen[name] for name in frozen.keys() - linear} == {torch.float32}
    wide = copy.deepcopy(policy)
    plain = load(model_cache, lora_rank=4, precision="fp32")
    weights = dict(plain.model.named_parameters())
    for name, parameter in wide.model.named_parameters():
        if not parameter.requires_grad:
            parameter.data = weights[name].data
    assert torch.equal(logprobs(wide), logprobs(policy))


def test_frozen_copy_shares_the_weights_that_are_not_trained(model_cache: Path) -> None:
    policy = load(model_cache, lora_rank=4)
    copied = dict(policy.frozen_copy().model.named_parameters())
    for name, parameter in policy.model.named_parameters():
        assert (copied[name].data_ptr() == parameter.data_ptr()) == (not parameter.requires_grad)


def test_flash_attention_in_fp32_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    saved_policy(tmp_path)
    network = random_llama_policy(11).model
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *args, **settings: network)
    model = ModelSpec("hf", attention="flash_attention_2")
    with pytest.raises(ConfigurationError, match=r"computes in bf16 only.*trainer\.precision=bf16"):
        load_policy(tmp_path, model, TrainerSpec(precision="fp32"), torch.device("cpu"))


def test_parameters_of_a_checkpoint_are_loaded_by_name() -> None:
    policy, other = random_llama_policy(11), random_llama_policy(11, seed=1)
    policy.load_parameters({name: p.detach().clone() for name, p in other.parameters()})
    assert torch.equal(logprobs(policy), logprobs(other))


def test_parameters_of_another_model_are_refused() -> None:
    policy, other = random_llama_policy(11), random_llama_policy(12)
    with pytest.raises(ConfigurationError, match="weights of another model"):
        policy.load_parameters(dict(other.parameters()))


def saved_policy(folder: Path, **changes: Any) -> None:
    """A model folder with a tokenizer; `changes` are set in the model's configuration."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model: Any = random_llama_policy(11).model
    for name, value in changes.items():
        setattr(model.config, name, value)
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.save_pretrained(folder)
    vocabulary = {f"t{i}": i for i in range(11)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary))).save_pretrained(folder)


def test_end_of_sequence_ids_of_the_generation_configuration_are_used(tmp_path: Path) -> None:
    saved_policy(tmp_path, eos_token_id=[1, 7])
    policy = load_policy(tmp_path, ModelSpec("hf"), TrainerSpec(precision="fp32"), torch.device("cpu"))
    assert policy.eos_ids == {1, 7}
    assert policy.pad_id == 1


def test_model_without_end_of_sequence_token_is_refused(tmp_path: Path) -> None:
    saved_policy(tmp_path, eos_token_id=None)
    with pytest.raises(ConfigurationError, match="names an end-of-sequence token"):
        load_policy(tmp_path, ModelSpec("hf"), TrainerSpec(precision="fp32"), torch.device("cpu"))


def test_dropout_of_a_loaded_model_is_off(tmp_path: Path) -> None:
    saved_policy(tmp_path, attention_dropout=0.5)
    trainer = TrainerSpec(precision="fp32", gradient_checkpointing=True)
    policy = load_policy(tmp_path, ModelSpec("hf"), trainer, torch.device("cpu"))
    assert policy.model.training
    assert torch.equal(logprobs(policy), logprobs(policy))


@pytest.mark.parametrize("architecture", ["opt", "mixtral"])
def test_dropout_and_router_noise_stored_as_numbers_are_off(tmp_path: Path, architecture: str) -> None:
    save_model(tmp_path, architecture)
    trainer = TrainerSpec(precision="fp32", gradient_checkpointing=True)
    policy = load_policy(tmp_path, ModelSpec("hf"), trainer, torch.device("cpu"))
    assert policy.model.training
    assert torch.equal(logprobs(policy), logprobs(policy))


def test_padding_id_outside_of_the_vocabulary_is_not_used(tmp_path: Path) -> None:
    """The tokenizer of Qwen2 adds a padding token of its own."""
    save_model(tmp_path, "qwen2_window")
    policy = load_policy(tmp_path, ModelSpec("hf"), TrainerSpec(precision="fp32"), torch.device("cpu"))
    assert policy.tokenizer.pad_token_id >= VOCABULARY
    assert policy.pad_id < VOCABULARY


def test_scaled_logits_are_refused(tmp_path: Path) -> None:
    from transformers import CohereConfig, CohereForCausalLM, PreTrainedTokenizerFast

    saved_policy(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    config = CohereConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        logit_scale=0.5,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    CohereForCausalLM(config).save_pretrained(tmp_path / "scaled")
    tokenizer.save_pretrained(tmp_path / "scaled")
    with pytest.raises(ConfigurationError, match="CohereForCausalLM is not supported: its logits are not a plain"):
        load_policy(tmp_path / "scaled", ModelSpec("hf"), TrainerSpec(precision="fp32"), torch.device("cpu"))


def test_pair_cost_is_attention_work_as_a_share_of_the_work_of_the_layers() -> None:
    policy = random_llama_policy(11)
    weights = sum(p.numel() for p in policy.backbone.parameters()) - 11 * 16
    assert policy.pair_cost == pytest.approx(2 * 2 * 16 / weights)
