"""Processes of this machine that a sandbox or an agent may have left."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil

POLLS, PAUSE_S = 100, 0.02
"""The processes of a namespace that was reaped may take a moment to leave /proc."""


def unique_number() -> str:
    """Return an argument for ``sleep`` by which it is found in /proc."""
    return f"1{secrets.randbelow(10**8):08}"


def find_processes(word: str) -> list[str]:
    """Return the pids of the host's processes that have ``word`` in their command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line.split(b"\0"):
                found.append(process.name)
    return found


async def wait_gone(word: str) -> bool:
    """Return whether soon no process has ``word`` in its command line."""
    return not await _wait_empty(lambda: find_processes(word))


def list_children() -> set[int]:
    """Return the pids of all processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def find_left(before: Collection[int], secret: str) -> list[str]:
    """Return the commands of processes that stay: below this one and not in ``before``, or anywhere
    with ``secret`` in their environment.
    """
    return await _wait_empty(lambda: _list_left(before, secret))


def _list_left(before: Collection[int], secret: str) -> list[str]:
    found = []
    ours = list_children() - set(before)
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone meanwhile, or another user's
            known = process.pid in ours or secret in process.environ().values()
            running = process.status() != psutil.STATUS_ZOMBIE
            if known and running and process.pid != os.getpid():
                found.append(" ".join(process.cmdline())[:200] or process.name())
    return found


async def _wait_empty(find: Callable[[], list[str]]) -> list[str]:
    for _ in range(POLLS):
        if not (found := find()):
            return []
        await asyncio.sleep(PAUSE_S)
    return found
