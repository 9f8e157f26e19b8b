"""Run a stage: `python sweep.py +stage=smoke`. Composes the configuration and hands it to the driver, nothing else."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import hydra

from sweeps.config.build import ConfigError, as_hydra_takes_it, build, check_overrides, composition_error
from sweeps.config.help import help_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

_ABOUT_HYDRA = {"--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc"}


_composed: list[DictConfig] = []


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def _compose(cfg: DictConfig) -> None:
    """Only keeps what Hydra composed: an error inside of Hydra's job would come with Hydra's frames around it."""
    _composed.append(cfg)


def main(arguments: list[str]) -> NoReturn:
    if {"-h", "--help"} & set(arguments):
        print(help_text())
        sys.exit(0)
    if {"-m", "--multirun"} & set(arguments):
        _refuse("--multirun is not used here: a stage runs many trials, spread by lists such as search.seeds=[0,1,2]")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors are raised, instead of printed with exit code 1
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        if not _ABOUT_HYDRA & set(arguments):
            check_overrides([a for a in arguments if not a.startswith("-")])
        sys.argv[1:] = [as_hydra_takes_it(a) for a in arguments]
        _compose()
        if not _composed:  # Hydra answered a question about itself
            sys.exit(0)
        config = build(_composed[0])
        from sweeps.driver.driver import run  # heavy: what is wrong with a configuration is said before it is imported

        sys.exit(run(config, arguments))
    except ConfigError as error:
        _refuse(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(str(composition_error(error)))


def _refuse(message: str) -> NoReturn:
    print(f"Configuration: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
