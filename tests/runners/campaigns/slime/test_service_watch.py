"""A service that exits ends the rollouts that need it, and nothing after it begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from runners.campaigns.slime.service_watch import ServiceWatch
from runners.records.store.run_store import RunStore
from runners.system.processes.service import ServiceError
from tests.fakes.records import CONFIG

GONE = ServiceError("the gateway exited")


class Groups:
    """Rollouts that are in flight."""

    def __init__(self) -> None:
        self.began, self.cancelled, self.ended = asyncio.Event(), False, asyncio.Event()

    async def run(self) -> str:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "never"

    async def end(self) -> None:
        self.ended.set()


@pytest_asyncio.fixture
async def groups() -> AsyncIterator[Groups]:
    yield Groups()


async def test_rollouts_in_flight_are_cancelled_and_later_ones_do_not_begin(
    tmp_path: Path, groups: Groups
) -> None:
    store = RunStore.create(tmp_path / "run", CONFIG)
    watch = ServiceWatch(store, groups.end)
    running = asyncio.create_task(watch.run(groups.run()))
    await groups.began.wait()
    watch.note_exit(GONE)
    watch.note_exit(ServiceError("the placement exited"))
    with pytest.raises(ServiceError, match="gateway"):
        await running
    assert groups.cancelled, "they would fail, and count"
    await groups.ended.wait()
    groups.began.clear()
    with pytest.raises(ServiceError, match="gateway"):
        await watch.run(groups.run())
    assert not groups.began.is_set()
    (event,) = store.events("service_gone")
    assert event.data == {"message": "the gateway exited"}


async def test_without_an_exit_rollouts_have_their_result_or_error(
    tmp_path: Path, groups: Groups
) -> None:
    watch = ServiceWatch(RunStore.create(tmp_path / "run", CONFIG), groups.end)
    assert await watch.run(asyncio.sleep(0, "done")) == "done"

    async def fail() -> None:
        raise ValueError("a task")

    with pytest.raises(ValueError, match="a task"):
        await watch.run(fail())
