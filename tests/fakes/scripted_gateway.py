"""A scripted gateway: Anthropic Messages over HTTP, streamed, with answers from a list.

It serves on a TCP port, and on listening sockets that sandboxes send to its control socket. Each
request takes the next step of the script, whatever it contains.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

Block = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An assistant message."""

    content: list[Block]
    stop_reason: str = "tool_use"
    prompt_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """An error envelope with an HTTP status."""

    status: int
    kind: str = "api_error"
    message: str = "scripted"


@dataclass(frozen=True, slots=True)
class Cut:
    """A stream that ends in the middle of a message."""


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """A stream that ends in an error event."""

    kind: str = "overloaded_error"
    message: str = "scripted"


Step = Reply | Failure | Cut | ErrorEvent


def say(text: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": text}


def use(name: str, call_id: str = "call", /, **arguments: object) -> Block:
    """Return a tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def stream_of(reply: Reply) -> list[dict[str, Any]]:
    """Return the events of a streamed message; text and tool input come in small pieces."""
    message: dict[str, Any] = {
        "id": "msg", "type": "message", "role": "assistant", "model": "policy", "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": 0},
    }  # fmt: skip
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(reply.content):
        if block["type"] == "text":
            start, delta, whole = {**block, "text": ""}, "text", block["text"]
        else:
            start, delta, whole = {**block, "input": {}}, "partial_json", json.dumps(block["input"])
        kind = "text_delta" if delta == "text" else "input_json_delta"
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "ping"})
        for at in range(0, len(whole), 7):
            piece = {"type": kind, delta: whole[at : at + 7]}
            events.append({"type": "content_block_delta", "index": index, "delta": piece})
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": reply.stop_reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}})
    events.append({"type": "message_stop"})
    return events


@dataclass(slots=True)
class ScriptedGateway:
    """The running fake; ``requests`` grows as they come."""

    control: Path
    script: list[Step]
    keys: set[str]
    """Session keys whose sandboxes are served."""
    choose: Callable[[dict[str, Any]], Step] | None = None
    """Answers by what is asked instead of in turn, for several agents at once."""
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    _sites: list[web.SockSite] = field(default_factory=list)
    _runner: web.AppRunner | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Take the next step of the script."""
        self.requests.append(await request.json())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        step = self.choose(self.requests[-1]) if self.choose else self.script.pop(0)
        if isinstance(step, Failure):
            error = {"type": step.kind, "message": step.message}
            return web.json_response({"type": "error", "error": error}, status=step.status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events = stream_of(step if isinstance(step, Reply) else Reply([say("half a")]))
        if isinstance(step, Cut):
            events = events[:-3]
        if isinstance(step, ErrorEvent):
            error = {"type": step.kind, "message": step.message}
            events = [*events[:-3], {"type": "error", "error": error}]
        for event in events:
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            for half in (data[: len(data) // 2], data[len(data) // 2 :]):  # frames split anywhere
                await response.write(half)
        if isinstance(step, Cut):
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write_eof()
        return response

    async def serve_sandbox(self, connection: socket.socket) -> None:
        """Speak the control protocol: a JSON line, a listening socket, ``1`` once it is served."""
        loop = asyncio.get_running_loop()
        with connection:
            hello, handles = await loop.run_in_executor(None, _receive_listener, connection)
            if hello.get("session_key") not in self.keys:
                for handle in handles:
                    socket.socket(fileno=handle).close()
                return
            assert self._runner is not None
            site = web.SockSite(self._runner, socket.socket(fileno=handles[0]))
            await site.start()
            self._sites.append(site)
            await loop.sock_sendall(connection, b"1")


def _receive_listener(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    connection.setblocking(True)
    data, handles = b"", array.array("i")
    while not handles:
        piece, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(4))
        if not piece:
            break
        data += piece
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                handles.frombytes(content)
    connection.setblocking(False)
    return json.loads(data.partition(b"\n")[0] or b"{}"), list(handles)


@asynccontextmanager
async def scripted_gateway(
    directory: Path, script: Sequence[Step] = (), keys: Sequence[str] = ("key",)
) -> AsyncIterator[ScriptedGateway]:
    """Serve a script; the control socket is made in ``directory``."""
    gateway = ScriptedGateway(directory / "control", list(script), set(keys))
    application = web.Application()
    application.router.add_post("/v1/messages", gateway.answer)
    runner = web.AppRunner(application)
    gateway._runner = runner
    await runner.setup()
    tcp = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, tcp).start()
    gateway.url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
    control = socket.socket(socket.AF_UNIX)
    control.bind(str(gateway.control))
    control.listen(64)
    control.setblocking(False)
    serving: set[asyncio.Task[None]] = set()

    async def accept() -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(control)
            serving.add(asyncio.ensure_future(gateway.serve_sandbox(connection)))

    accepting = asyncio.ensure_future(accept())
    try:
        yield gateway
    finally:
        accepting.cancel()
        await asyncio.gather(accepting, *serving, return_exceptions=True)
        control.close()
        await runner.cleanup()
