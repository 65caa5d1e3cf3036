"""Records the requests of one session as they came, with secrets out and within bounds.

Invariants: what is kept of a body has no more than ``BODY`` bytes, and of all bodies of a session
``SESSION``, whatever its sandbox sends; a secret is taken out before a body is cut, so that no part
of one is left at the cut. Of a request that waits for its turn no more than that is in memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runners.records.record import WireExchange
from runners.records.text import clean_text, dumps, shorten

MB = 1 << 20
BODY, SESSION = 4 * MB, 256 * MB
"""Bytes, uncompressed."""
HEADERS, HEADER_CHARS = 100, 2000
HIDDEN = "***"
_SECRET = re.compile(
    r"auth|key|token|secret|cookie|passw|credential|signature|session-id", re.IGNORECASE
)
"""Names of headers, and of variables of the environment, whose values are hidden."""
_SHORTEST = 8
"""Characters of a variable's value that is taken for a secret: "1" and "true" are none."""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request as the server has read it."""

    path: str
    headers: Sequence[tuple[str, str]]
    body: Sequence[bytes]
    """In the pieces in which it came."""
    cut: int = 0
    """Bytes after them that are not held."""

    @property
    def size(self) -> int:
        """Length of the whole body."""
        return sum(map(len, self.body)) + self.cut


def find_environment_secrets(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the values of variables whose names say that they are secret."""
    return [
        value
        for name, value in environment.items()
        if _SECRET.search(name) and len(value) >= _SHORTEST and "/" not in value[:1]
    ]


class WireRecorder:
    """The recordings of one session; ``record`` is called on one thread."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = _write_forms(secrets)
        self._left = SESSION

    def bound(self, request: WireRequest) -> WireRequest:
        """Return a request with no more of its body than ``record`` reads."""
        longest = max(map(len, self._find_secrets(request)), default=0)
        begin = _begin(request.body, min(BODY, self._left) + longest)
        return WireRequest(request.path, request.headers, [begin], request.size - len(begin))

    def record(self, request: WireRequest, answer: Mapping[str, Any]) -> WireExchange:
        """Return what is kept of a request and its answer."""
        headers, secrets = request.headers[:HEADERS], self._find_secrets(request)
        said = dumps(answer).encode()
        return WireExchange(
            path=_hide(request.path.encode("utf-8", "replace"), secrets).decode("utf-8", "replace"),
            headers=[_show(name, value, secrets) for name, value in headers],
            request=self._keep(request.body, request.size, secrets),
            request_bytes=request.size,
            answer=self._keep([said], len(said), secrets),
            answer_bytes=len(said),
        )

    def _find_secrets(self, request: WireRequest) -> list[bytes]:
        """Return what is hidden in a request and its answer."""
        # No more: each is looked for in all of the body, on the thread that stores all turns.
        headers = request.headers[:HEADERS]
        keys = [value for name, value in headers if _SECRET.search(name)]
        own = _write_forms(part for value in keys for part in (value, value.rpartition(" ")[2]))
        return [*own, *self._secrets]

    def _keep(self, pieces: Sequence[bytes], size: int, secrets: Sequence[bytes]) -> bytes:
        """Return the beginning of a body without secrets, and count it."""
        limit, longest = min(BODY, self._left), max(map(len, secrets), default=0)
        begin = _begin(pieces, limit + longest)
        kept = _hide(begin, secrets)
        if len(begin) < size:
            # Its end may be a part of a secret, and what was hidden before moved it to the front.
            kept = kept[: max(0, len(kept) - longest)]
        kept = kept[:limit]
        self._left -= len(kept)
        return kept


def _begin(pieces: Sequence[bytes], limit: int) -> bytes:
    """Return the first bytes of a body without joining all of it."""
    found, size = [], 0
    for piece in pieces:
        found.append(piece[: limit - size])
        size += len(found[-1])
        if size == limit:
            break
    return b"".join(found)


def _show(name: str, value: str, secrets: Sequence[bytes]) -> tuple[str, str]:
    if _SECRET.search(name):
        return clean_text(shorten(name, HEADER_CHARS)), HIDDEN
    shown = _hide(clean_text(value).encode(), secrets).decode()
    return clean_text(shorten(name, HEADER_CHARS)), shorten(shown, HEADER_CHARS)


def _hide(text: bytes, secrets: Sequence[bytes]) -> bytes:
    for secret in secrets:
        text = text.replace(secret, HIDDEN.encode())
    return text


def _write_forms(secrets: Iterable[str]) -> list[bytes]:
    """Return secrets as they stand in a body, in JSON's escapes too, the longest first: one may be
    a part of another.
    """
    known = {secret for secret in secrets if len(secret) >= _SHORTEST}
    plain = {secret.encode("utf-8", "replace") for secret in known}
    return sorted(plain | {dumps(secret)[1:-1].encode() for secret in known}, key=len)[::-1]
