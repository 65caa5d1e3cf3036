"""A fake router in front of scripted engines, on loopback.

It does what sglang-router 0.3.2 does: it builds ``/generate`` anew and so drops the fields that it
does not know, it has no ``/abort_request`` and no ``/v1/loads``, and it lists its workers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol, Self

import aiohttp
import orjson
from aiohttp import web

from agentrl.testing.loopback_server import LoopbackServer

KNOWN = ("rid", "input_ids", "sampling_params", "return_logprob")
"""The fields of ours that the router passes on."""


class Worker(Protocol):
    """An engine that answers somewhere."""

    @property
    def url(self) -> str:
        """Its address."""
        ...


class Router(LoopbackServer):
    """A router in front of servers; all requests go to the first."""

    spreads = False
    """Send requests to the servers in turn, whatever their routing key."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = workers
        self.keys: list[str | None] = []
        """The routing keys of generations."""
        self._client: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession()
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self._client.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path:
            case "POST", "/generate":
                return await self._generate(request)
            case "GET", "/workers":
                return self._workers()
            case "GET", "/health":
                return web.Response()
        return web.Response(status=404)

    async def _generate(self, request: web.BaseRequest) -> web.Response:
        body = orjson.loads(await request.read())
        self.keys.append(request.headers.get("X-SMG-Routing-Key"))
        kept = {name: body[name] for name in KNOWN if name in body}
        number = len(self.keys) if self.spreads else 0
        for attempt in range(len(self.workers)):  # one that is gone is left out
            url = f"{self.workers[(number + attempt) % len(self.workers)].url}/generate"
            with suppress(aiohttp.ClientConnectionError):
                async with self._client.post(url, data=orjson.dumps(kept)) as response:
                    return web.Response(
                        body=await response.read(),
                        status=response.status,
                        content_type=response.content_type,
                    )
        return web.Response(status=503, text="no healthy worker")

    def _workers(self) -> web.Response:
        workers = [
            {"id": str(n), "url": worker.url, "worker_type": "regular", "is_healthy": True}
            for n, worker in enumerate(self.workers)
        ]
        return _json({"workers": workers, "total": len(workers), "stats": {}})


def _json(value: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
