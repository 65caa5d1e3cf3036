"""Send HTTP requests to one engine server and classify what goes wrong.

Invariant: a request returns the body of an answer with status 200, or raises EngineError. Nobody
else reads a status code or an exception of the HTTP library.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter

from conf.sections.section import ENGINE_KEY
from runners.engines.contract import EngineError

RETRYABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504, 529})
PUSHED_BACK_STATUS = frozenset({429, 503, 529})
"""Statuses that say: too much to do, come later; 529 is Anthropic's."""
TOO_LARGE_STATUS = 413
_TOO_LONG = re.compile(
    r"maximum (?:context|model) length|context_length_exceeded|prompt is too long|input is too long"
    r"|exceeds? (?:the |model |model's )?(?:available |maximum )?context (?:size|window)"
    r"|exceeds? (?:the |model |model's )?(?:available |maximum )?context (?:limit|length)"
    r"|context length is only|longer than the model's context|exceed_context_size"
    r"|exceeds the maximum number of tokens",
    re.IGNORECASE,
)
"""Words by which servers say that a prompt exceeds the context: OpenAI, vLLM, SGLang, llama.cpp,
Anthropic, Gemini. Their status is 400, llama.cpp's was 500 before September 2025.
"""
FIXES = {
    401: "Set {key} in the environment to a key that it accepts",
    403: "Set {key} in the environment to a key that may use this model",
    404: "If another kind of server is at this address, choose it: engine=sglang, engine=vllm, or "
    "for an API of texts engine=openai or engine=anthropic",
}
"""Fixes by status, where the own message of an answer seldom says it."""
_DROPPED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)


Body = bytes | tuple[bytes, ...]
"""Of a request: whole, or in parts that are sent one after the other without being joined."""


