"""Faults of the E2B service that tests plan."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import Literal

from aiohttp import web

What = Literal["status", "drop", "lose", "cut", "slow"]
"""status: an error is answered; drop: the connection is closed before anything is done, lose: after
it is done, cut: in the middle of the answer; slow: everything happens ``seconds`` later.
"""


@dataclass
class Fault:
    """A fault of the next ``times`` requests that match."""

    route: str
    """Glob of method and path, e.g. ``POST */Start``."""
    what: What
    times: int = 1
    status: int = 429
    message: str = "injected"
    seconds: float = 0.0
    retry_after_s: int | None = None
    """Seconds in the ``Retry-After`` header of a ``status``."""


@dataclass
class Faults:
    """The planned faults."""

    planned: list[Fault] = field(default_factory=list)

    def match(self, request: web.Request, *kinds: What) -> Fault | None:
        """Return the planned fault of these kinds for a request, if any, and count it."""
        for fault in self.planned:
            matches = fnmatch.fnmatch(f"{request.method} {request.path}", fault.route)
            if fault.what in kinds and matches and fault.times > 0:
                fault.times -= 1
                return fault
        return None
