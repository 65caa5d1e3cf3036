"""Check what a program passes, with the words of the commands."""

from __future__ import annotations

import os
from pathlib import Path

from conf.errors import ConfigError


def to_path(name: str, value: object) -> Path:
    """Return the path that an argument names; raises ConfigError for what is none."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}={value!r:.100} is no path: give it as a text or a pathlib.Path")
    return Path(value)
