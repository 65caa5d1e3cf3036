"""Find in the first bytes of a connection who serves it: the path and the key of its first request.

This decides only where a connection goes, and a wrong guess costs a detour (``forwarding.py``): so
it reads loosely what a server's parser reads strictly, and refuses nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from runners.gateway.http_answers import ADMIN, HEALTH, key_of

END = b"\r\n\r\n"
_BARE_LF = re.compile(rb"(?<!\r)\n")
KEY_HEADERS = (b"authorization", b"x-api-key")


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The part of a request's head that decides who serves it."""

    path: str = ""
    key: str = ""
    """"" if it brings none."""


def read_head(data: bytes) -> RequestHead | None:
    """Return the head of a connection's first request; None if more bytes are needed."""
    if data and not data[:1].isalpha():  # no HTTP (TLS, a blank line): whoever serves it will tell
        return RequestHead()
    head, complete, _ = data.partition(END)
    if not complete:
        # a bare line feed is no HTTP either, and this end might never come
        return RequestHead() if _BARE_LF.search(data) else None
    line, *fields = head.split(b"\r\n")
    words = line.split(b" ")
    target = words[1] if len(words) > 1 else b""
    headers: dict[str, str] = {}
    for field in fields:
        name, _, value = field.partition(b":")
        if name.lower() in KEY_HEADERS:  # of two, a server takes the first
            headers.setdefault(name.lower().decode(), value.strip(b" \t").decode("latin-1"))
    return RequestHead(target.partition(b"?")[0].decode("latin-1"), key_of(headers))


def is_for_all(path: str) -> bool:
    """Return whether the requests to a path are about all sessions: the admin's, and health."""
    return path.startswith(ADMIN) or (path.rstrip("/") or "/") in HEALTH
