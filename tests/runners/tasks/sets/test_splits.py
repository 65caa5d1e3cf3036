"""Held-out tasks: chosen by seed and id, so that other rows move none of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from runners.tasks.contract import Task
from runners.tasks.sets.splits import sort_by_rank, split_tasks

IDS = st.lists(st.integers(0, 10_000), min_size=1, max_size=40, unique=True)


def make_tasks(numbers: list[int]) -> list[Task]:
    """Tasks that differ in nothing but their id."""
    task = Task("", "train", Path("nowhere"), "0" * 40, "", (), (), (), "", "operator")
    return [replace(task, id=f"task-{number}") for number in numbers]


def held_out(seed: int, numbers: list[int], count: int) -> set[str]:
    tasks = split_tasks(seed, make_tasks(numbers), count)
    return {task.id for task in tasks if task.split == "held_out"}


@given(IDS, st.integers(0, 10))
def test_the_order_of_the_rows_decides_nothing(numbers: list[int], count: int) -> None:
    mixed = sorted(numbers, key=lambda number: (number * 7919) % 10_007)
    assert held_out(0, numbers, count) == held_out(0, mixed, count)
    assert len(held_out(0, numbers, count)) == min(count, len(numbers))


@given(IDS, st.integers(10_001, 20_000), st.integers(0, 10), st.integers(0, 40))
def test_an_added_row_moves_at_most_the_one_whose_place_it_takes(
    numbers: list[int], added: int, count: int, place: int
) -> None:
    before = held_out(3, numbers, count)
    after = held_out(3, [*numbers[:place], added, *numbers[place:]], count)
    assert after - before <= {f"task-{added}"} or len(numbers) < count
    assert len(before - after) <= 1


@given(IDS, st.integers(0, 10))
def test_training_tasks_stay_in_their_order_and_none_is_lost(
    numbers: list[int], count: int
) -> None:
    tasks = make_tasks(numbers)
    split = split_tasks(1, tasks, count)
    train = [task for task in split if task.split == "train"]
    assert train == [task for task in tasks if task in train]
    assert sorted(task.id for task in split) == sorted(task.id for task in tasks), "each once"


def test_the_seed_chooses() -> None:
    numbers = list(range(100))
    assert held_out(0, numbers, 10) != held_out(1, numbers, 10)
    assert held_out(0, numbers, 10) > held_out(0, numbers, 5), "fewer are some of the same"
    first = [task.id for task in sort_by_rank(0, make_tasks(numbers))[:2]]
    assert first == ["task-27", "task-29"], "a run of years ago has the same split"
