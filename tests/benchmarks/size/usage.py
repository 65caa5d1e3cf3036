"""CPU time, memory and descriptors of a process and of what it has started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

EVERY_S = 2.0


def cpu_s(process: psutil.Process) -> float:
    """CPU time of all its threads, in nanoseconds' resolution (``cpu_times`` has 10 ms)."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@dataclass
class Usage:
    """What some processes used while they were watched."""

    processes: Sequence[psutil.Process]
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of each, in their order."""
    memory_mb: float = 0.0
    """Greatest growth of their memory together, in MB."""
    descriptors: int = 0
    """Most that one of them had open."""

    def look(self, resting: float) -> None:
        """Take note of memory and descriptors; ``resting``: their memory before."""
        with suppress(psutil.NoSuchProcess):
            self.memory_mb = max(self.memory_mb, resident_mb(self.processes) - resting)
            most = max(process.num_fds() for process in self.processes)
            self.descriptors = max(self.descriptors, most)


def resident_mb(processes: Sequence[psutil.Process]) -> float:
    """Return the resident memory of all of them, in MB."""
    return sum(float(process.memory_info().rss) for process in processes) / 1e6


@asynccontextmanager
async def watched(*groups: Sequence[psutil.Process]) -> AsyncIterator[tuple[Usage, ...]]:
    """Yield what each group uses; complete when the block is left."""
    usages = tuple(Usage(group) for group in groups)
    resting = [resident_mb(group) for group in groups]
    began = [[cpu_s(process) for process in group] for group in groups]

    async def look() -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            for usage, before in zip(usages, resting, strict=True):
                usage.look(before)

    looking = asyncio.create_task(look())
    try:
        yield usages
    finally:
        looking.cancel()
        for usage, before in zip(usages, began, strict=True):
            after = [cpu_s(process) for process in usage.processes]
            usage.cpu = [end - start for end, start in zip(after, before, strict=True)]
