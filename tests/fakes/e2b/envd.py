"""envd, the service inside E2B's machines: processes over Connect, files over HTTP.

Streams are Connect's: one flag byte, four bytes of length, JSON; the last frame has the flag 2.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shlex
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from aiohttp import web

from tests.fakes.e2b.box import USERS, Box, Process
from tests.fakes.e2b.faults import Faults


class Service(Protocol):
    """The part of the server that envd uses."""

    faults: Faults
    keeps_deadlines: bool


SERVER: web.AppKey[Service] = web.AppKey("server", Service)
CHUNK = 1 << 16
Send = Callable[[int, dict[str, Any]], Any]


def get_user(request: web.Request) -> str:
    """Return the user of a call, from HTTP basic authentication or the query."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme == "Basic":
        return base64.b64decode(token).decode().partition(":")[0]
    return request.query.get("username", "user")


def error_response(status: int, code: str, message: str) -> web.Response:
    """Return an error in envd's format."""
    return web.json_response({"code": code, "message": message}, status=status)


async def unary(box: Box, method: str, body: dict[str, Any]) -> web.Response:
    """Answer a unary call of the process service."""
    if method == "List":
        running = [
            {"config": {"cmd": process.argv[0], "args": process.argv[1:]}, "pid": process.pid}
            for process in box.processes()
        ]
        return web.json_response({"processes": running})
    if method == "SendSignal":
        number = {"SIGNAL_SIGKILL": 9, "SIGNAL_SIGTERM": 15}[body["signal"]]
        if not box.kill(body["process"]["pid"], number):
            return error_response(404, "not_found", "no such process")
        return web.json_response({})
    return error_response(501, "unimplemented", method)


async def start(box: Box, request: web.Request) -> web.StreamResponse:
    """Run a program and stream its output; the program goes on if the client disconnects."""
    frame = await request.content.readexactly(5)
    request_body = json.loads(await request.content.readexactly(int.from_bytes(frame[1:], "big")))
    config = request_body["process"]
    response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
    await response.prepare(request)

    async def send(flag: int, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        await response.write(bytes([flag]) + len(data).to_bytes(4, "big") + data)

    async with _run(box, config, get_user(request)) as (process, outputs):
        await send(0, {"event": {"start": {"pid": process.pid}}})
        if request.app[SERVER].faults.match(request, "cut"):
            assert request.transport is not None
            request.transport.abort()
            return response
        limit_ms = request.headers.get("connect-timeout-ms")
        keeps = request.app[SERVER].keeps_deadlines
        try:
            limit_s = int(limit_ms) / 1000 if keeps and limit_ms else None
            async with asyncio.timeout(limit_s):
                await asyncio.gather(
                    *(_forward(send, name, output) for name, output in outputs.items())
                )
                await process.ended.wait()
        except TimeoutError:
            box.kill(process.pid, 9)
            text = "context deadline exceeded"
            await send(2, {"error": {"code": "deadline_exceeded", "message": text}})
            return response
        await send(0, {"event": {"end": _end(process.status)}})
        await send(2, {})
    return response


def _end(status: int) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return {"exitCode": -1, "exited": False, "status": f"signal: {-code}", "error": "signal"}
    return {"exitCode": code, "exited": True, "status": f"exit status {code}"}


@contextlib.asynccontextmanager
async def _run(
    box: Box, config: dict[str, Any], user: str
) -> AsyncIterator[tuple[Process, dict[str, asyncio.StreamReader]]]:
    """Start a program; yield it and readers of its output."""
    readers: dict[str, asyncio.StreamReader] = {}
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        nothing = os.open(os.devnull, os.O_RDONLY)
        theirs.callback(os.close, nothing)
        handles = [nothing]
        for name in ("stdout", "stderr"):
            reading, writing = os.pipe()
            theirs.callback(os.close, writing)
            handles.append(writing)
            readers[name] = reader = asyncio.StreamReader()
            pipe = ours.enter_context(os.fdopen(reading, "rb"))
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda reader=reader: asyncio.StreamReaderProtocol(reader),  # type: ignore[misc]
                pipe,
            )
            ours.callback(transport.close)
        argv = [config["cmd"], *config.get("args", [])]
        process = await box.start(
            argv, handles, user=user, env=config.get("envs", {}), cwd=config.get("cwd", "")
        )
        theirs.close()
        yield process, readers


async def _forward(send: Send, name: str, output: asyncio.StreamReader) -> None:
    while chunk := await output.read(CHUNK):
        text = base64.b64encode(chunk).decode()
        await send(0, {"event": {"data": {name: text}}})


async def write(box: Box, request: web.Request) -> web.Response:
    """Write the files of a request, octet-stream or multipart, as they arrive."""
    written = []
    if request.content_type == "application/octet-stream":
        written.append(
            await _write(box, request, request.query["path"], request.content.iter_any())
        )
    else:
        async for part in await request.multipart():
            assert not isinstance(part, type(None))
            path = request.query.get("path") or part.filename  # type: ignore[union-attr]
            assert path is not None
            chunks = _chunks(part)
            written.append(await _write(box, request, path, chunks))
    return web.json_response(written)


async def _chunks(part: Any) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(CHUNK):
        yield chunk


async def _write(
    box: Box, request: web.Request, path: str, chunks: AsyncIterator[bytes]
) -> dict[str, str]:
    user = get_user(request)
    quoted = shlex.quote(path)
    script = f"mkdir -p $(dirname {quoted}) && cat > {quoted}"
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        process = await box.start(
            ["sh", "-c", script], [reading, nothing, nothing], user=user, env={}, cwd=USERS[user][1]
        )
    finally:
        os.close(reading)
        os.close(nothing)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb") as pipe:
        async for chunk in chunks:
            await asyncio.to_thread(pipe.write, chunk)
    await process.ended.wait()
    return {"path": path, "name": path.rpartition("/")[2], "type": "file"}


async def read(box: Box, request: web.Request) -> web.StreamResponse:
    """Stream a file."""
    config = {"cmd": "cat", "args": ["--", request.query["path"]]}
    async with _run(box, config, get_user(request)) as (process, outputs):
        first = await outputs["stdout"].read(CHUNK)
        if not first:
            await process.ended.wait()
            if process.status:
                return error_response(404, "not_found", f"{request.query['path']} does not exist")
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        await response.prepare(request)
        if request.app[SERVER].faults.match(request, "cut"):
            assert request.transport is not None
            request.transport.abort()
            return response
        while first:
            await response.write(first)
            first = await outputs["stdout"].read(CHUNK)
        await response.write_eof()
    return response
