from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.observe.export.run_dump import ONLY as DUMP_ONLY
from runners.observe.export.run_dump import RolloutFilter
from runners.observe.viewer.filters import KINDS, ONLY, SORTS, RolloutQuery, ViewError, parse_query
from runners.observe.viewer.listing import find_place, list_rollouts
from runners.records.store.run_store import RunStore


def ids(store: RunStore, **given: str) -> list[str]:
    """Return the ends of the ids that a query finds."""
    return [row["rollout_id"] for row in list_rollouts(store, parse_query(given), 0, 100).rows]


@pytest.mark.parametrize("only", ONLY)
def test_the_kinds_of_the_dump_select_the_same_rollouts_here(store: RunStore, only: str) -> None:
    wanted = RolloutFilter(only=only)
    expected = [each.rollout_id for each in store.rollouts(counts=True) if wanted.matches(each)]
    assert ids(store, only=only) == expected
    assert list(ONLY) == list(DUMP_ONLY)


def test_filters_narrow_one_another(store: RunStore) -> None:
    assert len(ids(store)) == 6
    assert ids(store, step="1", only="unsolved") == ["eval-000001-003-00", "train-000001-00-01"]
    assert ids(store, kind="subagent") == ids(store, kind="wipe") == ["train-000002-000-00"]
    assert ids(store, kind="side") == []
    assert ids(store, outcome="infra") == ids(store, outcome="infra.sandbox_lost")
    assert ids(store, min_reward="0.5", step="1-2", group="0")[-1] == "train-000002-000-00"


def test_brackets_in_the_name_of_a_task_are_themselves(store: RunStore) -> None:
    assert ids(store, task="held[1]") == ids(store, task="h*") == ["eval-000001-003-00"]
    assert ids(store, task="held[0-9]") == []


@pytest.mark.parametrize("sort", [name for name in SORTS if name != "run"])
def test_a_reversed_order_still_ends_with_those_without_a_value(store: RunStore, sort: str) -> None:
    up, down = ids(store, sort=sort), ids(store, sort=f"-{sort}")
    assert sorted(up) == sorted(down)
    if sort == "branches":
        assert down[0] == "train-000002-000-00", "the one with a sub-agent"
    if sort in ("reward", "advantage"):
        assert up[-1] == down[-1] == "train-000001-00-03"


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("only", "solvd", "did you mean solved?"),
        ("kind", "main", f"choose one of {', '.join(KINDS)}"),
        ("outcome", "budget.turn", "did you mean budget.turns?"),
        ("sort", "rewards", "did you mean reward?"),
        ("step", "7-3", "a range of them (3-7)"),
        ("group", "-1", "the number of a group"),
        ("min_reward", "much", "give a number"),
        ("min_reward", "nan", "give a number"),
        ("serach", "x", "did you mean search?"),
        ("search", "x" * 2000, "more than 1000"),
    ],
)
def test_what_is_not_known_is_an_error_with_its_fix(name: str, value: str, hint: str) -> None:
    with pytest.raises(ViewError, match=r".") as error:
        parse_query({name: value})
    assert hint in str(error.value)
    assert name in str(error.value)


@given(st.text(max_size=30), st.sampled_from(["task", "search", "outcome", "step", "group"]))
def test_no_text_becomes_a_part_of_the_sql(text: str, name: str) -> None:
    try:
        where, values = parse_query({name: text}).conditions()
    except ViewError:
        return
    assert where.count(":") == len(values)
    assert "'" not in where


def test_nothing_given_is_the_default() -> None:
    assert parse_query({"only": [], "task": None, "search": ""}) == RolloutQuery()


@pytest.mark.parametrize("chosen", [{}, {"only": "train"}, {"search": "ls"}])
@pytest.mark.parametrize("sort", ["run", "-run", "reward", "-duration"])
def test_the_place_of_a_rollout_is_its_index_in_the_list(
    store: RunStore, chosen: dict[str, str], sort: str
) -> None:
    query = parse_query(chosen | {"sort": sort})
    found = [row["rollout_id"] for row in list_rollouts(store, query, 0, 100).rows]
    assert len(found) > 1
    assert [find_place(store, query, each) for each in found] == [*range(len(found))]
    assert find_place(store, query, "train-000099-000-00") is None
