"""A service that speaks E2B's API on loopback: the control plane, and envd for all sandboxes.

The real SDK (e2b 2.63) is pointed at it by ``api_url`` and ``sandbox_url``; processes are real.
With ``older`` it is as ROCK's guide to its E2B interface describes that one: not recorded. The
header ``connect-timeout-ms`` is obeyed only if ``keeps_deadlines`` is set: a real server may ignore
it.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.e2b import envd
from tests.fakes.e2b.box import Box
from tests.fakes.e2b.faults import Fault, Faults, What

KEY = "e2b_0123456789abcdef"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_name(rule: str) -> bool:
    """Return whether a rule is a host name, and not an address or a block of them."""
    return rule.rpartition(".")[2].isalpha()


@dataclass
class Machine:
    """A sandbox in the control plane."""

    box: Box
    created: dict[str, Any]
    """The body of the request that created it."""
    renewed: list[int] = field(default_factory=list)
    """Lifetimes that were requested later."""


class E2bServer:
    """The service."""

    def __init__(self, root: Path) -> None:
        self.machines: dict[str, Machine] = {}
        self.ended: list[Machine] = []
        self.requests: list[str] = []
        """Method and path of each request."""
        self.times: list[float] = []
        """Arrival of each, on the monotonic clock."""
        self.most_at_once: Counter[str] = Counter()
        """Largest number of requests in progress at one time, by method and path."""
        self._at_once: Counter[str] = Counter()
        self.url = ""
        self._root = root
        self._numbers = itertools.count()
        self._keys: dict[str, asyncio.Task[str]] = {}
        self.faults = Faults()
        self.app = web.Application(middlewares=[self._middleware()], client_max_size=1 << 30)
        self.keeps_deadlines = True
        self.older = False
        """It has the first version of the API only, knows no network rules, gives the API key as
        each sandbox's token, and refuses commands of more than 60 s.
        """
        self.profile = "echo a profile that prints\n"
        """Script that login shells of new machines run."""
        self.app[envd.SERVER] = self
        self.app.add_routes(
            [
                web.post("/v2/sandboxes", self._create),
                web.post("/sandboxes", self._create),
                web.get("/v2/sandboxes", self._list),
                web.get("/sandboxes/{id}", self._get),
                web.delete("/sandboxes/{id}", self._delete),
                web.post("/v2/sandboxes/{id}/connect", self._connect),
                web.post("/sandboxes/{id}/timeout", self._timeout),
                web.get("/health", self._health),
                web.get("/files", self._read),
                web.post("/files", self._write),
                web.post("/process.Process/Start", self._start),
                web.post("/process.Process/{method}", self._unary),
            ]
        )

    def plan(self, route: str, what: What, **more: Any) -> None:
        """Plan a fault for the next requests that match."""
        self.faults.planned.append(Fault(route, what, **more))

    async def close(self) -> None:
        """End every box."""
        for sandbox_id in list(self.machines):
            await self._end(sandbox_id)

    # --- control plane -------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        network = body.get("network") or {}
        if self.older and request.path == "/v2/sandboxes":
            return web.json_response({"detail": "Method Not Allowed"}, status=405)
        if self.older and network:
            return envd.error_response(400, "400", "network is not supported")
        # As E2B: names can only be allowed, and only if all else is denied.
        names = [any(map(is_name, network.get(rules) or [])) for rules in ("allowOut", "denyOut")]
        if names[1] or (names[0] and "0.0.0.0/0" not in (network.get("denyOut") or [])):
            return envd.error_response(400, "400", "invalid network rules")
        key = request.headers.get("Idempotency-Key")
        key = str(next(self._numbers)) if self.older or not key else key
        if key not in self._keys:
            self._keys[key] = asyncio.create_task(self._boot(body))
        sandbox_id = await asyncio.shield(self._keys[key])
        return web.json_response(self._summary(sandbox_id), status=201)

    async def _boot(self, body: dict[str, Any]) -> str:
        sandbox_id = f"sb{next(self._numbers):08}"
        egress = body.get("network") or {}
        open_network = "allowOut" in egress or "denyOut" not in egress
        box = Box(self._root / sandbox_id, network=open_network, profile=self.profile)
        await box.boot()
        self.machines[sandbox_id] = Machine(box, body)
        return sandbox_id

    def _summary(self, sandbox_id: str) -> dict[str, Any]:
        return {
            "templateID": self.machines[sandbox_id].created["templateID"],
            "sandboxID": sandbox_id,
            "clientID": "local",
            "envdVersion": "0.3.0" if self.older else "0.6.4",
            "envdAccessToken": self._token(sandbox_id),
        }

    def _token(self, sandbox_id: str) -> str:
        return KEY if self.older else f"token-{sandbox_id}"

    def _details(self, sandbox_id: str) -> dict[str, Any]:
        return {
            **self._summary(sandbox_id),
            "startedAt": "2026-01-01T00:00:00Z",
            "endAt": "2030-01-01T00:00:00Z",
            "cpuCount": 1,
            "memoryMB": 512,
            "diskSizeMB": 1024,
            "state": "running",
            "metadata": self.machines[sandbox_id].created.get("metadata", {}),
        }

    async def _list(self, request: web.Request) -> web.Response:
        quoted = urllib.parse.parse_qsl(request.query.get("metadata", ""))
        wanted = {tuple(map(urllib.parse.unquote, pair)) for pair in quoted}
        if self.older and not wanted:
            return envd.error_response(400, "400", "metadata is required")
        found = [
            self._details(sandbox_id)
            for sandbox_id, machine in self.machines.items()
            if wanted <= set(machine.created.get("metadata", {}).items())
        ]
        return web.json_response(found)

    async def _get(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        if sandbox_id not in self.machines:
            return envd.error_response(404, "404", "sandbox not found")
        return web.json_response(self._details(sandbox_id))

    async def _connect(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        if sandbox_id not in self.machines:
            return envd.error_response(404, "404", "sandbox not found")
        return web.json_response(self._summary(sandbox_id))

    async def _delete(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        if sandbox_id not in self.machines:
            return envd.error_response(404, "404", "sandbox not found")
        await self._end(sandbox_id)
        return web.Response(status=204)

    async def _timeout(self, request: web.Request) -> web.Response:
        machine = self.machines.get(request.match_info["id"])
        if machine is None:
            return envd.error_response(404, "404", "sandbox not found")
        machine.renewed.append((await request.json())["timeout"])
        return web.Response(status=204)

    async def _end(self, sandbox_id: str) -> None:
        machine = self.machines.pop(sandbox_id)
        self.ended.append(machine)
        await machine.box.destroy()

    # --- envd ----------------------------------------------------------------------------------

    def _box(self, request: web.Request) -> Box:
        sandbox_id = request.headers.get("e2b-sandbox-id", "")
        if sandbox_id not in self.machines:
            text = f'{{"code": 502, "message": "The sandbox {sandbox_id} was not found"}}'
            raise web.HTTPBadGateway(text=text, content_type="application/json")
        if request.headers.get("x-access-token") != self._token(sandbox_id):
            raise web.HTTPUnauthorized
        return self.machines[sandbox_id].box

    async def _health(self, request: web.Request) -> web.Response:
        self._box(request)
        return web.Response(status=204)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        return await envd.read(self._box(request), request)

    async def _write(self, request: web.Request) -> web.Response:
        return await envd.write(self._box(request), request)

    async def _start(self, request: web.Request) -> web.StreamResponse:
        if self.older and int(request.headers.get("connect-timeout-ms", "0")) > 60_000:
            return envd.error_response(400, "invalid_argument", "timeout above 60 s")
        return await envd.start(self._box(request), request)

    async def _unary(self, request: web.Request) -> web.Response:
        box = self._box(request)
        return await envd.unary(box, request.match_info["method"], await request.json())

    # --- faults ----------------------------------------------------------------------------------

    def _middleware(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        @web.middleware
        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            route = f"{request.method} {request.path}"
            self.requests.append(route)
            self.times.append(time.monotonic())
            self._at_once[route] += 1
            self.most_at_once[route] = max(self.most_at_once[route], self._at_once[route])
            try:
                return await respond(request, handler)
            finally:
                self._at_once[route] -= 1

        async def respond(request: web.Request, handler: Handler) -> web.StreamResponse:
            if "sandboxes" in request.path and request.headers.get("x-api-key") != KEY:
                return envd.error_response(401, "401", "unknown key")
            fault = self.faults.match(request, "status", "drop", "lose", "slow")
            if fault is None:
                return await handler(request)
            if fault.what == "status":
                response = envd.error_response(fault.status, str(fault.status), fault.message)
                if fault.retry_after_s is not None:
                    response.headers["Retry-After"] = str(fault.retry_after_s)
                return response
            if fault.what == "slow":
                await asyncio.sleep(fault.seconds)
                return await handler(request)
            if fault.what == "lose":
                await handler(request)
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        return answer


@asynccontextmanager
async def e2b_server(root: Path) -> AsyncIterator[E2bServer]:
    """Serve on loopback; boxes are below ``root``."""
    server = E2bServer(root)
    runner = web.AppRunner(server.app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await server.close()
        await runner.cleanup()
        shutil.rmtree(root, ignore_errors=True)
