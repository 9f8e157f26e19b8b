"""The unmeasured prior against the lesson's four rows, each within a factor of 2, and least memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cost.forecast.data_sheet import profile_from_data_sheet
from cost.forecast.hardware import Hardware, ModelSize, does_not_fit, least_memory_gib
from cost.forecast.predict import Machine, SweepWork, TrialWork, predict
from cost.forecast.sampling import ForecastError
from cost.forecast.scaling import Size

MACHINES = Path(__file__).parents[3] / "conf" / "machine"
SMALL_FULL = ModelSize(parameters=0.6e9, trainable_parameters=0.6e9)
LARGE_LORA = ModelSize(parameters=8.0e9, trainable_parameters=44e6)


def hardware(name: str) -> Hardware:
    conf = yaml.safe_load((MACHINES / f"{name}.yaml").read_text())
    return Hardware(
        conf["card_name"],
        conf["tflops"],
        conf["memory_gb_per_s"],
        conf["memory_gib_per_card"],
        conf["interconnect_gb_per_s"],
    )


def stage(model: ModelSize, machine: str, cards: int, engine, steps: int = 200):
    """The lesson's stage: 8 prompts x 8 per card, answers of about 400 tokens, two evaluations, ten checkpoints."""
    card = hardware(machine)
    profile = profile_from_data_sheet(
        model,
        card,
        Size(64 * cards, cards),
        trainer="native",
        model_name="m",
        task="gsm8k",
        prompt_tokens=100,
        completion_tokens=400,
        max_completion_tokens=1024,
        engine=engine,
    )
    work = TrialWork(steps, 8 * cards, 8, cards, evaluations=2, checkpoints=10)
    return predict(profile, SweepWork("native", "m", "gsm8k", Machine(machine, cards, card), (work,), model_size=model))


@pytest.mark.parametrize(
    ("model", "machine", "cards", "engine", "hours"),
    [
        (SMALL_FULL, "rtx5090", 1, "transformers", 2.0),
        (SMALL_FULL, "rtx4090", 1, "transformers", 2.0),
        (SMALL_FULL, "h100x8", 8, "vllm", 0.25),
        (LARGE_LORA, "h100x8", 8, "vllm", 2.0),
    ],
)
def test_the_lessons_rows_are_met_within_a_factor_of_two(model, machine, cards, engine, hours) -> None:
    forecast = stage(model, machine, cards, engine)
    assert forecast.basis == "prior"
    assert hours / 2 <= forecast.lease_ns.p50 / 3.6e12 <= hours * 2
    assert hours <= forecast.lease_ns.p90 / 3.6e12
    assert not does_not_fit(model, hardware(machine), cards)


@pytest.mark.parametrize("machine", ["rtx4090", "rtx5090"])
def test_8b_with_lora_fits_no_consumer_card(machine: str) -> None:
    assert "need at least" in does_not_fit(LARGE_LORA, hardware(machine))


def test_least_memory_of_full_and_lora_training() -> None:
    # Full: 16 bytes of state and 2 of the engine per parameter. LoRA: 2 of the base, 2 of the engine, 16 per trained.
    assert least_memory_gib(ModelSize(2**30, 2**30)) == pytest.approx(18.0)
    assert least_memory_gib(ModelSize(2**30, 2**30), cards=8) == pytest.approx(4.0)
    assert least_memory_gib(ModelSize(2**30, 2**20)) == pytest.approx(4.0 + 16 / 1024)


def test_the_interval_of_a_prior_reaches_a_factor_of_two() -> None:
    step = stage(SMALL_FULL, "rtx5090", 1, "vllm").trials[0].step_ns
    assert 1.8 < step.p90 / step.p50 < 2.3


def test_phases_follow_from_parameters_tokens_and_data_sheet() -> None:
    card = Hardware("c", tflops=989.4, memory_gb_per_s=1000.0, memory_gib=80.0)
    profile = profile_from_data_sheet(
        ModelSize(1e9, 1e9),
        card,
        Size(10, 1),
        trainer="t",
        model_name="m",
        task="k",
        prompt_tokens=100,
        completion_tokens=900,
        max_completion_tokens=1000,
    )
    seconds = profile.levels[0].phase_seconds
    # 10 x 1,000 tokens x 2 x 1e9 operations at a quarter of the peak; 1,000 decoding steps of 4 ms reading and 6 ms.
    forward = 2e13 / (0.25 * 989.4e12)
    assert seconds == pytest.approx({"rollout": 10.0 + forward, "logprob": forward, "train": 3 * forward})


def test_several_cards_exchange_gradients_and_weights() -> None:
    one, eight = (stage(SMALL_FULL, "h100x8", cards, "vllm").trials[0].categories for cards in (1, 8))
    assert "sync" not in {c.name for c in one}
    # 1.2 GB of weights at 10 GB/s, in 200 steps.
    assert next(c.p50_ns for c in eight if c.name == "sync") / 1e9 == pytest.approx(200 * 0.12, rel=0.1)


def test_a_slow_processor_reaches_at_most_half_of_its_peak() -> None:
    rough = stage(ModelSize(135e6, 135e6), "cpu", 1, "transformers").trials[0]
    operations = 200 * 64 * 500 * 6 * 135e6
    train = next(c.p50_ns for c in rough.categories if c.name == "train") / 1e9
    assert train == pytest.approx(operations / (0.5 * 0.5e12), rel=0.05)


@pytest.mark.parametrize("change", [{"tflops": 0.0}, {"memory_gb_per_s": -1.0}, {"memory_gib": float("nan")}])
def test_a_machine_without_figures_is_refused(change: dict[str, float]) -> None:
    figures = {"tflops": 1.0, "memory_gb_per_s": 1.0, "memory_gib": 1.0, **change}
    with pytest.raises(ForecastError, match=f"{next(iter(change))} must be above 0"):
        Hardware("x", **figures)
