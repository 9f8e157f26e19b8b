"""The processes that train one policy together, as the learner sees them: sums and maxima over all of them.

One process is the case `Alone`. Knows nothing of models or batches.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """Every rank must call the same reductions in the same order."""

    rank: int
    size: int

    def sum_(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks."""
        ...

    def max_(self, tensor: Tensor) -> None:
        """Replace `tensor` by its elementwise maximum over all ranks."""
        ...


class Alone:
    """One rank: nothing to add up."""

    rank = 0
    size = 1

    def sum_(self, tensor: Tensor) -> None:
        pass

    def max_(self, tensor: Tensor) -> None:
        pass


class ProcessGroup:
    """The ranks of torch.distributed's default group, which the caller has set up (gloo on a CPU, nccl on CUDA)."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def sum_(self, tensor: Tensor) -> None:
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.SUM)

    def max_(self, tensor: Tensor) -> None:
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX)
