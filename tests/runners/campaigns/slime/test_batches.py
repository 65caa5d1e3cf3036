"""The groups that are trained together: always as many as slime wants."""

from __future__ import annotations

from conf.compose import compose
from runners.campaigns.slime.batches import Group, choose_groups
from tests.fakes.records import a_rollout

FLAT, MIXED, LOST = (1.0, 1.0), (1.0, 0.0), (None, None)
REPLACING = ("rollout.replace_flat=true",)


def groups(*rewards: tuple[float | None, ...]) -> list[Group]:
    return [
        [
            a_rollout(f"train-000001-{number:02}-{member:02}", reward=reward)
            for member, reward in enumerate(each)
        ]
        for number, each in enumerate(rewards)
    ]


def numbers(found: list[Group]) -> list[int]:
    return [group[0].group for group in found]


def test_groups_without_signal_are_left_out_where_others_replace_them() -> None:
    config = compose([*REPLACING, "run.tasks_per_step=2"])
    batch = choose_groups(config, 1, groups(FLAT, MIXED, LOST, MIXED))
    assert (numbers(batch.groups), numbers(batch.left_out)) == ([1, 3], [0, 2])
    assert not batch.untrainable
    assert len(batch.records) == 8, "they belong to the step's statistics"


def test_groups_that_nothing_replaces_stay_without_weight() -> None:
    config = compose([*REPLACING, "run.tasks_per_step=2"])
    batch = choose_groups(config, 1, groups(FLAT, MIXED, FLAT))
    assert (numbers(batch.groups), numbers(batch.left_out)) == ([0, 1], [2])
    assert batch.untrainable == {(1, 0)}


def test_flat_groups_are_trained_unless_they_are_to_be_replaced() -> None:
    batch = choose_groups(compose(["run.tasks_per_step=2"]), 1, groups(FLAT, MIXED))
    assert (numbers(batch.groups), batch.untrainable) == ([0, 1], frozenset())


def test_of_too_many_groups_the_first_are_trained_and_the_others_in_no_statistics() -> None:
    config = compose([*REPLACING, "run.tasks_per_step=2"])
    batch = choose_groups(config, 1, groups(MIXED, FLAT, MIXED, MIXED)[::-1])
    assert (numbers(batch.groups), numbers(batch.left_out)) == ([0, 2], [1])
    assert len(batch.records) == 6
