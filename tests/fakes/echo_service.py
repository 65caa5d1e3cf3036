"""A service that announces its settings and then behaves as they say, for tests of the protocol."""

from __future__ import annotations

import asyncio
import os
import sys

from runners.system.processes.service import announce, receive_settings, wait_for_parent_exit


async def main() -> None:
    """Serve until the parent exits, or fail in the way that the settings name."""
    settings = receive_settings()
    if settings.get("die_before_ready"):
        print("cannot bind: the reason", file=sys.stderr)
        raise SystemExit(4)
    if settings.get("unready"):
        await wait_for_parent_exit()
        return
    if settings.get("never_ready"):
        await asyncio.sleep(60)
    announce({"pid": os.getpid(), "settings": settings})
    if "die_after_s" in settings:
        await asyncio.sleep(settings["die_after_s"])
        print("died of the test", file=sys.stderr)
        raise SystemExit(7)
    if settings.get("deaf"):
        await asyncio.sleep(60)
    await wait_for_parent_exit()


if __name__ == "__main__":
    asyncio.run(main())
