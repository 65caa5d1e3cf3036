"""Serves the page and its data on the loopback interface, for the one who started it.

Other users of the machine can connect to the port, and so can pages in the user's own browser. So
every address begins with a secret that only the user can read, requests that name another host (DNS
rebinding) or come from another site are refused, and the page's policy lets only the page's own
scripts run. Only GET and HEAD exist: nothing can be changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from conf.cache import cache_root
from conf.errors import AgentrlError, error_text
from runners.observe.export.page_assets import STYLE, build_served_page, read_asset, script_names
from runners.observe.viewer.filters import ViewError
from runners.observe.viewer.page_reader import Given, PageReader
from runners.observe.viewer.search_index import IndexProgress, SearchIndex
from runners.records.text import dumps
from runners.system.processes import load_secret

HOST = "127.0.0.1"
PORTS = range(8721, 8741)
"""Tried in order, so that an address stays the same from one start to the next."""
INDEX_S = 2.0
"""Pause before the index is brought up to date again."""
_QUIET = logging.Logger("view", logging.CRITICAL + 1)
"""aiohttp would log a traceback of every request that is no HTTP: any program of this machine can
send them, and the terminal is the user's.
"""
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Read = Callable[[str, Given], dict[str, Any]]
"""Answers a request by the ``{id}`` of its address (empty: none) and its query."""


class _Stopped(Exception):
    """The server ends while the index is being brought up to date."""


class ViewServer:
    """One run's page; an async context manager that serves while it is entered."""

    def __init__(self, run_dir: Path, port: int | None = None) -> None:
        """``port``: None: the first of ``PORTS`` that is free; 0: any."""
        self.url = ""
        """The page's address, once entered."""
        self.run_dir = run_dir
        self._ports = PORTS if port is None else range(port, port + 1)
        self._thread = ThreadPoolExecutor(1, "view")  # a store belongs to the thread that opened it
        self._stopping = threading.Event()
        self._search = ""

    async def __aenter__(self) -> ViewServer:
        """Open the run and listen; raises StoreError and ViewError."""
        token = await asyncio.to_thread(load_token)
        self._reader = await self._call(PageReader, self.run_dir)
        runner = web.AppRunner(
            self._make_app(token), access_log=None, logger=_QUIET, shutdown_timeout=1.0
        )
        await runner.setup()
        self._runner = runner
        port = await self._listen()
        self.url = f"http://{HOST}:{port}/{token}/{name_in_address(self.run_dir)}/"
        self._indexing = asyncio.create_task(self._keep_index())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        self._indexing.cancel()
        with suppress(asyncio.CancelledError):
            await self._indexing
        await self._runner.cleanup()
        await self._call(self._reader.close)
        self._thread.shutdown()

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _listen(self) -> int:
        for port in self._ports:
            with suppress(OSError):
                site = web.TCPSite(self._runner, HOST, port)
                await site.start()
                return int(self._runner.addresses[0][1])
        first, last = self._ports[0], self._ports[-1]
        raise ViewError(
            f"no port from {first} to {last} is free on {HOST}: choose another --port, 0 for any"
        )

    def _make_app(self, token: str) -> web.Application:
        app = web.Application(middlewares=[check_requests(token)])
        page = build_served_page(self.run_dir.resolve().name)
        root = f"/{{token}}/{name_in_address(self.run_dir)}"
        app.router.add_get(f"{root}/", _text("text/html", page))
        app.router.add_get(f"{root}/{STYLE}", _text("text/css", read_asset(STYLE)))
        for name in script_names("source_server"):
            app.router.add_get(f"{root}/{name}", _text("text/javascript", read_asset(name)))
        for name, read in self._answers().items():
            app.router.add_get(f"{root}/api/{name}", self._answer(read))
        app.router.add_get("/{token}/{other}/", self._name_run)
        return app

    def _answers(self) -> dict[str, Read]:
        """Return the addresses of the data, and what answers them."""
        reader = self._reader
        return {
            "run": lambda _, given: {**reader.read_run(given), "search": self._search},
            "groups": lambda _, __: reader.read_groups(),
            "report": lambda _, __: reader.read_report(),
            "step": lambda _, given: reader.read_step(given),
            "rollouts": lambda _, given: reader.read_list(given),
            "rollouts/{id}": reader.read_rollout,
            "rollouts/{id}/place": reader.read_place,
            "rollouts/{id}/tokens": reader.read_tokens,
            "rollouts/{id}/wire": reader.read_wire,
            "rollouts/{id}/timeline": reader.read_timeline,
        }

    async def _name_run(self, _: web.Request) -> web.Response:
        """Answer an address of another run, which this port served before."""
        run = html.escape(str(self.run_dir.resolve()))
        text = (
            "<!doctype html><title>another run</title><p>This is a link into another run. Start "
            f"<code>agentrl view</code> for that one; here is <a href='{urlsplit(self.url).path}'>"
            f"{run}</a>."
        )
        return web.Response(status=404, text=text, content_type="text/html", charset="utf-8")

    def _answer(self, read: Read) -> Handler:
        """Return a handler that answers with what ``read`` returns in the store's thread."""

        async def handle(request: web.Request) -> web.Response:
            given = {name: request.query.getall(name) for name in request.query}
            try:
                body = await self._call(
                    lambda: dumps(read(request.match_info.get("id", ""), given))
                )
            except AgentrlError as error:
                return _refuse(400, error_text(error))
            except Exception as error:  # the top of a request
                return _refuse(500, f"unexpected {type(error).__name__}: {error_text(error)}")
            response = web.Response(text=body, content_type="application/json")
            response.enable_compression()
            return response

        return handle

    async def _keep_index(self) -> None:
        while True:
            try:
                await asyncio.to_thread(lambda: SearchIndex(self.run_dir).update(self._show))
                self._search = ""
            except _Stopped:
                return
            except Exception as error:  # the page works without search
                self._search = f"no search: {error_text(error)}"
            await asyncio.sleep(INDEX_S)

    def _show(self, progress: IndexProgress) -> None:
        if self._stopping.is_set():
            raise _Stopped
        if progress.done < progress.total:
            self._search = f"reading texts: {100 * progress.done // progress.total} %"


