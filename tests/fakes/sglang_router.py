"""A fake router in front of scripted engines, on loopback.

It does what sglang-router 0.3.2 does: it builds ``/generate`` anew and so drops the fields that it
does not know, it has no ``/abort_request`` and no ``/v1/loads``, and it lists its workers.
"""

from __future__ import annotations

from typing import Any, Self

import aiohttp
import orjson
from aiohttp import web

from tests.fakes.scripted_engine import ScriptedEngine

KNOWN = ("rid", "input_ids", "sampling_params", "return_logprob")
"""The fields of ours that the router passes on."""


class Router:
    """A router in front of servers; all requests go to the first. ``async with`` serves it."""

    spreads = False
    """Send requests to the servers in turn, whatever their routing key."""

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
        body = orjson.loads(await request.read())
        self.keys.append(request.headers.get("X-SMG-Routing-Key"))
        kept = {name: body[name] for name in KNOWN if name in body}
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
