"""A replica hangs if question after question gets no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from runners.gateway.client import DEADLINE_S
from runners.gateway.replicas.forwarding import CONNECT_S
from runners.gateway.replicas.hang_watch import ANSWER_S, EVERY_S, QUESTIONS, wait_until_hung
from tests.fakes.virtual_time import in_virtual_time

SILENT = ANSWER_S + EVERY_S


def answering(in_s: Iterable[float | None]) -> Callable[[], Awaitable[None]]:
    """Return a replica that answers after these times, is gone for None, and then says nothing."""
    times = iter(in_s)

    async def ask() -> None:
        after = next(times, 1e6)
        if after is None:
            raise ConnectionResetError
        await asyncio.sleep(after)

    return ask


async def hung_after(*in_s: float | None) -> float:
    await wait_until_hung(answering(in_s))
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_one_that_never_answers_hangs_before_a_driver_gives_up() -> None:
    assert await hung_after() == QUESTIONS * SILENT < DEADLINE_S / 1.5
    assert ANSWER_S < CONNECT_S


@in_virtual_time
async def test_one_that_is_slow_now_and_then_or_gone_does_not_hang() -> None:
    late = ANSWER_S + 1
    slow = [late, late, 0.0] * 5
    gone = [late, late, None] * 5
    assert await hung_after(*slow, *gone) == 20 * SILENT + 10 * EVERY_S + QUESTIONS * SILENT
