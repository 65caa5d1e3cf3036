"""Wait for the first of several events."""

from __future__ import annotations

import asyncio


async def wait_for_any(*events: asyncio.Event) -> None:
    """Return when one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
