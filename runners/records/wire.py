"""One request of an agent program and its answer, as they were on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireExchange:
    """A turn's request and answer, as far as they were recorded; secrets are ``***``."""

    path: str
    headers: list[tuple[str, str]]
    """Of the request, in their order."""
    request: bytes
    """Its body; fewer bytes than ``request_bytes`` if it was cut off."""
    request_bytes: int
    """Length of the whole body."""
    answer: bytes
    """JSON of the answer; a stream carries the same."""
    answer_bytes: int
