"""Client of the Anthropic Messages API over HTTP/1.1, streamed; it runs inside the sandbox.

A campaign starts the agent thousands of times on few cores, so its imports are measured: see the
README of ``harnesses/``. ``json`` and ``socket`` are worth their 10 ms, ``http.client`` is not
worth its further 20 ms (it imports ``ssl`` and ``email``). Hence the small client below. It knows
only what a gateway sends: one kept-alive connection, bodies chunked or with a length, server-sent
events.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import suppress

TYPE_CHECKING = False  # as ``typing.TYPE_CHECKING``, which would cost an import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

RETRIES, BACKOFF_S = 3, 0.25
SILENCE_S = 300
"""The gateway pings every few seconds, so a peer that is silent for so long is dead."""
ENGINE_DOWN = (502, 503, 504, 529)
"""HTTP statuses by which the gateway reports that the engine does not answer."""


class TurnError(Exception):
    """A failed turn; ``status`` is the HTTP status, 0 when there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class GatewayConnection:
    """HTTP/1.1 on one kept-alive connection; a body is read to its end before the next request."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self.host, _, path = rest.partition("/")
        name, _, port = self.host.partition(":")
        if scheme != "http" or not name:
            raise TurnError(0, f"ANTHROPIC_BASE_URL must be http://host[:port], not {url!r}")
        self.address, self.prefix = (name, int(port or 80)), f"/{path}".rstrip("/")
        self.socket: socket.socket | None = None

    def post(self, path: str, headers: str, body: bytes) -> tuple[int, Iterator[bytes]]:
        """Send a request; return the status and the body in pieces; raises OSError, ValueError."""
        if self.socket is None:
            # Not create_connection: getaddrinfo imports the idna codec, which takes 4 ms.
            self.socket = socket.socket()
            self.reader = self.socket.makefile("rb")
            self.socket.settimeout(SILENCE_S)
            self.socket.connect(self.address)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = f"POST {self.prefix}{path} HTTP/1.1\r\nhost: {self.host}\r\n"
        self.socket.sendall(f"{start}{headers}content-length: {len(body)}\r\n\r\n".encode() + body)
        status, fields = int(self._read_line().split()[1]), {}
        while line := self._read_line():
            name, _, value = line.lower().partition(b":")
            fields[name] = value.strip()
        return status, self._read_body(fields)

    def close(self) -> None:
        """Drop the connection; the next request opens another."""
        if self.socket is not None:
            self.reader.close()
            self.socket.close()
            self.socket = None

    def _read_body(self, fields: dict[bytes, bytes]) -> Iterator[bytes]:
        if fields.get(b"transfer-encoding") == b"chunked":
            while size := int(self._read_line().partition(b";")[0], 16):  # after ";": extensions
                yield self._read(size)
                self._read_line()  # a chunk ends with an empty line of its own
            while self._read_line():
                pass  # trailers
        else:
            yield self._read(int(fields[b"content-length"]))
        if fields.get(b"connection") == b"close":
            self.close()

    def _read_line(self) -> bytes:
        line = self.reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the gateway closed the connection")
        return line.rstrip(b"\r\n")

    def _read(self, size: int) -> bytes:
        data = self.reader.read(size)
        if len(data) < size:
            raise ConnectionError("the gateway closed the connection")
        return data


def parse_events(pieces: Iterator[bytes]) -> Iterator[Any]:
    """Yield the JSON of each server-sent event.

    A piece may end anywhere, so a line is parsed once its end has come. The event's name is in its
    JSON too: the ``event:`` lines are not needed.
    """
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield json.loads(line[5:].decode())


def assemble_message(stream: Iterator[Any]) -> Any:
    """Return the message that a stream of events describes.

    Raises ConnectionError if the stream is cut, TurnError if it carries an error event.
    """
    message: dict[str, Any] = {}
    raw: dict[int, str] = {}
    complete = False
    for event in stream:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            message["content"].append(event["content_block"])
            raw[event["index"]] = ""
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            field = delta["type"].removesuffix("_delta")  # text, thinking, signature, input_json
            if field == "input_json":
                raw[event["index"]] += delta["partial_json"]
            else:
                block[field] = block.get(field, "") + delta[field]
        elif kind == "content_block_stop" and raw[event["index"]]:
            message["content"][event["index"]]["input"] = json.loads(raw[event["index"]])
        elif kind == "message_delta":
            message.update(event["delta"])
            message["usage"] = {**message["usage"], **event["usage"]}
        elif kind == "message_stop":
            complete = True
        elif kind == "error":
            error = event["error"]  # the status was 200 long before
            status = 400 if error["type"] == "invalid_request_error" else 529
            raise TurnError(status, error["message"])
    if not complete:
        raise ConnectionError("the stream ended before message_stop")
    return message


class Messages:
    """The Messages endpoint of one session."""

    def __init__(self, url: str, api_key: str, backoff_s: float = BACKOFF_S) -> None:
        self.backoff_s = backoff_s
        self.connection = GatewayConnection(url)
        self.headers = f"x-api-key: {api_key}\r\nanthropic-version: 2023-06-01\r\n"
        self.headers += "content-type: application/json\r\n"

    def create(self, body: dict[str, Any], hints: dict[str, str]) -> Any:
        """Return the next assistant message; a transient failure is retried. Raises TurnError.

        ``hints`` name the agent that asks and the class of its request. They are sent as Claude
        Code's headers (``x-claude-code-…``), which the gateway reads for every agent.
        """
        data = json.dumps({**body, "stream": True}, separators=(",", ":")).encode()
        headers = self.headers
        for name, value in hints.items():
            headers += f"x-claude-code-{name}: {value}\r\n"
        for left in range(RETRIES, -1, -1):
            try:
                return self._send(data, headers)
            except TurnError as error:
                self.connection.close()
                if left == 0 or (400 <= error.status < 500 and error.status != 429):
                    raise
            except (OSError, ValueError, KeyError, IndexError) as error:  # cut off, or not HTTP
                self.connection.close()
                if left == 0:
                    raise TurnError(0, f"{type(error).__name__}: {error}") from None
            time.sleep(self.backoff_s * 2 ** (RETRIES - left))
        raise AssertionError("unreachable")

    def _send(self, data: bytes, headers: str) -> Any:
        status, pieces = self.connection.post("/v1/messages", headers, data)
        if status == 200:
            return assemble_message(parse_events(pieces))
        text = b"".join(pieces).decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError):  # a proxy's page is no error envelope
            text = json.loads(text)["error"]["message"]
        raise TurnError(status, f"{status}: {text[:400]}")
