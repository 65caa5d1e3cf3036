"""A node's recorder: a call ends with the driver's answer, and the order of calls is kept."""

from __future__ import annotations

import asyncio

import pytest

from runners.services.ray_workers.errors import WorkerError
from runners.services.ray_workers.remote_recorder import RecorderCall, RemoteRecorder


async def take(recorder: RemoteRecorder) -> list[RecorderCall]:
    """Return the calls that have come until now."""
    await asyncio.sleep(0)
    return await recorder.take_calls(0.0)


async def test_a_call_returns_what_the_driver_answers_or_raises_it() -> None:
    recorder = RemoteRecorder("node/1")
    asking = [asyncio.create_task(recorder.repository(commit)) for commit in ("a", "b")]
    first, second = await take(recorder)
    assert (first.method, first.arguments) == ("repository", ("a",))
    recorder.answer(second.number, WorkerError("no such commit"))
    assert not asking[0].done()
    recorder.answer(first.number, b"archive")
    assert await asking[0] == b"archive"
    with pytest.raises(WorkerError, match="no such commit"):
        await asking[1]


async def test_what_is_cancelled_while_it_is_registered_is_unregistered_after_it() -> None:
    recorder = RemoteRecorder("node/1")
    registering = asyncio.create_task(recorder.register("sandbox", "one"))
    taken = await take(recorder)
    registering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await registering
    taken += await take(recorder)
    assert [call.method for call in taken] == ["register", "unregister"]
    flushing = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0)
    assert not flushing.done()
    for call in taken:
        recorder.answer(call.number, None)
    await flushing


async def test_a_driver_that_is_given_up_is_waited_for_no_more() -> None:
    recorder = RemoteRecorder("node/1")
    before = asyncio.create_task(recorder.event("fault", {}))
    [call] = await take(recorder)
    recorder.give_up()
    recorder.answer(call.number, None)  # too late
    for asking in (before, asyncio.create_task(recorder.event("fault", {}))):
        with pytest.raises(WorkerError, match="did not answer"):
            await asking
    await recorder.flush()
