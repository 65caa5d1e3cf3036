"""What the front sends arrives, and nobody waits for a replica that is gone."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from runners.gateway.replicas.channel import ChannelReader, ReplicaChannel

DOCUMENT = {"front": "x" * 1000}


async def fill(channel: ReplicaChannel) -> asyncio.Task[None]:
    """Send documents that nobody reads; return the one that has to wait."""
    while True:
        sending = asyncio.create_task(channel.tell(DOCUMENT))
        done, _ = await asyncio.wait({sending}, timeout=0.05)
        if not done:
            return sending


async def test_a_message_waits_for_a_reader_that_is_slow_and_arrives() -> None:
    channel = ReplicaChannel()
    waiting = await fill(channel)
    documents: list[dict[str, Any]] = []
    connections: list[socket.socket] = []
    reader = ChannelReader(
        channel.theirs.detach(), on_connection=connections.append, on_document=documents.append
    )
    await asyncio.wait_for(waiting, 10)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await channel.hand_over(theirs)
        async with asyncio.timeout(10):
            while not connections:
                await asyncio.sleep(0.01)
    assert documents == [DOCUMENT] * len(documents)
    connections[0].close()
    reader.close()
    channel.close()


async def test_closing_the_channel_ends_all_that_wait_to_send() -> None:
    channel = ReplicaChannel()
    waiting = [await fill(channel), asyncio.create_task(channel.tell(DOCUMENT))]
    await asyncio.sleep(0)
    channel.close()
    for each in waiting:
        with pytest.raises(OSError, match="descriptor"):
            await asyncio.wait_for(each, 10)
