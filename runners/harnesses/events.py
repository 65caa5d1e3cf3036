"""What agent programs print: one JSON event per line, among lines that are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]

TAIL = 2000
"""Bytes of each output that a result keeps."""


def events(stdout: bytes) -> Iterator[Event]:
    """Yield every whole event; the output's middle may be missing."""
    for line in stdout.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def tail(*outputs: bytes) -> str:
    """Return the ends of outputs as text."""
    ends = (output[-TAIL:].decode(errors="replace").strip() for output in outputs)
    return "\n".join(end for end in ends if end)
