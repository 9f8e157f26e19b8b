"""The process group of the ranks of one machine: NCCL on CUDA, gloo on a CPU.

Tested in tests/rl/parallel/test_updates.py.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

GROUP_SECONDS = 600.0
"""Deadline of a collective operation of the process group."""


def join(rank: int, size: int, store: Path, device_type: str) -> None:
    """Join the process group of all ranks: NCCL on CUDA, gloo on a CPU.

    Args:
        store: a file that does not exist, in a folder that all ranks can write.
    """
    import torch.distributed as dist

    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    dist.init_process_group(
        "nccl" if device_type == "cuda" else "gloo",
        init_method=f"file://{store.absolute()}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=GROUP_SECONDS),
    )


def leave() -> None:
    """Leave the process group, if this process is in one. The other ranks may be gone."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
