"""Finds and ends all processes of an attempt on its host.

A child may outlive the process that started it, leave its process group, or ignore SIGTERM. An attempt's processes are
therefore found in four ways: they descend from it, they are in its process group, they have its mark in their
environment, or they were its children when it sent its last message. Runs on the attempt's own host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

MARK = "GRPO_LADDER_ATTEMPT"
"""Environment variable that an attempt's processes inherit; its value begins with the sweep's name."""

MEMORY_SLACK_MIB = 512
"""A card's memory counts as freed when at most this much more is in use than before the attempt."""


@dataclass(frozen=True)
class AttemptProcesses:
    """How an attempt's processes are found. Its own process sends this with each message."""

    pid: int
    mark: str
    node: str = ""
    """Ray's id of their node."""
    children: Mapping[str, float] = field(default_factory=dict)
    """Children at the last message: start time (seconds since the epoch) by process id."""
    memory_mib: Mapping[str, int] = field(default_factory=dict)
    """Memory in use on its cards before it began, MiB by the card's UUID; empty where it cannot be measured."""


def own_processes(
    mark: str, node: str, cards: Sequence[str], before: AttemptProcesses | None = None
) -> AttemptProcesses:
    """This process and its children now. `cards`: CUDA's indices or UUIDs."""
    me = psutil.Process()
    children = {str(p.pid): start for p in me.children(recursive=True) if (start := _start(p)) is not None}
    memory = before.memory_mib if before else used_memory_mib(cards)
    return AttemptProcesses(me.pid, mark, node, children, memory)


def write_output_to(file: Path) -> None:
    """Append to `file` everything that this process and its children print from now on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def end_processes(processes: AttemptProcesses, patience_seconds: float, kill_seconds: float) -> list[str]:
    """Wait for the attempt's own process to end, then kill every process that is left.

    Returns what could not be ended, a phrase each: processes that cannot be killed (stuck in a driver call), and cards
    whose memory is not freed.
    """
    if patience_seconds > 0 and processes.pid > 0 and psutil.pid_exists(processes.pid):
        psutil.wait_procs([p for p in find_processes(processes) if p.pid == processes.pid], timeout=patience_seconds)
    left: list[psutil.Process] = []
    for _ in range(3):  # a process may start another one before it is killed
        left = find_processes(processes)
        if not left:
            break
        for process in left:
            _kill(process)
        psutil.wait_procs(left, timeout=kill_seconds / 3)
    still = [f"process {p.pid} ({_name(p)})" for p in left if p.is_running() and _status(p) != psutil.STATUS_ZOMBIE]
    return still or _memory_in_use(processes, kill_seconds)


def find_processes(processes: AttemptProcesses) -> list[psutil.Process]:
    """The attempt's processes that are alive."""
    me = os.getpid()
    found = {}
    for process in psutil.process_iter():
        if process.pid == me or _status(process) in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            continue
        since = processes.children.get(str(process.pid))
        if (
            process.pid == processes.pid
            or (since is not None and _start(process) == since)
            or _group(process.pid) == processes.pid
            or _mark(process).startswith(processes.mark)
        ):
            found[process.pid] = process
    for process in list(found.values()):
        try:
            found |= {p.pid: p for p in process.children(recursive=True) if p.pid != me}
        except psutil.Error:
            continue
    return list(found.values())


def end_marked_processes(mark: str, kill_seconds: float = 10.0) -> list[str]:
    """End processes that attempts of a killed driver left on this host. `mark`: what their marks begin with."""
    return end_processes(AttemptProcesses(pid=-1, mark=mark), 0.0, kill_seconds)


def used_memory_mib(cards: Sequence[str]) -> dict[str, int]:
    """Memory in use on these cards as `nvidia-smi` reports it, by UUID; empty where there is no `nvidia-smi`."""
    if not cards or shutil.which("nvidia-smi") is None:
        return {}
    query = ["nvidia-smi", f"--id={','.join(cards)}", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        return {uuid.strip(): int(used) for uuid, used in (line.split(",") for line in output.splitlines() if line)}
    except (subprocess.SubprocessError, OSError, ValueError):
        return {}


def _memory_in_use(processes: AttemptProcesses, seconds: float) -> list[str]:
    until = time.monotonic() + seconds
    while before := processes.memory_mib:
        now = used_memory_mib(list(before))
        in_use = {c: used for c, used in now.items() if used > before.get(c, used) + MEMORY_SLACK_MIB}
        if not in_use:
            return []
        if time.monotonic() >= until:
            return [f"card {c} with {used} MiB in use, {before[c]} before" for c, used in in_use.items()]
        time.sleep(0.2)
    return []


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.Error:
        return psutil.STATUS_DEAD


def _start(process: psutil.Process) -> float | None:
    try:
        return process.create_time()
    except psutil.Error:
        return None


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK, "")
    except (psutil.Error, OSError):
        return ""


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:80] or process.name()
    except psutil.Error:
        return "?"
