"""Write the tasks of a configuration as a suite of Harbor directories."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from conf.cache import cache_root
from conf.errors import AgentrlError, ConfigError
from conf.schema import Config
from runners.sandboxes.backends import make_backend
from runners.tasks.contract import Task
from runners.tasks.repositories.task_repositories import TaskRepositories
from runners.tasks.sets.harbor_writer import UnwritableTaskError, WrittenSuite, write_suite
from runners.tasks.sets.task_sets import load_tasks


def export_suite(config: Config, out: Path, match: str, split: str | None) -> WrittenSuite:
    """Write the tasks whose id matches a pattern, of one split or of both; blocks.

    Raises ConfigError if there are none, and AgentrlError.
    """
    tasks = [
        task
        for task in load_tasks(config)
        if fnmatchcase(task.id, match) and split in (None, task.split)
    ]
    if not tasks:
        raise ConfigError(f"--match {match} selects no task of task={config.task.kind}: change it")
    ready, failed = asyncio.run(_make_repositories(config, tasks))
    try:
        suite = write_suite(ready, out)
    except OSError as error:
        raise UnwritableTaskError(f"{out} cannot be written: {error}") from error
    return WrittenSuite(suite.written, {**failed, **suite.refused})


async def _make_repositories(
    config: Config, tasks: Sequence[Task]
) -> tuple[list[Task], dict[str, str]]:
    """Return the tasks with their repositories made, and the reasons of those that failed."""
    if all(task.origin is None for task in tasks):
        return list(tasks), {}
    ready, failed = [], {}
    with tempfile.TemporaryDirectory(prefix="agentrl-export-") as scratch:
        backend = await asyncio.to_thread(make_backend, config.sandbox, Path(scratch) / "sandboxes")
        try:
            repositories = TaskRepositories(backend, cache_root() / "workspaces")
            for task in tasks:
                try:
                    made = await repositories.ensure(task)
                except AgentrlError as error:
                    failed[task.id] = str(error)
                else:
                    ready.append(made)
        finally:
            await backend.close()
    return ready, failed
