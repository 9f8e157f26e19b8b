"""Run a stage: `python sweep.py +stage=smoke`. Composes the configuration and passes it to the driver."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def _exit_at_once(*_: object) -> NoReturn:
    """Ctrl-C before anything was started. Imports may hold locks, so nothing is cleaned up."""
    os.write(2, b"\nInterrupted before anything was started.\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":  # before the imports below, which take a second
    signal.signal(signal.SIGINT, _exit_at_once)

import hydra

from sweeps.config.build import build
from sweeps.config.help import help_text
from sweeps.config.overrides import check_overrides, composition_error, hydra_override
from sweeps.config.types import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_HYDRA_OPTIONS = {"--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc"}
"""Options that Hydra answers itself. No stage has to be chosen for them."""

_composed: list[DictConfig] = []


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def _compose(cfg: DictConfig) -> None:
    """Stores the composed configuration. An error raised in here would come with Hydra's own stack frames."""
    _composed.append(cfg)


def main(arguments: list[str]) -> NoReturn:
    if {"-h", "--help"} & set(arguments):
        print(help_text())
        sys.exit(0)
    if {"-m", "--multirun"} & set(arguments):
        _refuse("--multirun is not used here: a stage runs many trials, spread by lists such as search.seeds=[0,1,2]")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them with exit code 1
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        if not _HYDRA_OPTIONS & set(arguments):
            check_overrides([a for a in arguments if not a.startswith("-")])
        sys.argv[1:] = [hydra_override(a) for a in arguments]
        _compose()
        if not _composed:  # Hydra has answered one of its own options
            sys.exit(0)
        config = build(_composed[0])
        from sweeps.driver.driver import run  # slow to import, so a bad configuration is reported first

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(run(config, arguments))
    except KeyboardInterrupt:
        print("\nInterrupted. The same command starts or resumes the sweep.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        _refuse(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(str(composition_error(error)))


def _refuse(message: str) -> NoReturn:
    print(f"Configuration: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
