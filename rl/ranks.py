"""The processes (ranks) that train one policy together: sums and maxima over all of them."""

from __future__ import annotations

from typing import Any, Protocol

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


def is_sharded(tensor: Tensor) -> bool:
    """Whether `tensor` is distributed over ranks (FSDP), so that this process has a part of it."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """`tensor`; a sharded one is gathered. All ranks must gather the same tensors in the same order."""
    gathered: Any = tensor
    return gathered.full_tensor() if is_sharded(tensor) else tensor


def sharded_like(tensor: Tensor, other: Tensor) -> Tensor:
    """`tensor`, which is whole, distributed over ranks in the way in which `other` is distributed."""
    if not is_sharded(other):
        return tensor.to(other.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
