"""The wall clock of this process, moved as an administrator or NTP moves it.

``time.monotonic``, which deadlines and the event loop read, does not move, as on a real machine.
"""

from __future__ import annotations

import time

_real = time.time
_ahead_s = 0.0


def jump(seconds: float) -> None:
    """Move the clock, forwards or back, until ``restore``."""
    global _ahead_s
    _ahead_s += seconds
    vars(time)["time"] = _moved


def restore() -> None:
    """Set the clock right."""
    global _ahead_s
    _ahead_s = 0.0
    vars(time)["time"] = _real


def _moved() -> float:
    return _real() + _ahead_s
