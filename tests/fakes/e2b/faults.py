"""What goes wrong at the E2B service, planned by tests."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import Literal

from aiohttp import web

What = Literal["status", "drop", "lose", "cut", "slow"]
"""status: an answer; drop: the connection goes before anything is done, lose: after it; cut: in the
middle of the answer; slow: ``seconds`` later.
"""


@dataclass
class Fault:
    """The next ``times`` requests that fit go wrong."""

    route: str
    """Glob of method and path, e.g. ``POST */Start``."""
    what: What
    times: int = 1
    status: int = 429
    message: str = "injected"
    seconds: float = 0.0
    retry_after_s: int | None = None
    """What a ``status`` tells to wait."""


@dataclass
class Faults:
    """What will go wrong."""

    planned: list[Fault] = field(default_factory=list)

    def strikes(self, request: web.Request, *kinds: What) -> Fault | None:
        """Return the fault of one of these kinds that a request meets, and count it."""
        for fault in self.planned:
            fits = fnmatch.fnmatch(f"{request.method} {request.path}", fault.route)
            if fault.what in kinds and fits and fault.times > 0:
                fault.times -= 1
                return fault
        return None
