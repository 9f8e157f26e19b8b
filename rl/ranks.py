"""The processes (ranks) that train one policy together: sums and maxima over all of them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """The reductions that the learner needs. All ranks must call the same reductions in the same order."""

    rank: int
    size: int

    def sum_(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all ranks, in place."""
        ...

    def max_(self, tensor: Tensor) -> None:
        """Replace `tensor` by its elementwise maximum over all ranks, in place."""
        ...


class SingleRank:
    """Training in one process: a reduction leaves its tensor as it is."""

    rank = 0
    size = 1

    def sum_(self, tensor: Tensor) -> None:
        pass

    def max_(self, tensor: Tensor) -> None:
        pass


class ProcessGroup:
    """The ranks of torch.distributed's default group. The caller initialises it (gloo on a CPU, NCCL on CUDA)."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def sum_(self, tensor: Tensor) -> None:
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.SUM)

    def max_(self, tensor: Tensor) -> None:
        self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX)
