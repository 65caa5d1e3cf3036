"""A rate that processes share is one rate."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from runners.gateway.replicas.shared_rate import SharedTokenBucket, open_shared_rate


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = open_shared_rate()
    yield descriptor
    os.close(descriptor)


async def take(bucket: SharedTokenBucket, number: int) -> list[float]:
    clock, times = asyncio.get_running_loop().time, []
    for _ in range(number):
        await bucket.take()
        times.append(clock())
    return times


async def test_several_buckets_on_one_file_admit_as_many_as_one(file: int) -> None:
    buckets = [SharedTokenBucket(200.0, file) for _ in range(3)]
    found = await asyncio.gather(*(take(bucket, 4) for bucket in buckets))
    times = sorted(time for each in found for time in each)
    assert times[-1] - times[0] >= 0.9 * 11 / 200


async def test_without_a_rate_nobody_waits(file: int) -> None:
    bucket = SharedTokenBucket(None, file)
    await take(bucket, 1000)
    assert os.fstat(file).st_size == 0


async def test_a_process_that_died_leaves_no_lock(file: int) -> None:
    child = os.fork()
    if not child:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX)
        os._exit(0)
    os.waitpid(child, 0)
    async with asyncio.timeout(10):
        await SharedTokenBucket(1000.0, file).take()
