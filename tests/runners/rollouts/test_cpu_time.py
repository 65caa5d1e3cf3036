"""A record has the CPU time of its own attempt's sandboxes, where one was measured."""

from __future__ import annotations

from pathlib import Path

from runners.system.processes.cpu_time import CPU_S, add_cpu_time
from runners.tasks.contract import Task
from tests.runners.rollouts.world import world


async def test_attempts_at_the_same_time_count_their_own(tmp_path: Path, task: Task) -> None:
    times = [1.5, None, 20.0]

    async with world(tmp_path, task) as here:
        here.harness.trouble = lambda number: add_cpu_time(times[number])
        records = await here.pool(concurrency=3).run(here.specs(3))
        found = [attempt.extra.get(CPU_S) for [attempt] in here.stored().values()]
    assert len(records) == 3
    assert sorted(found, key=str) == sorted(times, key=str)