class Connection(Protocol):
    """The way of a client's requests to its server."""

    async def request(
        self,
        method: str,
        path: str,
        body: Body | None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the body of the answer; raises EngineError. It has no deadline of its own."""
        ...

    async def close(self) -> None:
        """Close the sockets; another request opens them again."""
        ...


def make_bearer(key: str) -> dict[str, str]:
    """Return the header by which SGLang, vLLM and OpenAI take a key."""
    return {"Authorization": f"Bearer {key}"}


class _Parts(aiohttp.Payload):
    """A body in parts: aiohttp would copy a whole one once more, behind the headers."""

    def __init__(self, parts: tuple[bytes, ...]) -> None:
        super().__init__(parts)
        self._size = sum(map(len, parts))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """See ``aiohttp.Payload``."""
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """See ``aiohttp.Payload``."""
        for part in self._value:
            await writer.write(part)


class HttpConnection:
    """A pool of connections to ``http://host:port`` or ``unix:/path/to/socket``.

    The key is read from the environment, sent to this address only (no redirect is followed), and
    left out of every body that is returned.
    """

    def __init__(
        self,
        url: str,
        *,
        key_headers: Callable[[str], dict[str, str]] = make_bearer,
        key_variable: str = ENGINE_KEY,
    ) -> None:
        """Remember the address; nothing is opened before the first request.

        ``key_headers`` returns the headers that carry a key; ``key_variable``: the variable of the
        environment that holds it.
        """
        self._key_headers = key_headers
        self._key_variable = key_variable
        self._key = ""
        self._name = url
        self._socket = url.removeprefix("unix:") if url.startswith("unix:") else None
        self._url = "http://engine" if self._socket else url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: Body | None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """See ``Connection.request``."""
        if self._session is None:
            self._session = self._open()
        headers = {"Content-Type": "application/json", **(headers or {})}
        data = _Parts(body) if isinstance(body, tuple) else body
        try:
            async with self._session.request(
                method, self._url + path, data=data, headers=headers, allow_redirects=False
            ) as response:
                raw = self._hide_key(await response.read())
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError):  # an OSError too: the caller's deadline
                raise
            raise lost_connection_error(self._name, path, error) from error
        if response.status != 200:
            raise status_error(
                self._name, path, response.status, raw, response.headers, self._key_variable
            )
        return raw

    def _hide_key(self, raw: bytes) -> bytes:
        """Return a body without the key, which some servers repeat: bodies are stored and shown."""
        key = self._key.encode()
        for written in (key, orjson.dumps(self._key)[1:-1], key.replace(b"/", rb"\/")):
            raw = raw.replace(written, f"${self._key_variable}".encode()) if written else raw
        return raw

    async def close(self) -> None:
        """See ``Connection.close``."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._socket:
            connector = aiohttp.UnixConnector(self._socket, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0)
        # trust_env=False: proxies of the environment are for the outside world, not for an engine.
        # timeout: the caller has a deadline for each call; aiohttp's own default is five minutes.
        self._key = read_key(self._key_variable)
        return aiohttp.ClientSession(
            headers=self._key_headers(self._key) if self._key else None,
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # to look for cookies takes as long as to send
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )


def read_key(variable: str) -> str:
    """Return the key from the environment, "" if there is none; raises EngineError, without it."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise EngineError(
            f"{variable} holds more than a key (a space, a line break, a special character): set "
            "it to the key alone",
            status=401,
        )
    return key


class EngineClient:
    """The part that the clients of all engines share: requests with a deadline."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        """The engine's address; names it in errors."""
        self.connection = connection

    async def request_bytes(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the body of the answer; raises EngineError, also after ``deadline_s``."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self.connection.request(method, path, body, headers)
        except TimeoutError as error:
            raise late_error(self.name, path, deadline_s) from error

    async def request_json(
        self,
        path: str,
        body: Mapping[str, Any] | Body | None = None,
        *,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """POST ``body``, a value or its JSON, or GET without one, and return the JSON object that
        answers it.

        Raises EngineError, also for an answer that is no JSON object.
        """
        data = _write_json(body) if isinstance(body, Mapping) else body
        method = "GET" if body is None else "POST"
        raw = await self.request_bytes(method, path, data, deadline_s=deadline_s, headers=headers)
        try:
            answer = orjson.loads(raw)
            if not isinstance(answer, dict):
                raise TypeError("not a JSON object")
        except (orjson.JSONDecodeError, TypeError) as error:
            raise unreadable_error(self.name, path, error) from error
        return answer

    async def close(self) -> None:
        """Close the client's connections (not the engine)."""
        await self.connection.close()


def _write_json(body: Mapping[str, Any]) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)  # token ids may be an array


def status_error(
    name: str,
    path: str,
    status: int,
    raw: bytes,
    headers: Mapping[str, str],
    key_variable: str = ENGINE_KEY,
) -> EngineError:
    """Classify an answer with a status other than 200; ``raw`` is its body."""
    message = f"engine {name} {path}: HTTP {status}: {_read_message(raw)}"
    if status in FIXES:
        message = f"{message.rstrip('.')}. {FIXES[status].format(key=key_variable)}"
    if 300 <= status < 400:
        message += " (a redirect, which is not followed: set engine.url to the final address)"
    too_long = status == TOO_LARGE_STATUS or (
        status in (400, 422, 500) and _TOO_LONG.search(raw.decode("utf-8", "replace")) is not None
    )
    return EngineError(
        message,
        status=status,
        retryable=status in RETRYABLE_STATUS and not too_long,
        too_long=too_long,
        pushed_back=status in PUSHED_BACK_STATUS,
        retry_after_s=_read_retry_after(headers),
    )


def lost_connection_error(name: str, path: str, cause: Exception) -> EngineError:
    """Classify a connection that could not be made, or ended before the answer did."""
    connecting = isinstance(cause, aiohttp.ClientConnectorError)
    return EngineError(
        f"engine {name} {path}: unreachable: {str(cause) or type(cause).__name__}",
        retryable=True,
        # ClientConnectorError is a ClientOSError as well, but nothing was sent
        dropped=isinstance(cause, _DROPPED) and not connecting,
        unreachable=connecting,
    )


def late_error(name: str, path: str, deadline_s: float) -> EngineError:
    """Return the error for an answer that did not come in time."""
    return EngineError(f"engine {name} {path}: no answer within {deadline_s:g} s", retryable=True)


def unreadable_error(name: str, path: str, cause: Exception) -> EngineError:
    """Return the error for an answer with status 200 that cannot be parsed; it is not retried."""
    return EngineError(f"engine {name} {path}: unreadable answer: {cause}", status=200)


def _read_retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that ``Retry-After`` asks for (RFC 9110, 10.2.3: a number or a date)."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(0.0, (until.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def _read_message(raw: bytes) -> str:
    """Return the message of an error body.

    Servers and routers differ: SGLang's ``{"error": {"message"}}``, FastAPI's ``{"detail"}``,
    ``{"message"}``, or plain text.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace").strip()[:500]
    if isinstance(body, dict):
        error = body.get("error")
        if isinstance(error, dict) and "message" in error:
            return str(error["message"])
        for key in ("message", "detail", "error_message"):
            if key in body:
                return str(body[key])
    return str(body)[:500]
