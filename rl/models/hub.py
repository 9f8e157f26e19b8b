"""Models of `kind: hf`: a local folder, or a model of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl.spec import ConfigurationError, ModelSpec

_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


def find(model: ModelSpec, report_progress: Callable[[str], None]) -> Path:
    """The local folder of `model.path`, or the folder into which the hub's client downloads that hub id.

    Raises:
        ConfigurationError: no path, a folder without config.json or safetensors, a path that does not exist, or a
            hub id that cannot be downloaded.
    """
    if not model.path:
        raise ConfigurationError(
            "model.path is empty; model.kind=hf needs a folder or a hub id such as Qwen/Qwen3-0.6B"
        )
    local = Path(model.path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file() or not any(local.glob("*.safetensors")):
            raise ConfigurationError(
                f"model.path={model.path} has no config.json beside *.safetensors; save a model there with "
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

    report_progress(f"downloading {model.path} from the Hugging Face hub")
    try:
        return Path(snapshot_download(model.path, revision=model.revision, allow_patterns=_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(
            f"model.path={model.path} is not a local folder, and downloading it from the Hugging Face hub failed "
            f"({type(error).__name__}); give a folder with config.json and *.safetensors, or a hub id"
        ) from error
