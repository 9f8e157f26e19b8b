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

from cost.printable import printable
from sweeps.config.build import compose
from sweeps.config.help import help_text
from sweeps.config.overrides import composition_error, hydra_override
from sweeps.config.types import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_HYDRA_OPTIONS = {"--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc"}
"""Options that Hydra answers itself. No stage has to be chosen for them."""
_WITH_HYDRA_OPTIONS = {"--package", "-p", "--resolve"}


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def _hydra(cfg: DictConfig) -> None:
    """Hydra answers its own options and does not come here."""


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
        if options := {a.partition("=")[0] for a in arguments if a.startswith("-")}:
            if unknown := options - _HYDRA_OPTIONS - _WITH_HYDRA_OPTIONS:
                _refuse(f"there is no option {min(unknown)}; python sweep.py --help lists commands and keys")
            sys.argv[1:] = [hydra_override(a) for a in arguments]
            _hydra()
            sys.exit(0)
        config = compose(arguments)
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
    print(f"Configuration: {printable(message)}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
