"""The process of one attempt, as a Ray Tune trainable: each `train` call lets the trainer send its next message.

Tested in tests/sweeps/executors/test_ray_tune.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray
from ray import tune

from rl.codec import from_json, message_from_json, to_json
from rl.spec import Finished, TrialSpec
from sweeps.executors import outcome_of_error
from sweeps.executors.processes import MARK, AttemptProcesses, own_processes, write_output_to
from sweeps.journal.outcomes import AttemptOutcome


class AttemptActor(tune.Trainable):
    """Its first result reports that the process runs; each further result is one trainer message, or an error."""

    def setup(self, config: dict[str, Any]) -> None:
        self._spec = from_json(TrialSpec, config["spec"])
        self._checkpoint = Path(config["checkpoint"]) if config["checkpoint"] else None
        self._command = None
        self._trainer = None
        self._mark = os.environ[MARK] = config["mark"]
        self._processes: AttemptProcesses | None = None
        write_output_to(Path(config["log"]))
        group = ray.util.get_current_placement_group()
        self._group = group.id.hex() if group else ""

    def set_command(self, command: dict[str, Any]) -> None:
        """The reply to the last message. The process that calls `train` calls this too, so it arrives before."""
        self._command = message_from_json(command)

    def step(self) -> dict[str, Any]:
        from rl.trainers import create_trainer

        if self._processes is None:
            self._processes = own_processes(self._mark, ray.get_runtime_context().get_node_id(), ())
            return self._result()
        if self._trainer is None:
            cards = [str(index) for index in ray.get_gpu_ids()]
            self._processes = own_processes(self._mark, self._processes.node, cards)
            self._trainer = create_trainer(self._spec.trainer.name).run(self._spec, self._checkpoint)
        command, self._command = self._command, None
        try:
            message = self._trainer.send(command)
        except StopIteration:
            error = (AttemptOutcome.CRASHED, "the trainer ended without its last message")
            return self._result(error=error, done=True)
        except Exception as error:
            import traceback

            traceback.print_exc()
            return self._result(error=outcome_of_error(error), done=True)
        return self._result(message=to_json(message), done=isinstance(message, Finished))

    def cleanup(self) -> None:
        if self._trainer is not None:
            self._trainer.close()

    def _result(self, done: bool = False, **content: Any) -> dict[str, Any]:
        assert self._processes is not None
        self._processes = own_processes(self._mark, self._processes.node, (), before=self._processes)
        return {**content, "processes": to_json(self._processes), "group": self._group, "done": done}


def bundles(resource: str, config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Bundle 0 has the attempt's process and its cards. Ray pickles this function, so it refers to no driver object."""
    return tune.PlacementGroupFactory([{"CPU": 1, resource: config["spec"]["cards"]}])
