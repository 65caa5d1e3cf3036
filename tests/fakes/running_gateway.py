"""A gateway inside a test, and clients that use it as agents do."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from conf.sections.gateway import GatewayLimitsConfig
from runners.gateway.client import GatewayAdmin
from runners.gateway.service import NO_HOOKS, GatewayHooks, serve_inline
from runners.gateway.settings import GatewaySettings
from runners.records.record import Turn
from runners.records.store.run_store import RunStore

TOOLS: list[dict[str, Any]] = [
    {
        "name": "Bash",
        "description": "Run a command.",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
]


LIMITS: dict[str, Any] = {
    "body_mb": 32,
    "json_depth": 100,
    "json_values": 200_000,
    "bytes_per_token": 16,
    "requests": 32,
    "requests_mb": 64,
    "connections": 64,
    "turns": 5000,
    "threads": 256,
    "history_pieces": 20_000,
    "history_mb": 256,
    "client_s": 60.0,
    "text_s": 60.0,
    "text_workers": 2,
    "text_mb": 1024,
}
"""``gateway.limits`` as in ``conf/config.yaml``, with fewer processes for a busy machine."""


def make_limits(**changes: Any) -> GatewayLimitsConfig:
    """Return limits of a session that differ from the defaults by ``changes``."""
    return GatewayLimitsConfig.model_validate({**LIMITS, **changes})


def settings_for(
    engine_url: str, tokenizer_dir: Path, run_dir: Path, **changes: Any
) -> GatewaySettings:
    """Return settings of a gateway that suits tests."""
    settings = {
        "run_dir": str(run_dir),
        "host": "127.0.0.1",
        "port": 0,
        "engine_url": engine_url,
        "tokenizer": str(tokenizer_dir),
        "renderer": "qwen3",
        "max_context_tokens": 400_000,
        "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_new_tokens": 4096},
        "ping_s": 0.05,
        "turn_s": 20.0,
        "limits": LIMITS,
        "engine_attempts": 1,
        "engine_calls_per_s": None,
        "adaptive": True,
        **changes,
    }
    return GatewaySettings.model_validate(settings)


@dataclass
class Gateway:
    """A running gateway and its run's directory."""

    url: str
    control: str
    admin: GatewayAdmin
    admin_key: str
    run_dir: Path
    http: aiohttp.ClientSession

    def turns(self, session_id: str) -> list[Turn]:
        """Return the stored turns, as another process reads them."""
        with RunStore.open(self.run_dir, read_only=True) as store:
            return store.turns(session_id)

    async def session(self, session_id: str = "s1", **wanted: Any) -> Agent:
        """Open a session and return an agent that holds its key."""
        made, key = await self.admin.create_session(session_id, **wanted)
        return Agent(self, made, key)


@asynccontextmanager
async def running_gateway(
    engine_url: str,
    tokenizer_dir: Path,
    run_dir: Path,
    *,
    make_run: bool = True,
    hooks: GatewayHooks = NO_HOOKS,
    text_processes: bool = False,
    **changes: Any,
) -> AsyncIterator[Gateway]:
    """Serve a gateway in this event loop, which by default works on long texts, too."""
    if make_run:
        RunStore.create(run_dir, {}).close()
    settings = settings_for(engine_url, tokenizer_dir, run_dir, **changes)
    async with (
        serve_inline(settings, replace(hooks, text_processes=text_processes)) as info,
        aiohttp.ClientSession() as http,
    ):
        admin = GatewayAdmin(info["url"], info["admin_key"])
        try:
            yield Gateway(info["url"], info["control"], admin, info["admin_key"], run_dir, http)
        finally:
            await admin.close()


@dataclass
class Agent:
    """A client of the Messages API with a session's key."""

    gateway: Gateway
    session_id: str
    key: str

    def body(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return a request body."""
        return {
            "model": "policy",
            "max_tokens": 1000,
            "system": "You fix bugs.",
            "tools": TOOLS,
            "messages": messages,
            **more,
        }

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, Any]]:
        """Post JSON (or bytes as they are); return the status and the JSON answered."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.gateway.http.post(
            self.gateway.url + path, data=data, headers={"x-api-key": self.key, **headers}
        ) as response:
            return response.status, orjson.loads(await response.read())

    async def ask(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Take a turn without streaming; fails unless it is answered."""
        status, answer = await self.post("/v1/messages", self.body(messages, **more))
        assert status == 200, answer
        return answer

    async def stream(self, body: Mapping[str, Any], **headers: str) -> list[dict[str, Any]]:
        """Take a turn by streaming; return the events."""
        async with self.gateway.http.post(
            self.gateway.url + "/v1/messages?beta=true",
            data=orjson.dumps({**body, "stream": True}),
            headers={"authorization": f"Bearer {self.key}", **headers},
        ) as response:
            assert response.status == 200, await response.read()
            assert response.content_type == "text/event-stream"
            return read_events(await response.read())

    async def finish(self) -> dict[str, Any]:
        """Finish the session."""
        return await self.gateway.admin.finish(self.session_id)

    async def stats(self) -> dict[str, Any]:
        """Return the session's counters."""
        return await self.gateway.admin.stats(self.session_id)


def read_events(stream: bytes) -> list[dict[str, Any]]:
    """Parse a whole event stream, and check its grammar."""
    assert stream.endswith(b"\n\n")
    found = []
    for frame in stream.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = frame.split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        found.append(event)
    return found


def assemble_message(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """Assemble a streamed message as a client does, and check the order of events."""
    kinds = [event["type"] for event in stream if event["type"] != "ping"]
    assert stream[0]["type"] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    message: dict[str, Any] = dict(stream[0]["message"])
    message["content"] = []
    partial = ""
    for event in stream[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(dict(event["content_block"]))
                partial = ""
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                block, delta = message["content"][-1], event["delta"]
                field = delta["type"].removesuffix("_delta")
                if field == "input_json":
                    partial += delta["partial_json"]
                else:
                    block[field] += delta[field]
            case "content_block_stop":
                if partial:
                    message["content"][-1]["input"] = orjson.loads(partial)
            case "message_delta":
                message |= event["delta"]
                message["usage"] = event["usage"]
    return message


def results(answer: Mapping[str, Any], *texts: str) -> dict[str, Any]:
    """Return the user message that answers every tool call of ``answer``."""
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    return {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call["id"], "content": text}
            for call, text in zip(calls, texts, strict=True)
        ],
    }


def echo(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the assistant message that a client sends back."""
    return {"role": "assistant", "content": answer["content"]}


def user(text: str) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": text}


def open_listener() -> socket.socket:
    """Return a socket as a sandbox's launcher opens it."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen(16)
    return sock


def deliver(path: str, key: str, handles: list[int], *, glued: bool = False) -> bytes:
    """Act as driver and launcher; return the gateway's answer, empty if it refuses."""
    line = json.dumps({"session_key": key}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(20)
        control.connect(path)
        try:
            if not glued:
                control.sendall(line)
            socket.send_fds(control, [line if glued else b"L"], handles)
            return control.recv(16)
        except ConnectionError:
            return b""


async def deliver_listener(control: str, key: str, *, glued: bool = False) -> str:
    """Deliver a listener for a session; return its URL."""
    with open_listener() as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        answer = await asyncio.to_thread(deliver, control, key, [sock.fileno()], glued=glued)
    assert answer == b"1"
    return url
