"""Steps that overlap, driven by their real schedule, producer, pool and store.

Attempts and training are stand-ins that take random numbers of loop turns, and the driver is killed
at any write.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import compose
from conf.schema import Config
from runners.campaigns.group_runner import GroupRunner
from runners.campaigns.overlap.events import Batch, ScheduleError, Start, from_row
from runners.campaigns.overlap.producer import GroupProducer
from runners.campaigns.overlap.recorded import RecordedSchedule
from runners.campaigns.overlap.run_schedule import RunSchedule
from runners.campaigns.overlap.scheduler import GroupScheduler
from runners.campaigns.overlap.steps import OverlappedSteps, find_served
from runners.campaigns.sampler import StepSampler
from runners.campaigns.schedule import evaluation_due
from runners.campaigns.step_training import StepTraining
from runners.observe.live.progress import Progress
from runners.records.checkpoints import CHECKPOINTS, STATE, Checkpoint, directory_name, find_latest
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.rollouts.contract import AttemptContext, AttemptResult, RolloutSpec
from runners.rollouts.pool import Pool
from runners.services.driver import Interrupted
from runners.system.concurrency.limits import Admission
from runners.tasks.contract import Task
from runners.training.advantages import StepGroups
from tests.fakes.records import CONFIG, LOST, a_rollout

STEPS, GROUPS, MEMBERS = 5, 2, 2
TASKS = [
    Task(f"t{n}", "train", Path("nowhere"), "0" * 40, "", (), (), (), "", "operator")
    for n in range(6)
]
STREAM = ("run.overlap=stream", "run.staleness=2", "run.window=2")
STEP = ("run.overlap=step",)
CURRICULUM = (*STREAM, "run.sampler=curriculum")


class Killed(BaseException):
    """The driver is gone."""


class MortalStore(RunStore):
    """A store whose process dies just before or just after one of its writes."""

    left: float = float("inf")
    """Instants until then."""

    def tick(self) -> None:
        self.left -= 1
        if self.left <= 0:
            raise Killed

    def log_schedule(self, kind: str, body: Mapping[str, Any]) -> None:
        self.tick()
        super().log_schedule(kind, body)
        self.tick()

    def put_rollout(self, record: RolloutRecord) -> None:
        self.tick()
        super().put_rollout(record)
        self.tick()

    def finish_step(self, step: int, metrics: dict[str, Any]) -> None:
        self.tick()
        super().finish_step(step, metrics)
        self.tick()


class Training(StepTraining):
    """Trains nothing, and keeps what it was given."""

    def __init__(self, world: World, store: MortalStore) -> None:
        self.world, self.store = world, store

    async def train(self, step: int, groups: StepGroups, rollout_s: float) -> dict[str, Any]:
        await self.world.take_time(20)
        records = [record for record, _ in groups.advantages]
        for record in records:
            age = step - 1 - self.world.versions[record.session_id]
            self.world.ages.append((step, age))
            self.store.put_rollout(record)
        self.world.trained.append((step, sorted(record.session_id for record in records)))
        return {"train/reward_mean": 0.0}

    async def save(self, step: int, metrics: dict[str, Any]) -> Checkpoint:
        path = self.store.run_dir / CHECKPOINTS / directory_name(step)
        path.mkdir(parents=True)
        (path / STATE).write_text(json.dumps({"state": {"metrics": metrics}}))
        await self.world.take_time(3)
        self.store.finish_step(step, metrics)
        return Checkpoint(path, step)


class World:
    """A run directory, and the drivers that work on it one after the other."""

    def __init__(self, run_dir: Path, config: Config, seed: int = 0) -> None:
        self.run_dir, self.config = run_dir, config
        self.dice = random.Random(seed)
        self.served = 0
        self.versions: dict[str, int] = {}
        """Weights with which each attempt began."""
        self.ages: list[tuple[int, int]] = []
        self.in_flight = 0
        self.evaluated: list[int] = []
        self.evaluation_turns = 0
        """Turns of the loop that an evaluation takes; 0: a few."""
        self.beside = 0
        """Turns of evaluations in which attempts ran."""
        self.trained: list[tuple[int, list[str]]] = []
        self.draining = asyncio.Event()
        self.recorded: RecordedSchedule | None = None
        self.schedule: RunSchedule | None = None
        self.sampler: type[StepSampler] = StepSampler
        self.flat = {(step, 0) for step in range(3, 30, 3)}
        """Step and number of the groups whose rollouts are all solved."""
        RunStore.create(run_dir, CONFIG).close()

    def replay(self, run_dir: Path) -> None:
        """Repeat the schedule of a finished run."""
        self.recorded = RecordedSchedule(run_dir, self.config, self.run_dir / "plan.json")
        assert self.drive()

    def drive(self, killed_at: float = float("inf")) -> bool:
        """Drive the run to its end; return False if it was killed before."""
        with MortalStore.open(self.run_dir) as store:
            store.left = killed_at
            try:
                asyncio.run(self.run(store))
            except Killed:
                return False
        return True

    async def run(self, store: MortalStore) -> None:
        config, progress = self.config, Progress("run", STEPS)
        self.draining, self.in_flight = asyncio.Event(), 0
        saved = find_latest(self.run_dir / CHECKPOINTS)
        self.served, served = find_served(config, store, saved)
        assert self.served == (0 if served is None else served.step)
        if saved is not None and saved.step not in {s.step for s in store.steps() if s.metrics}:
            store.finish_step(saved.step, saved.state()["metrics"])
        sampler = self.sampler(config, store, TASKS, lambda *_: None)
        pool = Pool(
            cast("AttemptContext", None),  # attempts need nothing
            store,
            self.execute,
            admission=Admission(3, adaptive=False),
            attempts=1,
            breaker=1000,
            draining=self.draining,
            on_done=lambda record: None,
        )
        runner = GroupRunner(
            config, store, pool, sampler, progress=progress, draining=self.draining
        )
        schedule = self.schedule = RunSchedule(config, store, self.recorded)
        steps = OverlappedSteps(
            config,
            store,
            schedule=schedule,
            producer=GroupProducer(config, schedule, sampler, runner, self.draining),
            training=Training(self, store),
            served=self.served,
            load=self.load,
            show_rollouts=lambda: None,
            after_step=lambda *_: None,
            evaluate=self.evaluate,
            count_planned=self.count_planned,
        )
        await steps.run(saved)

    async def execute(
        self, context: AttemptContext, spec: RolloutSpec, attempt: int, queued_s: float
    ) -> AttemptResult:
        session = f"{spec.rollout_id}-a{attempt}"
        self.versions[session] = self.served
        self.in_flight += 1
        await self.work(spec)
        self.in_flight -= 1
        flat, lost = (spec.step, spec.group) in self.flat, spec.step == 4 and spec.group == 1
        solved = None if lost else flat or spec.member == 0
        record = a_rollout(
            spec.rollout_id,
            session_id=session,
            attempt=attempt,
            step=spec.step,
            group=spec.group,
            member=spec.member,
            task_id=spec.task.id,
            counts=False,
            advantage=None,
            solved=solved,
            reward=None if solved is None else float(solved),
            **({"outcome": LOST} if solved is None else {}),
        )
        return AttemptResult(record, pushed_back=False)

    async def work(self, spec: RolloutSpec) -> None:
        """Take the time of an attempt."""
        await self.take_time(200 if self.dice.random() < 0.05 else 12)

    async def load(self, saved: Checkpoint) -> None:
        await self.take_time(2)
        self.served = saved.step

    async def evaluate(self, step: int) -> None:
        if not evaluation_due(self.config, step) or step in self.evaluated:
            return
        for _ in range(self.evaluation_turns or self.dice.randrange(8)):
            assert step == self.served, "an evaluation has one version"
            self.beside += self.in_flight > 0
            if self.draining.is_set():
                raise Interrupted
            await asyncio.sleep(0)
        assert step == self.served
        self.evaluated.append(step)

    async def count_planned(self) -> dict[int, int]:
        return {}  # attempts here sample no tokens

    async def take_time(self, turns: int) -> None:
        for _ in range(self.dice.randrange(turns)):
            await asyncio.sleep(0)

    def batches(self) -> list[Batch]:
        with RunStore.open(self.run_dir, read_only=True) as store:
            events = [from_row(*row) for row in store.schedule()]
        return [event for event in events if isinstance(event, Batch)]

    def decisions(self) -> tuple[list[Batch], dict[int, int]]:
        """Return what was trained together, and the first weights of each group."""
        with RunStore.open(self.run_dir, read_only=True) as store:
            events = [from_row(*row) for row in store.schedule()]
        starts = {each.group: each.version for each in events if isinstance(each, Start)}
        return self.batches(), starts

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        with RunStore.open(self.run_dir, read_only=True) as store:
            return store.schedule()

    def check_deals(self) -> None:
        """Each step was dealt once, and each of its groups has the task that it was dealt."""
        rows = [body for kind, body in self.events() if kind == "deal"]
        deals = {body["step"]: body["tasks"] for body in rows}
        assert len(rows) == len(deals)
        assert all(len(set(tasks)) == GROUPS for tasks in deals.values()), deals
        admitted = [body for kind, body in self.events() if kind == "admit"]
        for body in admitted:
            step, number = divmod(body["group"], GROUPS)
            assert body["task"] == deals[step + 1][number]

    def check(self) -> None:
        """Every batch was trained in the composition of the log, each rollout in one batch."""
        batches = self.batches()
        assert [batch.number for batch in batches] == list(range(1, STEPS + 1))
        groups = Counter(group for batch in batches for group in batch.groups)
        assert set(groups.values()) == {1}
        composed: dict[int, list[str]] = {}
        for step, sessions in self.trained:  # a step that is trained again is trained the same
            assert composed.setdefault(step, sessions) == sessions
        rollouts = Counter(name for sessions in composed.values() for name in sessions)
        assert set(rollouts.values()) == {1}
        with RunStore.open(self.run_dir, read_only=True) as store:
            assert [row.state for row in store.steps()] == ["done"] * STEPS
            counting = {record.session_id for record in store.rollouts(counts=True)}
        assert counting == set(rollouts), "what counts is trained, and nothing else"
        assert set(self.evaluated) == {0, 2, 4, 5}
        if self.config.run.overlap == "step":
            assert all(age == min(step - 1, 1) for step, age in self.ages), self.ages
        else:
            assert all(0 <= age <= 2 for _, age in self.ages), self.ages


@cache
def configure(*overrides: str) -> Config:
    return compose([
        *(f"run.steps={STEPS}", f"run.tasks_per_step={GROUPS}"),
        *(f"run.rollouts_per_task={MEMBERS}", "rollout.spare_groups=1"),
        *("run.eval_tasks=1", "run.eval_every=2"),
        *("rollout.replace_flat=true", "trainer.correction.truncate=token", *overrides),
    ])  # fmt: skip


def test_in_step_rollouts_are_one_update_old_from_the_second_batch_on(tmp_path: Path) -> None:
    world = World(tmp_path / "run", configure(*STEP))
    assert world.drive()
    world.check()
    assert {age for step, age in world.ages if step > 1} == {1}


def test_in_stream_some_are_older_than_others_and_none_too_old(tmp_path: Path) -> None:
    world = World(tmp_path / "run", configure(*STREAM))
    assert world.drive()
    world.check()
    assert len({age for _, age in world.ages}) > 1


@pytest.mark.parametrize("mode", [STEP, STREAM], ids=["step", "stream"])
def test_evaluations_stop_neither_rollouts_nor_training_and_hold_the_next_weights_back(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    world = World(tmp_path / "run", configure(*mode))
    world.evaluation_turns = 300  # longer than a step
    assert world.drive()
    world.check()
    assert world.beside > 20


def test_a_staleness_of_zero_is_to_take_turns(tmp_path: Path) -> None:
    world = World(tmp_path / "run", configure("run.overlap=stream", "run.staleness=0"))
    assert world.drive()
    assert {age for _, age in world.ages} == {0}
    assert [batch.groups for batch in world.batches()][:2] == [(0, 1), (2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [STEP, STREAM], ids=["step", "stream"])
def test_a_run_killed_before_and_after_every_write_trains_every_batch_once(
    tmp_path: Path, mode: tuple[str, ...]
) -> None:
    instant, finished = 0, False
    while not finished:
        instant += 1
        world = World(tmp_path / f"run-{instant}", configure(*mode), seed=instant)
        finished = world.drive(instant)
        assert world.drive()
        world.check()
    assert instant > 100


@pytest.mark.integration
@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([STEP, STREAM]),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 120), max_size=8),
)
def test_a_run_killed_again_and_again_trains_every_batch_once(
    mode: tuple[str, ...], seed: int, kills: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory, "run"), configure(*mode), seed)
        for instant in kills:
            world.drive(instant)
        assert world.drive()
        world.check()


@pytest.mark.integration
def test_a_sampler_that_looks_at_results_deals_every_step_once_however_often_it_is_killed(
    tmp_path: Path,
) -> None:
    """A step is half dealt when a group is replaced by the first of the next step."""
    half_dealt = 0
    for instant in range(3, 140, 4):
        world = World(tmp_path / f"run-{instant}", configure(*CURRICULUM), seed=instant)
        if not world.drive(instant):
            half_dealt += sum(kind == "admit" for kind, _ in world.events()) % GROUPS
        assert world.drive()
        world.check()
        world.check_deals()
    assert half_dealt > 5


class SlowSampler(StepSampler):
    """Takes long for the steps that are dealt after the first, as one that asks a service may."""

    async def batch(self, step: int) -> list[RolloutSpec]:
        for _ in range(400 if step > 3 else 0):
            await asyncio.sleep(0)
        return await super().batch(step)


class MeetingWorld(World):
    """A flat group, the first, ends about when that ends which makes a batch, ``turns`` before."""

    def __init__(self, run_dir: Path, config: Config, turns: int) -> None:
        super().__init__(run_dir, config)
        self.turns = turns
        self.sampler, self.flat = SlowSampler, {(1, 0)}
        self.gate = asyncio.Event()

    async def work(self, spec: RolloutSpec) -> None:
        match spec.step, spec.group, spec.member:
            case 1, 0, _:
                await self.gate.wait()
            case 2, 0, 1:
                self.gate.set()
                for _ in range(self.turns):
                    await asyncio.sleep(0)
            case step, _, _ if step > 2:
                await super().work(spec)


class ComparingStore(MortalStore):
    """Compares the log with the state that it must make, at each batch."""

    world: World
    compared = 0

    def log_batch(self, step: int, tasks: list[str], kind: str, body: Mapping[str, Any]) -> None:
        super().log_batch(step, tasks, kind, body)
        schedule = self.world.schedule
        assert schedule is not None
        live, logged = (
            schedule.state,
            GroupScheduler.rebuild(schedule.state.limits, self.schedule()),
        )
        for name in ("version", "admitted", "training", "pending", "waiting", "may_replace"):
            assert getattr(logged, name) == getattr(live, name), name
        self.compared += 1


def test_no_batch_is_taken_between_a_replacement_and_its_row(tmp_path: Path) -> None:
    """The log makes the state that the batch was taken of, however long a replacement is dealt."""
    first = set()
    for turns in range(3):
        world = MeetingWorld(tmp_path / f"run-{turns}", configure(*STREAM), turns)
        with ComparingStore.open(world.run_dir) as store:
            store.world = world
            asyncio.run(world.run(store))
            assert store.compared == STEPS
        kinds = [
            kind for kind, body in world.events() if kind == "batch" or body.get("replaces") == 0
        ]
        first.add(kinds[0])
        world.check()
    assert first == {"batch", "admit"}, "the two met in either order"


@pytest.mark.parametrize("mode", [STEP, STREAM], ids=["step", "stream"])
def test_a_stop_leaves_a_run_that_goes_on(tmp_path: Path, mode: tuple[str, ...]) -> None:
    for seed in range(8):
        world = World(tmp_path / f"run-{seed}", configure(*mode), seed)

        async def stop(world: World = world, seed: int = seed) -> None:
            with MortalStore.open(world.run_dir) as store:
                running = asyncio.create_task(world.run(store))
                for _ in range(40 * seed + 5):
                    await asyncio.sleep(0)
                world.draining.set()
                await running

        try:
            asyncio.run(stop())
        except Interrupted:
            assert len(world.batches()) <= STEPS
        assert world.drive()
        world.check()


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([STEP, STREAM, CURRICULUM]), st.integers(0, 10**6))
def test_a_replay_makes_the_decisions_of_the_run_with_any_timing(
    mode: tuple[str, ...], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        recorded = World(Path(directory, "recorded"), configure(*mode), seed)
        assert recorded.drive()
        replay = World(Path(directory, "replay"), configure(*mode), seed + 1)
        replay.replay(recorded.run_dir)
        replay.check()
        assert replay.decisions() == recorded.decisions()
        admitted = [
            {body["group"]: body["task"] for kind, body in world.events() if kind == "admit"}
            for world in (recorded, replay)
        ]
        assert admitted[0] == admitted[1]


def test_a_run_that_is_not_finished_is_not_replayed(tmp_path: Path) -> None:
    recorded = World(tmp_path / "recorded", configure(*STREAM))
    assert not recorded.drive(60)
    with pytest.raises(ScheduleError, match=r"name a finished run of run\.overlap=step or stream"):
        World(tmp_path / "replay", configure(*STREAM)).replay(recorded.run_dir)
