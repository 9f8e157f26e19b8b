"""What Ray Tune is given to call: a searcher, a callback and a stopper, which pass all of it on to the executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ray import tune
from ray.tune.search import Searcher

if TYPE_CHECKING:
    from sweeps.executors.ray_tune import RayTuneExecutor

T = TypeVar("T")


class NotSaved:
    """Tune pickles what it was given into a state that nobody reads: books stay out of it."""

    def __init__(self, executor: RayTuneExecutor) -> None:
        self._executor = executor

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def _tell(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Tune makes text of what is raised in here: it is kept, for `run` to raise as it was."""
        try:
            return method(*arguments, **named)
        except Exception as error:
            self._executor.keep(error)
            raise


class ControllerSearcher(NotSaved, Searcher):
    """Tune asks here for the next attempt."""

    def __init__(self, executor: RayTuneExecutor) -> None:
        Searcher.__init__(self, metric=None, mode=None)
        super().__init__(executor)

    def suggest(self, trial_id: str) -> Any:
        return self._tell(self._executor.suggest, trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal is what a resume reads."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep is resumed from its journal, not from Ray Tune's state")


class ControllerCallback(NotSaved, tune.Callback):
    """Tune tells here what happened."""

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._tell(self._executor.tick, trials)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._tell(self._executor.result, trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._tell(self._executor.ended, trial, died=False)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._tell(self._executor.ended, trial, died=True)


class NothingToStartStopper(NotSaved, tune.Stopper):
    """Tune asks here whether to end with trials still waiting for their cards."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._tell(self._executor.nothing_can_start)
