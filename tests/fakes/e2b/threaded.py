"""The E2B service in a thread and event loop of its own, for tests that share one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.e2b.server import E2bServer, e2b_server


@contextmanager
def threaded_e2b_server(root: Path) -> Iterator[E2bServer]:
    """Serve until the end of the context."""
    started: list[E2bServer] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with e2b_server(root) as server:
            started.append(server)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
