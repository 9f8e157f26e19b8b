"""Models of `kind: hf`: a local folder, or a model of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl.spec import ConfigurationError, ModelSpec

_DESCRIPTION = ["*.json", "*.txt", "*.model", "*.jinja"]
"""Files of configuration, tokenizer and chat template."""


def find(model: ModelSpec, report_progress: Callable[[str], None]) -> Path:
    """The local folder of `model.path`, or the folder into which the hub's client downloads that hub id.

    Raises:
        ConfigurationError: no path, a folder without config.json or safetensors, a path that does not exist, or a
            hub id that cannot be downloaded.
    """
    local = local_folder(model)
    if local is None:
        report_progress(f"downloading {model.path} from the Hugging Face hub")
        return _download(model, [*_DESCRIPTION, "*.safetensors"])
    if not (local / "config.json").is_file() or not any(local.glob("*.safetensors")):
        raise ConfigurationError(
            f"model.path={model.path} has no config.json beside *.safetensors; save a model there with "
            "save_pretrained (weights in other formats are not read)"
        )
    return local


def describe(model: ModelSpec) -> Path:
    """A folder with the configuration and the tokenizer of the model, perhaps without weights. Nothing is checked.

    Of a hub id only these small files are downloaded.

    Raises:
        ConfigurationError: as `find`, except that files may be missing from a local folder.
    """
    return local_folder(model) or _download(model, _DESCRIPTION)


def local_folder(model: ModelSpec) -> Path | None:
    """The folder that `model.path` names; None: it is a hub id.

    Raises:
        ConfigurationError: no path, or a path that does not exist.
    """
    if not model.path:
        raise ConfigurationError(
            "model.path is empty; model.kind=hf needs a folder or a hub id such as Qwen/Qwen3-0.6B"
        )
    local = Path(model.path).expanduser()
    if local.is_dir():
        return local
    looks_local = model.path.startswith((".", "/", "~")) or model.path.count("/") != 1
    if looks_local or local.exists():
        raise ConfigurationError(
            f"model.path={model.path} is not a folder; give a folder with config.json and *.safetensors, "
            "or a hub id of the form owner/name"
        )
    return None


def _download(model: ModelSpec, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    assert model.path is not None
    try:
        return Path(snapshot_download(model.path, revision=model.revision, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"model.path={model.path} is not a local folder, and downloading it from the Hugging Face hub failed "
            f"({type(error).__name__}); give a folder with config.json and *.safetensors, or a hub id"
        ) from error
