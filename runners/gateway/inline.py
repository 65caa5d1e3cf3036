"""A gateway in the caller's own event loop, for work that ends before its caller does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from runners.gateway.service import GatewayHooks, serve


@asynccontextmanager
async def serve_inline(
    settings: dict[str, Any], parts: GatewayHooks
) -> AsyncIterator[dict[str, Any]]:
    """Serve while the block runs; yield what the gateway announces.

    Raises what ``serve`` raises if it cannot start.
    """
    ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    service = asyncio.create_task(
        serve(settings, announce=ready.set_result, stop=stop, parts=parts)
    )
    try:
        service.add_done_callback(lambda _: ready.cancel())
        try:
            info = await ready
        except asyncio.CancelledError:
            await service  # says why it did not start
            raise
        yield info
    finally:
        stop.set()
        await service
