"""Choose tasks by their ids: what is held out, and what an evaluation measures.

Invariant: a task's rank follows from the seed and its id alone. So the place of a row decides
nothing, and a row that is added moves at most one other: the one whose place among the held-out
tasks it takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from runners.tasks.contract import Task


def rank_task(seed: int, task: Task) -> bytes:
    """Return the rank of a task: the SHA-256 of seed and id, bytes [32]."""
    return hashlib.sha256(f"{seed}/held-out/{task.id}".encode()).digest()


def sort_by_rank(seed: int, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks in an order in which the first n are a sample of all."""
    return sorted(tasks, key=lambda task: rank_task(seed, task))


def split_tasks(seed: int, tasks: Sequence[Task], held_out: int) -> list[Task]:
    """Return the training tasks in their order, then ``held_out`` tasks, those of lowest rank."""
    chosen = sort_by_rank(seed, tasks)[:held_out]
    ids = {task.id for task in chosen}
    train = [task for task in tasks if task.id not in ids]
    return [*train, *(replace(task, split="held_out") for task in chosen)]
