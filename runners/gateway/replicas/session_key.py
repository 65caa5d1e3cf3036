"""The key of a session, with the number of the gateway process that serves it.

The number only says where to look. The rest is a secret of 256 bits which that process alone knows:
a key with another number, or a made-up one, opens nothing anywhere.
"""

from __future__ import annotations

import re
import secrets

_KEY = re.compile(r"([0-9]{2})-[A-Za-z0-9_-]{43}")


def make_replica_key(replica: int) -> str:
    """Return a new key of a session at the process of that number."""
    return f"{replica:02d}-{secrets.token_urlsafe(32)}"


def replica_of(key: str) -> int | None:
    """Return the number in a key, None if the key has no such form."""
    found = _KEY.fullmatch(key)
    return int(found[1]) if found else None
