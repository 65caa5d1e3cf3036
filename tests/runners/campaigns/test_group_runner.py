"""Steps group by group: spare groups replace those without signal, whatever the timing."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Config
from runners.campaigns.group_runner import GroupRunner, note_final
from runners.campaigns.sampler import StepSampler
from runners.observe.live.progress import Progress
from runners.records.store.run_store import RunStore
from runners.rollouts.contract import AttemptContext, AttemptResult, RolloutSpec
from runners.rollouts.pool import Pool
from runners.services.driver import Interrupted
from runners.system.concurrency.limits import Admission
from runners.tasks.contract import Task
from runners.training.advantages import StepGroups
from tests.fakes.records import CONFIG, LOST, a_rollout

Kind = Literal["mixed", "flat", "lost"]
"""Rewards of a group: one solved and one not, both solved, none graded."""
TASKS = [
    Task(f"t{n}", "train", Path("nowhere"), "0" * 40, "", (), (), (), "", "operator")
    for n in range(12)
]


@cache
def configure(bound: int = 6, *more: str) -> Config:
    return compose(
        [
            *("run.tasks_per_step=3", "run.rollouts_per_task=2", "rollout.replace_flat=true"),
            *(f"rollout.spare_groups={bound}", *more),
        ]
    )


class Steps:
    """A runner whose attempts end as listed by group, each after its own number of loop turns."""

    def __init__(
        self, config: Config, store: RunStore, kinds: Sequence[Kind], delays: int = 0
    ) -> None:
        self.ran: list[str] = []
        self.draining = asyncio.Event()
        self.drains_after: int | None = None
        """Number of attempts after which a stop is asked for."""
        self._config, self._kinds = config, kinds
        self._dice = random.Random(delays)
        self.progress = Progress("run", 1)
        self.sampler = StepSampler(config, store, TASKS, lambda *_: None)
        pool = Pool(
            cast("AttemptContext", None),  # attempts need nothing
            store,
            self._execute,
            admission=Admission(4, adaptive=False),
            attempts=1,
            breaker=100,
            draining=self.draining,
            on_done=lambda record: note_final(self.progress, record),
        )
        self.runner = GroupRunner(
            config, store, pool, self.sampler, progress=self.progress, draining=self.draining
        )

    async def run(self) -> StepGroups:
        specs = await self.sampler.batch(1)
        self.progress.begin_phase("rollouts", len(specs))
        return await self.runner.run_step(1, specs)

    async def _execute(
        self, context: AttemptContext, spec: RolloutSpec, attempt: int, queued_s: float
    ) -> AttemptResult:
        for _ in range(self._dice.randrange(12)):
            await asyncio.sleep(0)
        self.ran.append(spec.rollout_id)
        if len(self.ran) == self.drains_after:
            self.draining.set()
        solved = None if self._kinds[spec.group] == "lost" else True
        if self._kinds[spec.group] == "mixed":
            solved = spec.member == 0
        record = a_rollout(
            spec.rollout_id,
            task_id=spec.task.id,
            counts=False,
            advantage=None,
            solved=solved,
            reward=None if solved is None else float(solved),
            **({"outcome": LOST} if solved is None else {}),
        )
        return AttemptResult(record, pushed_back=False)


@contextmanager
def new_store() -> Iterator[RunStore]:
    with (
        tempfile.TemporaryDirectory() as directory,
        RunStore.create(Path(directory, "run"), CONFIG) as store,
    ):
        yield store


def run_step(config: Config, kinds: Sequence[Kind], delays: int = 0) -> tuple[Steps, StepGroups]:
    with new_store() as store:
        steps = Steps(config, store, kinds, delays)
        return steps, asyncio.run(steps.run())


def group_numbers(groups: StepGroups) -> list[int]:
    return list(dict.fromkeys(record.group for record, _ in groups.advantages))


def count_by_rounds(kinds: Sequence[Kind], bound: int) -> int:
    """Return the groups of a step that waits for all of them before it replaces any (DAPO)."""
    groups, spares = 3, 0
    while (lacking := sum(kind != "mixed" for kind in kinds[:groups]) - spares) > 0:
        more = min(lacking, bound - spares)
        if not more:
            break
        groups, spares = groups + more, spares + more
    return groups


kinds_of_groups = st.lists(st.sampled_from(("mixed", "flat", "lost")), min_size=12, max_size=12)


@given(
    kinds_of_groups,
    st.integers(1, 8),
    st.integers(0, 1000),
    st.sampled_from(("epoch", "curriculum")),
)
@settings(max_examples=20, deadline=None)
def test_a_step_has_the_groups_of_refilling_in_rounds_whichever_are_ready_first(
    kinds: list[Kind], bound: int, delays: int, sampler: str
) -> None:
    config = configure(bound, f"run.sampler={sampler}")
    steps, groups = run_step(config, kinds, delays)
    wanted = count_by_rounds(kinds, bound)
    assert group_numbers(groups) == list(range(wanted))
    trained = {record.group for record, advantage in groups.advantages if advantage is not None}
    assert trained == {group for group in range(wanted) if kinds[group] == "mixed"}
    assert len(set(steps.ran)) == len(steps.ran) == steps.progress.batch_size == 2 * wanted
    assert steps.progress.batch_done == 2 * wanted
    tasks = {record.task_id for record, _ in groups.advantages}
    assert len(tasks) == wanted, "each group has a task of its own"
    assert groups.advantages == run_step(config, kinds, delays + 1)[1].advantages


def test_groups_beyond_those_that_are_needed_are_trained_too() -> None:
    config = configure(6, "rollout.oversample_groups=2")
    _, groups = run_step(config, ["mixed"] * 12)
    assert group_numbers(groups) == [0, 1, 2, 3, 4]
    assert all(advantage is not None for _, advantage in groups.advantages)
    kinds: list[Kind] = ["flat", "mixed", "flat", "mixed", "flat", "mixed", "mixed"]
    _, groups = run_step(config, kinds)
    assert group_numbers(groups) == [0, 1, 2, 3, 4, 5], "as many as without over-sampling"


def test_spare_groups_that_begin_with_the_step_wait_for_no_other(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        steps = Steps(configure(6, "rollout.oversample_groups=1"), store, ["mixed"] * 12)
        steps.drains_after = 1
        with pytest.raises(Interrupted):
            asyncio.run(steps.run())
        assert "train-000001-003-00" not in steps.ran, (
            "four attempts at once, the first groups first"
        )
        again = Steps(configure(6, "rollout.oversample_groups=1"), store, ["mixed"] * 12)
        asyncio.run(again.run())
        assert sorted([*steps.ran, *again.ran]) == [
            f"train-000001-{group:03}-{member:02}" for group in range(4) for member in range(2)
        ]


@given(kinds_of_groups, st.integers(1, 20), st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_a_step_that_was_stopped_anywhere_goes_on_to_the_same_groups(
    kinds: list[Kind], stop: int, delays: int
) -> None:
    _, whole = run_step(configure(), kinds)
    with new_store() as store:
        first = Steps(configure(), store, kinds, delays)
        first.drains_after = stop
        try:
            asyncio.run(first.run())
        except Interrupted:
            assert len(store.rollouts(counts=True)) == len(first.ran), "none in flight is lost"
        second = Steps(configure(), store, kinds, delays + 7)
        groups = asyncio.run(second.run())
    assert groups.advantages == whole.advantages
    assert not set(first.ran) & set(second.ran)
    assert second.progress.batch_done == len(whole.advantages)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("rollout.oversample_groups=3",), "more than rollout.spare_groups=2"),
        (
            ("rollout.replace_flat=true", "trainer.advantage=reinforce_pp"),
            "groups of equal rewards train there",
        ),
    ],
)
def test_what_would_do_nothing_or_something_else_is_refused(
    overrides: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        compose(list(overrides))