def name_in_address(run_dir: Path) -> str:
    """Return a run's part of its addresses: its name, and a digest of where it is.

    Ports are used again, and all runs have rollouts of the same ids: a link opens its own run only.
    """
    path = run_dir.resolve()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name)[:60]
    return f"{name}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def load_token() -> str:
    """Return the secret of this user's addresses, kept so that links stay; raises ViewError."""
    path = cache_root() / "viewer" / "token"
    try:
        return load_secret(path)
    except (OSError, ValueError) as error:
        raise ViewError(
            f"{path} cannot be used ({error}): set XDG_CACHE_HOME to another directory"
        ) from error


def check_requests(token: str) -> Any:
    """Return the check of every request, which also sets the headers of every answer."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _find_refusal(request, token)
        try:
            response = refusal or await handler(request)
        except web.HTTPException as error:
            response = _refuse(error.status, error.reason)
        response.headers.update(_HEADERS)
        return response

    return check


def _find_refusal(request: web.Request, token: str) -> web.Response | None:
    name = request.headers.get("Host", "").lower()
    host = (
        name[: name.index("]") + 1]
        if name.startswith("[") and "]" in name
        else name.partition(":")[0]
    )
    if host not in _HOSTS:
        return _refuse(403, "this page is served to this machine only")
    given = request.path.split("/")[1]
    if not hmac.compare_digest(given.encode(), token.encode()):
        return _refuse(403, "open the whole address that `agentrl view` printed")
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site not in ("none", "same-origin") and request.headers.get("Sec-Fetch-Mode") != "navigate":
        return _refuse(403, "this page is for no other site")
    return None


def _refuse(status: int, reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=status)


def _text(kind: str, text: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind, charset="utf-8")

    return handle
