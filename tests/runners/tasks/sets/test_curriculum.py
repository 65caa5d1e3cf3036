"""The curriculum: tasks near one half are preferred, and every task comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from runners.tasks.contract import Task
from runners.tasks.sets.curriculum import Curriculum, Evidence, Prior, find_learnability
from runners.tasks.sets.task_sampler import StepCount, TaskDraw, TaskHistory

TASK = Task("", "train", Path("nowhere"), "0" * 40, "", (), (), (), "", "operator")


def tasks(count: int, kind: str = "operator", name: str = "") -> list[Task]:
    return [
        replace(TASK, id=f"{name}{kind}{number}", kind=kind, set_name=name)
        for number in range(count)
    ]


def history(task: Task, *steps: tuple[int, int, int]) -> TaskHistory:
    counts = tuple(StepCount(*each) for each in steps)
    graded, solved = sum(each.graded for each in counts), sum(each.solved for each in counts)
    return TaskHistory(task, graded, solved, counts[-1].step if counts else 0, counts)


def ask(
    histories: Sequence[TaskHistory], step: int = 10, sets: tuple[str, ...] = ("",), seed: int = 0
) -> TaskDraw:
    return TaskDraw(seed, step, len(sets), tuple(histories), None, sets)


def seen(*solved: int, step: int = 9) -> list[TaskHistory]:
    """Return tasks of which so many of 8 rollouts were solved."""
    pairs = zip(tasks(len(solved)), solved, strict=True)
    return [history(task, (step, 8, number)) for task, number in pairs]


def chances(histories: Sequence[TaskHistory], step: int = 10, **options: float) -> list[float]:
    return list(Curriculum(**options).find_chances(ask(histories, step)).values())


def test_tasks_near_one_half_have_the_greatest_chance_from_both_sides() -> None:
    never, rare, half, often, always = chances(seen(0, 2, 4, 6, 8))
    assert never < rare < half
    assert always < often < half
    assert never == pytest.approx(always)
    assert half > 3 * never


def test_solved_and_hopeless_tasks_come_back() -> None:
    histories = seen(0, 8, *[4] * 8)
    shares = Counter(Curriculum()(ask(histories, seed=seed))[0] for seed in range(600))
    assert shares["operator0"] >= 6
    assert shares["operator1"] >= 6
    assert min(chances(histories, sharpness=50.0)) >= 0.2 / 10 - 1e-12, "a tenth of the floor"


def test_the_longer_a_task_waits_the_likelier_it_comes_back() -> None:
    waiting = [
        history(task, (step, 8, 8)) for task, step in zip(tasks(3), (1, 40, 99), strict=True)
    ]
    old, newer, newest = chances(waiting, 100, sharpness=0.0)
    assert old > newer > newest


def test_evidence_fades_so_that_what_was_solved_long_ago_is_tried_again() -> None:
    pairs = zip(tasks(4), (0, 3, 5, 8), strict=True)
    others = [history(task, (100, 8, number)) for task, number in pairs]
    solved = replace(TASK, id="solved")
    old, new = (
        find_learnability(ask([history(solved, (step, 8, 8)), *others], 101), 10.0)["solved"]
        for step in (1, 100)
    )
    assert old > 2 * new


def test_a_task_without_evidence_is_as_good_as_its_kind() -> None:
    kinds = {"solved": (8, 8), "hopeless": (0, 0), "split": (0, 8), "open": (4, 4), "new": ()}
    histories = [
        history(task, *([(9, 8, outcomes[number // 4])] if outcomes and number < 8 else []))
        for kind, outcomes in kinds.items()
        for number, task in enumerate(tasks(9, kind))
    ]
    gains = find_learnability(ask(histories), 10.0)
    untried = {kind: gains[f"{kind}8"] for kind in kinds}
    assert untried["open"] > untried["new"] > max(untried["solved"], untried["hopeless"])
    assert untried["new"] > untried["split"], (
        "solved always or never: a mean of one half, no signal"
    )
    assert gains["split0"] < gains["open0"]


@given(st.floats(0.001, 0.999), st.floats(0.01, 0.99))
def test_the_prior_of_a_kind_has_the_moments_that_were_found(rate: float, share: float) -> None:
    signal = share * rate * (1 - rate)
    weight = share / (1 - share)
    found = Prior(rate, signal).learnability(Evidence())
    if 0.1 <= weight <= 8:
        assert found == pytest.approx(4 * signal)
    assert 0 < found < 1


histories_of = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 8), st.integers(0, 8)), max_size=4
)


@given(st.lists(histories_of, min_size=1, max_size=12), st.integers(1, 20), st.integers(0, 99))
def test_a_draw_is_answered_by_different_tasks_and_always_alike(
    rows: list[list[tuple[int, int, int]]], count: int, seed: int
) -> None:
    histories = [
        history(task, *sorted((step, graded, min(graded, solved)) for step, graded, solved in row))
        for task, row in zip(tasks(len(rows)), rows, strict=True)
    ]
    draw = ask(histories, 31, ("",) * count, seed)
    chosen = Curriculum()(draw)
    assert chosen == Curriculum()(draw)
    assert len(chosen) == count
    assert len(set(chosen)) == min(count, len(rows))
    found = Curriculum().find_chances(draw)
    assert sum(found.values()) == pytest.approx(1)
    assert min(found.values()) > 0


def test_seed_step_and_spare_group_have_draws_of_their_own() -> None:
    histories = [history(task) for task in tasks(50)]
    draw = ask(histories, sets=("",) * 5)
    changed = [replace(draw, seed=1), replace(draw, step=11), replace(draw, spare=0)]
    answers = [tuple(Curriculum()(each)) for each in [draw, *changed]]
    assert len(set(answers)) == 4


def test_the_sets_of_a_mixture_keep_their_turns() -> None:
    members: Mapping[str, list[Task]] = {name: tasks(5, name=name) for name in ("a", "b")}
    histories = [history(task) for each in members.values() for task in each]
    sets = ("a", "a", "b", "a", "b")
    chosen = Curriculum()(ask(histories, sets=sets))
    assert tuple(name[0] for name in chosen) == sets
    chosen = Curriculum()(ask(histories, sets=("b",) * 7))
    assert [name[0] for name in chosen] == ["b"] * 5 + ["a"] * 2, "a set that is used up"


def test_a_large_set_is_drawn_from_by_chance_and_not_by_order() -> None:
    histories = [history(task) for task in tasks(20_000)]
    chosen = Curriculum()(ask(histories, sets=("",) * 100))
    numbers = [int(name.removeprefix("operator")) for name in chosen]
    assert 6_000 < sum(numbers) / 100 < 14_000


@pytest.mark.parametrize(
    "options", [{"floor": 1.5}, {"half_life": 0.0}, {"sharpness": -1.0}, {"slope": 1.0}]
)
def test_wrong_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Curriculum(**options)
