"""One request to a gateway that may do anything: hang, cut, lie, or send without end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp

from agentrl.referee.conversation import GatewayFault

BODY_MB = 32
"""The largest answer that is read."""
SHOWN = 300
"""Characters of an answer that a message quotes."""


async def post(
    url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
) -> tuple[bytes, str]:
    """Return the body and the content type of an answer 200; raises GatewayFault."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as http,
            http.post(
                url,
                data=body,
                headers={
                    **headers,
                    "content-type": "application/json",
                    "accept-encoding": "identity",
                },
                allow_redirects=False,
            ) as response,
        ):
            chunks, size = [], 0
            async for chunk in response.content.iter_chunked(2**16):
                chunks.append(chunk)
                size += len(chunk)
                if size > BODY_MB * 2**20:
                    raise GatewayFault(f"an answer of over {BODY_MB} MB", response.status)
            whole = b"".join(chunks)
            if response.status != 200:
                raise GatewayFault(f"HTTP {response.status}: {quote(whole)}", response.status)
            return whole, response.content_type
    except TimeoutError as error:
        raise GatewayFault(f"no answer within {timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        name = type(error).__name__
        raise GatewayFault(f"the connection failed: {name}: {str(error)[:SHOWN]}") from error


def quote(body: bytes) -> str:
    """Return the beginning of a body as a text that a message can hold."""
    text = " ".join(body[: 4 * SHOWN].decode("utf-8", "replace").split())
    return text[:SHOWN] or "(nothing)"


def read_json(body: bytes | str) -> Any:
    """Return JSON; raises GatewayFault, as for nesting without end."""
    try:
        return json.loads(body)
    except (RecursionError, ValueError) as error:
        shown = quote(body if isinstance(body, bytes) else body.encode("utf-8", "replace"))
        raise GatewayFault(f"no JSON: {shown}", 200) from error


def read_events(body: bytes) -> Iterator[Any]:
    """Yield the JSON of each event of a stream, but for its ``[DONE]``; raises GatewayFault."""
    for frame in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [
            line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")
        ]
        if lines and (data := b"\n".join(lines)).strip() != b"[DONE]":
            yield read_json(data)
