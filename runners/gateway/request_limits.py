"""Bounds that are checked before any work is done: the size of a body, the shape of its JSON, the
requests, bytes and connections that a session has at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from conf.sections.gateway import GatewayLimitsConfig
from runners.gateway.refusal import OverLimit, RefusalKind

MB = 1 << 20

RETRY_AFTER_S = 1
"""Header of a refusal for too much at once: a request takes a second or more."""

LINES = 4000
"""Of a session, a second and at once: 10 ms of the loop."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
"""A JSON string. Possessive, so that it takes linear time on anything."""


def check_body_size(size: int, limits: GatewayLimitsConfig) -> None:
    """Raise OverLimit if a body of ``size`` bytes exceeds the limit."""
    if size > limits.body_mb * MB:
        raise OverLimit(
            RefusalKind.TOO_LARGE, f"the request body exceeds {limits.body_mb * MB} bytes"
        )


SHALLOW = 16
"""Brackets of a text that needs no exact measure of its depth."""


@dataclass(frozen=True, slots=True)
class JsonShape:
    """The shape of a JSON text."""

    depth: int
    """Nesting of lists and objects."""
    values: int
    """Members of all its objects and lists, about: brackets that open, and commas."""

    def join(self, other: JsonShape) -> JsonShape:
        """Return the shape of two texts that stand one after the other."""
        return JsonShape(max(self.depth, other.depth), self.values + other.values)

    def exceeds(self, limits: GatewayLimitsConfig) -> bool:
        """Return whether it is nested too deeply or holds too many values."""
        return self.depth > limits.json_depth or self.values > limits.json_values


def measure_shape(text: bytes) -> JsonShape:
    """Return the shape of a JSON text, in linear time and without recursion: what stands outside of
    its strings is looked at. The text may be no JSON at all: its parser refuses that.
    """
    bare = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    opening = (bare == ord("[")) | (bare == ord("{"))
    closing = (bare == ord("]")) | (bare == ord("}"))
    depth = int(np.cumsum(opening.astype(np.int32) - closing, dtype=np.int32).max(initial=0))
    return JsonShape(depth, int(opening.sum()) + int((bare == ord(",")).sum()))


def bound_shape(text: bytes) -> JsonShape:
    """Return a shape that the text does not exceed, quickly: what stands in its strings counts too,
    except for the depth if there is much of it.
    """
    brackets = text.count(b"[") + text.count(b"{")
    depth = brackets if brackets <= SHALLOW else measure_shape(text).depth
    return JsonShape(depth, brackets + text.count(b","))


def check_json_shape(body: bytes, limits: GatewayLimitsConfig) -> None:
    """Raise OverLimit if a JSON text is nested too deeply or holds too many values."""
    if not bound_shape(body).exceeds(limits):
        return  # the rest counts more exactly: it leaves out those in strings
    shape = measure_shape(body)
    if shape.depth > limits.json_depth:
        raise OverLimit(
            RefusalKind.INVALID,
            f"the body's JSON is nested {shape.depth} deep: "
            f"at most {limits.json_depth} is accepted",
        )
    if shape.values > limits.json_values:
        raise OverLimit(
            RefusalKind.INVALID,
            f"the body's JSON has {shape.values} values: at most {limits.json_values} are accepted",
        )


class LineBudget:
    """Lines that a client may send: those of headers, and two for each chunk of a body.

    Each costs the parser some microseconds of the loop, and a body in chunks of one byte has six
    bytes to a line. The clients that agents use send a few dozen with a request.
    """

    def __init__(self, limit: int) -> None:
        """``limit``: lines a second, and at once."""
        self._limit = limit
        self._left, self._at = float(limit), time.monotonic()

    def take(self, data: bytes) -> bool:
        """Return whether the lines that arrived may be read; then they are counted."""
        now = time.monotonic()
        self._left = min(self._limit, self._left + self._limit * (now - self._at))
        self._at = now
        # CR alone is found ten times as fast as CR LF, and JSON has none unless as white space: the
        # last one, if any, is searched from the end, which is ten times as fast as to count
        lines = data.count(b"\r", 0, data.rfind(b"\r") + 1)
        if lines > self._left:
            return False
        self._left -= lines
        return True


class SessionBudget:
    """The requests of one session that are being answered, the bytes of their bodies, and the
    session's open connections.
    """

    def __init__(self, limits: GatewayLimitsConfig) -> None:
        self.over_limit = 0
        """Requests refused, and connections ended, for asking more than a session may have."""
        self.lines = LineBudget(LINES)
        """Of all its connections together."""
        self._limits = limits
        self._connections = 0
        self._requests = 0
        self._bytes = 0

    @contextmanager
    def request(self) -> Iterator[RequestBudget]:
        """Count a request while the block runs; raises OverLimit if there are too many."""
        if self._requests >= self._limits.requests:
            raise OverLimit(
                RefusalKind.RATE_LIMITED,
                f"this session has {self._requests} requests in flight: "
                f"at most {self._limits.requests} are answered at once",
                retry_after_s=RETRY_AFTER_S,
            )
        self._requests += 1
        reserved = RequestBudget(self)
        try:
            yield reserved
        finally:
            self._requests -= 1
            self._bytes -= reserved.size

    def add_connection(self) -> None:
        """Count a connection; raises OverLimit, and counts nothing, if there are too many."""
        if self._connections >= self._limits.connections:
            raise OverLimit(
                RefusalKind.RATE_LIMITED,
                f"this session has {self._connections} connections: "
                f"at most {self._limits.connections} are served at once",
                retry_after_s=RETRY_AFTER_S,
            )
        self._connections += 1

    def remove_connection(self) -> None:
        """Uncount a connection that is closed."""
        self._connections -= 1

    def add_bytes(self, size: int) -> None:
        """Count bytes of a body; raises OverLimit, and counts nothing, if there are too many."""
        if self._bytes + size > self._limits.requests_mb * MB:
            raise OverLimit(
                RefusalKind.RATE_LIMITED,
                f"the requests of this session that are in flight exceed "
                f"{self._limits.requests_mb} MB together",
                retry_after_s=RETRY_AFTER_S,
            )
        self._bytes += size


class RequestBudget:
    """The part of a session's budget that one request holds."""

    def __init__(self, session: SessionBudget) -> None:
        self._session = session
        self.size = 0
        """Bytes counted for it."""

    def grow(self, size: int) -> None:
        """Count until ``size`` bytes in all are counted for this request; raises OverLimit."""
        if size > self.size:
            self._session.add_bytes(size - self.size)
            self.size = size
