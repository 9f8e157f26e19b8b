"""Reductions over one rank, and over two real gloo processes. More ranks: trainers/native/test_split_invariance.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from rl.ranks import SingleRank

ROOT = Path(__file__).parents[2]
RANK = """
import sys, torch
import torch.distributed as dist
from rl.ranks import ProcessGroup

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
ranks = ProcessGroup()
values = torch.tensor([1.0, -5.0]) if rank == 0 else torch.tensor([10.0, 2.0])
total, largest = values.clone(), values.clone()
ranks.sum_(total)
ranks.max_(largest)
print(ranks.rank, ranks.size, total.tolist(), largest.tolist())
dist.destroy_process_group()
"""


def test_single_rank_leaves_tensors_as_they_are() -> None:
    ranks = SingleRank()
    values = torch.tensor([1.0, -5.0])
    ranks.sum_(values)
    ranks.max_(values)
    assert (ranks.rank, ranks.size, values.tolist()) == (0, 1, [1.0, -5.0])


def test_process_group_reduces_in_place_over_all_ranks(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")],
            cwd=ROOT,
            env={"PATH": "", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert output == f"{rank} 2 [11.0, -3.0] [10.0, 2.0]\n"
