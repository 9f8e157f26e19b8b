"""Whether a trial fits a card, and what would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl.memory.architecture import Architecture, read_architecture
from rl.memory.usage import predict
from rl.memory.verdict import GIB, Card, judge
from rl.spec import AlgorithmSpec, ModelSpec, TrainerSpec, TrialSpec
from tests.rl.model_folders import LLAMA_8B, a_trial, write_config

RTX4090 = Card("rtx4090", 24, "cuda")
A100 = Card("a100", 80, "cuda")
H200 = Card("h200", 141, "cuda")
LAPTOP = Card("cpu", 512, "cpu")
HALF_B = LLAMA_8B | {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 24}


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Architecture:
    return read_architecture(write_config(tmp_path_factory.mktemp("8b"), "llama", LLAMA_8B))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Architecture:
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8}
    return read_architecture(write_config(tmp_path_factory.mktemp("small"), "llama", HALF_B | heads))


def of(spec: TrialSpec, model: Architecture, card: Card = RTX4090):
    return predict(model, spec, device=card.device, engine="transformers", card_bytes=int(card.memory_gib * GIB))


def with_(spec: TrialSpec, overrides: str) -> tuple[TrialSpec, str]:
    """The specification with typed overrides, and the machine that they name."""
    machine = ""
    for override in overrides.split():
        key, value = override.split("=")
        if key == "machine":
            machine = value
            continue
        section, name = key.split(".")
        typed = {"true": True}.get(value, int(value) if value.isdigit() else value)
        spec = replace(spec, **{section: replace(getattr(spec, section), **{name: typed})})
    return spec, machine


@pytest.mark.parametrize(("lora_rank", "missing_gib"), [(0, 100), (32, 0.5)], ids=["full", "LoRA"])
def test_an_8b_does_not_fit_24_gib_and_every_suggestion_fits(large: Architecture, lora_rank: int, missing_gib: float):
    spec = a_trial(model=ModelSpec("hf", path="8b", lora_rank=lora_rank))
    cards = {c.machine: c for c in (A100, H200, LAPTOP)}
    verdict = judge(large, spec, RTX4090, engine="transformers", other_cards=list(cards.values()))
    assert not verdict.fits
    assert verdict.missing_bytes > missing_gib * GIB
    assert verdict.suggestions
    for text in verdict.suggestions:
        changed, machine = with_(spec, text)
        assert machine != "cpu"
        card = cards.get(machine, RTX4090)
        assert judge(large, changed, card, engine="transformers").fits, text


def test_the_verdict_names_the_need_the_memory_the_parts_and_what_fits(large: Architecture):
    text = str(judge(large, a_trial(), RTX4090, engine="transformers", other_cards=[A100]))
    for words in ("rtx4090", "does not fit", "weights 29.9 GiB", "optimiser 59.8 GiB", "GiB too much", "machine=a100"):
        assert words in text
    assert "model.lora_rank=16" in text


def test_a_trial_that_fits_has_no_suggestions(small: Architecture):
    verdict = judge(small, a_trial(), RTX4090, engine="transformers", other_cards=[A100])
    assert verdict.fits
    assert verdict.suggestions == ()
    assert verdict.missing_bytes == 0


def test_results_stay_the_same_where_a_smaller_micro_batch_is_enough(small: Architecture):
    spec = a_trial(trainer=TrainerSpec(precision="bf16", micro_batch_tokens=32768))
    verdict = judge(small, spec, RTX4090, engine="transformers", other_cards=[A100])
    assert not verdict.fits
    assert verdict.suggestions[0].startswith("trainer.")
    assert "lora" not in verdict.suggestions[0]


def test_the_parts_add_up_to_the_peak_and_follow_the_settings(small: Architecture):
    full, lora = a_trial(), a_trial(model=ModelSpec("hf", path="m", lora_rank=8))
    parts = {p.name: p.bytes for p in of(full, small).parts}
    assert sum(parts.values()) == of(full, small).peak_bytes
    assert parts["weights"] == 4 * small.parameters
    assert parts["optimiser"] == 8 * small.parameters
    adapters = small.adapter_parameters(8, lora.model.lora_targets)
    parts = {p.name: p.bytes for p in of(lora, small).parts}
    assert parts["optimiser"] == 8 * adapters
    bf16 = small.linear_parameters + small.head_parameters
    assert parts["weights"] == 2 * bf16 + 4 * (small.parameters - bf16) + 4 * adapters
    assert parts["engine weights"] == 2 * adapters


@pytest.mark.parametrize(
    "less",
    [
        a_trial(trainer=TrainerSpec(precision="bf16", micro_batch_tokens=600)),
        a_trial(trainer=TrainerSpec(precision="bf16", micro_batch_tokens=1024, gradient_checkpointing=True)),
        a_trial(model=ModelSpec("hf", path="m", lora_rank=8)),
    ],
    ids=["smaller micro-batch", "gradient checkpointing", "LoRA"],
)
def test_settings_that_save_memory_lower_the_peak(small: Architecture, less: TrialSpec):
    assert of(less, small).peak_bytes < of(a_trial(), small).peak_bytes


def test_a_reference_costs_a_frozen_copy_without_lora_and_nothing_with_lora(small: Architecture):
    kl, lora = AlgorithmSpec("grpo", kl_coef=0.1), ModelSpec("hf", path="m", lora_rank=8)
    reference = {p.name: p.bytes for p in of(a_trial(algorithm=kl), small).parts}["reference"]
    assert of(a_trial(algorithm=kl), small).peak_bytes == of(a_trial(), small).peak_bytes + reference
    with_lora = a_trial(model=lora)
    assert of(replace(with_lora, algorithm=kl), small).peak_bytes == of(with_lora, small).peak_bytes


def test_vllm_takes_its_share_of_the_card_and_at_least_the_weights_of_the_model(
    large: Architecture, small: Architecture
):
    def engine(model: Architecture) -> int:
        use = predict(model, a_trial(), device="cuda", engine="vllm", card_bytes=24 * GIB)
        return {p.name: p.bytes for p in use.parts}["engine (vllm)"]

    assert engine(small) == int(0.4 * 24 * GIB)
    assert engine(large) > 2 * large.parameters


def test_where_vllm_does_not_fit_beside_the_learner_the_transformers_engine_is_suggested(small: Architecture):
    card = Card("small", 12, "cuda")
    verdict = judge(small, a_trial(), card, engine="vllm")
    assert not verdict.fits
    assert any("rollout.engine=transformers" in text for text in verdict.suggestions), str(verdict)
    for text in verdict.suggestions:
        assert judge(small, with_(a_trial(), text)[0], card, engine="vllm").fits, text
