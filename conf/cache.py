"""The user's cache directory. Everything in it can be made again, so it is safe to delete."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Return agentrl's folder in the user's cache directory (XDG Base Directory Specification)."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache"
    return base / "agentrl"
