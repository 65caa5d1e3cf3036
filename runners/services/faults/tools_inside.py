"""Runs inside the sandbox, on the standard library: the native agent with tools that fail.

``python -I -S tools_inside.py PLAN START SETTINGS``: ``PLAN`` is a JSON object, number of a tool
call (from 1) → ``[what, seconds, dice]``; ``START`` is the agent's own start program. A fault that
happens is said on stderr.
"""

from __future__ import annotations

import errno
import json
import sys
import time
from typing import Any

MARK = "agentrl-fault "
"""Begins the line on stderr that says which call was hit."""
GARBAGE = b"\xff\xfe\x00{not json\n\x80\x81\n"
"""Output that nobody can read."""
BROKEN = "{} {0} {name} %s %d %(name)s %n \x00 \x1b[31m \udcff \ud800 " + "×" * 600
"""Text that breaks formatting, terminals, UTF-8 and length limits."""


class Unreadable(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise ValueError("this exception has no text")


def fail(what: str, seconds: float, dice: int, tool_error: type[Exception]) -> str | None:
    """Let a fault happen; returns what the tool says instead, or None if it may run."""
    match what:
        case "error":
            raise tool_error("injected")
        case "exception":
            raise RuntimeError("injected")
        case "timeout":
            raise TimeoutError("injected")
        case "disk_full":
            raise OSError(errno.ENOSPC, "No space left on device")
        case "hostile":
            raise tool_error(BROKEN) if dice & 1 else Unreadable()
        case "garbage":
            return GARBAGE.decode(errors="replace")
        case "hang":
            while True:
                time.sleep(3600)
        case "delay":
            time.sleep(seconds)
    return None


def main(plan: str, start: str, settings: str) -> None:
    """Start the agent with every tool wrapped."""
    sys.path.append(start.rpartition("/native/")[0])
    from native import agent  # type: ignore[import-not-found]

    planned: dict[str, Any] = json.loads(plan)
    calls = 0

    def faulty(tool: Any) -> Any:
        def run(**arguments: str) -> str:
            nonlocal calls
            calls += 1
            if str(calls) in planned:
                print(f"{MARK}{calls}", file=sys.stderr, flush=True)
                what, seconds, dice = planned[str(calls)]
                said = fail(what, seconds, dice, agent.ToolError)
                if said is not None:
                    return said
            return str(tool(**arguments))

        return run

    agent.TOOL_FUNCTIONS = {name: faulty(tool) for name, tool in agent.TOOL_FUNCTIONS.items()}
    agent.main(settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
