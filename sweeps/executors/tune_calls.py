"""The objects that Ray Tune calls: a searcher, a callback and a stopper. They pass every call on to the executor.

Tested in tests/sweeps/executors/test_ray_tune.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ray import tune
from ray.tune.search import Searcher

if TYPE_CHECKING:
    from sweeps.executors.ray_tune import RayTuneExecutor

T = TypeVar("T")


class CallsExecutor:
    """Passes Tune's calls on. Tune pickles these objects into a state that is never read, without the executor."""

    def __init__(self, executor: RayTuneExecutor) -> None:
        self._executor = executor

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def _call(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a method of the executor. Tune turns exceptions into text, so the executor keeps them for `run`."""
        try:
            return method(*arguments, **named)
        except Exception as error:
            self._executor.keep_error(error)
            raise


class ControllerSearcher(CallsExecutor, Searcher):
    """Tune asks the searcher for the next attempt."""

    def __init__(self, executor: RayTuneExecutor) -> None:
        Searcher.__init__(self, metric=None, mode=None)
        super().__init__(executor)

    def suggest(self, trial_id: str) -> Any:
        return self._call(self._executor.suggest, trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Saves nothing: a resume reads the journal."""

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("a sweep is resumed from its journal, not from Ray Tune's state")


class ControllerCallback(CallsExecutor, tune.Callback):
    """Tune reports results and ends to the callback."""

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._call(self._executor.tick, trials)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._call(self._executor.result, trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._call(self._executor.ended, trial, died=False)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._call(self._executor.ended, trial, died=True)


class NothingToStartStopper(CallsExecutor, tune.Stopper):
    """Tune asks the stopper whether to end although trials still wait for their cards."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._call(self._executor.nothing_can_start)
