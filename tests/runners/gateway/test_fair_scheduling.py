"""A session's short work takes its share of the event loop, and no more."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from runners.gateway.fair_scheduling import LEAST_S, PAUSE, FairScheduler

WORK_S = 5 * LEAST_S


async def test_the_pieces_of_one_session_have_pauses_between_them() -> None:
    share, spans = FairScheduler(), list[tuple[float, float]]()

    def work() -> None:
        began = time.perf_counter()
        time.sleep(WORK_S)
        spans.append((began, time.perf_counter()))

    await asyncio.gather(*(share.run("s", work) for _ in range(4)))
    for (began, ended), (following, _) in pairwise(spans):
        assert following - ended >= 0.9 * PAUSE * (ended - began)


async def test_a_piece_of_another_session_waits_for_one_piece_only() -> None:
    share, order = FairScheduler(), list[str]()

    def work(name: str) -> None:
        time.sleep(WORK_S)
        order.append(name)

    many = [share.run("many", lambda: work("many")) for _ in range(4)]
    await asyncio.gather(*many, share.run("one", lambda: work("one")))
    assert order.index("one") == 1


async def test_work_that_is_soon_over_is_followed_by_no_pause() -> None:
    share, done = FairScheduler(), list[float]()
    began = time.perf_counter()
    while len(done) < 100:
        await share.run("s", lambda: done.append(time.perf_counter()))
    assert done[-1] - began < 100 * LEAST_S


async def test_work_that_fails_gives_the_turn_on() -> None:
    share = FairScheduler()
    for _ in range(2):
        async with asyncio.timeout(10):
            assert await asyncio.gather(share.run("s", lambda: 1 // 0), return_exceptions=True)
