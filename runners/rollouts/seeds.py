"""One seed per named thing of a run: what is drawn for one thing moves no other."""

from __future__ import annotations

import hashlib


def seed_of(seed: int, name: str) -> int:
    """Return a 31-bit seed (what every engine accepts) for one named thing of a run."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
