"""What SGLang has beside ``/generate``, and a router in front of it, on loopback.

The router does what sglang-router 0.3.2 does: it builds ``/generate`` anew and so drops what it
does not know, it has no ``/abort_request`` and no ``/v1/loads``, and it lists its workers.
"""

from __future__ import annotations

import re
from typing import Any, Self

import aiohttp
import orjson
from aiohttp import web

from tests.fakes.scripted_engine import Completion, ScriptedEngine

LONG = 1000
KNOWN = ("rid", "input_ids", "sampling_params", "return_logprob")
"""What the router passes on, of what we send."""


class SglangServer(ScriptedEngine):
    """A scripted engine with SGLang's other endpoints."""

    context_length: int | None = 40960
    long_s = 1.0
    """How long a request of ``LONG`` tokens takes."""
    deaf = False
    """It takes no notice of aborts."""
    parsers: tuple[str, ...] = ("qwen25",)
    """What it has that reads Qwen's calls; the others find none."""
    reasoning_parsers: tuple[str, ...] = ("qwen3",)
    """What it has that reads Qwen's thoughts."""

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = orjson.loads(await request.read() or b"{}")
        match request.path:
            case "/generate" if body["sampling_params"]["max_new_tokens"] > LONG:
                self.script.appendleft(Completion("a<|im_end|>", delay_s=self.long_s))
            case "/v1/loads":
                row = {"dp_rank": 0, "num_running_reqs": len(self._running), "num_waiting_reqs": 0}
                return _json({"timestamp": 0.0, "version": "x", "loads": [row]})
            case "/server_info":
                return _json({"context_length": self.context_length})
            case "/tokenize":
                ids = self.tokenizer.encode(body["prompt"], add_special_tokens=False).ids
                return _json({"tokens": ids, "count": len(ids), "max_model_len": 40960})
            case "/separate_reasoning" if body["reasoning_parser"] not in self.reasoning_parsers:
                return _json({"reasoning_text": "", "text": body["text"]})
            case "/separate_reasoning":
                thought, close, rest = body["text"].partition("</think>")
                thought, rest = (thought, rest) if close else ("", thought)
                thought = thought.removeprefix("<think>").strip()
                return _json({"reasoning_text": thought, "text": rest.lstrip("\n")})
            case "/parse_function_call":
                tools = body["tools"] if body["tool_call_parser"] in self.parsers else []
                return _json(hermes(body["text"], tools))
            case "/abort_request" if self.deaf:
                return web.Response()
            case "/abort_request" if body.get("abort_all"):
                for rid, cut in self._running.items():
                    cut.set()
                    self.seen.aborted.append(rid)
                return web.Response()
        return await super()._handle(request)


def hermes(text: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Read Qwen's calls as SGLang's ``qwen25`` does: what is no JSON is left out."""
    names = [tool["function"]["name"] for tool in tools]
    calls: list[dict[str, Any]] = []
    for found in re.findall(r"<tool_call>\n?(.*?)\n?</tool_call>", text, re.DOTALL):
        try:
            call = orjson.loads(found)
        except orjson.JSONDecodeError:
            continue
        if call.get("name") in names:
            arguments = orjson.dumps(call.get("arguments")).decode()
            calls.append({"tool_index": len(calls), "name": call["name"], "parameters": arguments})
    normal = text.partition("<tool_call>")[0] if calls else text
    return {"normal_text": normal.strip(), "calls": calls}


class Router:
    """An async context manager: a router in front of servers; all go to the first."""

    spreads = False
    """Requests go to the servers in turn, whatever their routing key."""

    def __init__(self, *workers: ScriptedEngine) -> None:
        self.workers = workers
        self.keys: list[str | None] = []
        """The routing keys of generations."""
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
        await self._client.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    async def _generate(self, request: web.Request) -> web.Response:
        asked = orjson.loads(await request.read())
        self.keys.append(request.headers.get("X-SMG-Routing-Key"))
        kept = {name: asked[name] for name in KNOWN if name in asked}
        number = len(self.keys) % len(self.workers) if self.spreads else 0
        url = f"{self.workers[number].url}/generate"
        async with self._client.post(url, data=orjson.dumps(kept)) as response:
            return web.Response(
                body=await response.read(),
                status=response.status,
                content_type=response.content_type,
            )

    async def _workers(self, request: web.Request) -> web.Response:
        workers = [
            {"id": str(n), "url": worker.url, "worker_type": "regular", "is_healthy": True}
            for n, worker in enumerate(self.workers)
        ]
        return _json({"workers": workers, "total": len(workers), "stats": {}})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
