"""Client of the gateway's admin API, for the driver and everything else that opens sessions.

Every call can be repeated safely, and is while no connection holds: creating a session carries an
idempotency key, the others are idempotent by themselves.

A gateway may be several processes (``replicas``). The client chooses one for each session that it
creates, and sends that session's later calls there.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from runners.engines.resilient import PauseResult
from runners.gateway.refusal import GatewayError
from runners.system.concurrency import backoff_s

DEADLINE_S = 60.0
"""Of a call. The gateway answers in milliseconds; ``finish`` waits for turns that are being stored.
"""

PROBE_S = 15.0
"""Of a call to an address where nothing may listen."""

TRIES = 4
"""Connections per call, within about two seconds: a gateway that is gone does not come back."""


@dataclass(frozen=True, slots=True)
class SessionHome:
    """The gateway process in which a session lives."""

    url: str
    control: Path
    """Its control socket, for sandboxes of this machine without a network."""


class GatewayAdmin:
    """A client of one gateway; closed exactly once. Every call raises GatewayError."""

    def __init__(
        self, urls: str | Sequence[str], admin_key: str, *, deadline_s: float = DEADLINE_S
    ) -> None:
        """``urls``: those of all its processes."""
        given = [urls] if isinstance(urls, str) else urls
        self.urls = tuple(url.rstrip("/") for url in given)
        self.admin_key = admin_key
        self._homes: dict[str, SessionHome] = {}
        """Of the sessions that were created here, by id."""
        self._open: Counter[str] = Counter()
        """Sessions that were created here and are not deleted, by URL."""
        self._paused = False
        self._pausing = asyncio.Lock()
        """A process that was started again must not be opened while a pause begins."""
        self._headers = {"authorization": f"Bearer {admin_key}", "content-type": "application/json"}
        self._deadline_s = deadline_s
        self._client: aiohttp.ClientSession | None = None

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        task: str | None = None,
        seed: int | None = None,
        sampling: Mapping[str, float | int] | None = None,
        max_context_tokens: int | None = None,
        max_turns: int | None = None,
        scenario: str = "linear",
    ) -> tuple[str, str]:
        """Create a session; return its id and API key.

        It lives where this client has the fewest sessions, among the processes that are there. An
        id that was ever used is refused with status 409. The idempotency key lets a retry after a
        lost reply return the session that the first request created.
        """
        wanted = {
            "session_id": session_id,
            "task": task,
            "seed": seed,
            "sampling": dict(sampling) if sampling else None,
            "max_context_tokens": max_context_tokens,
            "max_turns": max_turns,
            "scenario": scenario,
        }
        body = {name: value for name, value in wanted.items() if value is not None}
        headers = {"idempotency-key": secrets.token_urlsafe(16)}
        # By chance among equals: clients of several machines all begin with no session.
        order = sorted(self.urls, key=lambda url: (self._open[url], random.random()))
        for url in order:
            self._open[url] += 1  # now: those that are created meanwhile go elsewhere
            try:
                created = await self._request("POST", url, "/admin/sessions", body, headers=headers)
            except BaseException as error:
                self._open[url] -= 1
                is_elsewhere = isinstance(error, GatewayError) and error.unconnected
                if not is_elsewhere or url == order[-1]:
                    raise
            else:
                break
        made: str = created["session_id"]
        self._homes[made] = SessionHome(url, Path(created["control"]))
        return made, created["api_key"]

    def home(self, session_id: str) -> SessionHome:
        """Return where a session lives that this client has created and not deleted."""
        return self._homes[session_id]

    async def stats(self, session_id: str) -> dict[str, Any]:
        """Return a session's counters."""
        return await self._request_of("GET", session_id)

    async def finish(
        self, session_id: str, reward: float | None = None, *, segments: bool = True
    ) -> dict[str, Any]:
        """End a session's turns; return ``stats``, and ``segments`` unless the caller wants none.

        ``segments=False`` spares the gateway reading and sending every token of every chain.
        """
        body: dict[str, Any] = {} if segments else {"segments": False}
        if reward is not None:
            body["reward"] = reward
        return await self._request_of("POST", session_id, "/finish", body)

    async def delete(self, session_id: str) -> None:
        """End a session and make the gateway forget it; one that it does not know is no error."""
        try:
            await self._request_of("DELETE", session_id)
        except GatewayError as error:
            if error.status != 404:
                raise
        finally:
            if (home := self._homes.pop(session_id, None)) is not None:
                self._open[home.url] -= 1

    async def pause(self, deadline_s: float, *, keep: bool = False) -> PauseResult:
        """Let no generation begin at the engine until ``resume``; return when none is there.

        Those in flight get ``deadline_s``, then they are aborted and sampled again after the pause,
        with ``keep`` continued from the tokens that they have; new ones wait. A call that raises
        may have paused the gateway all the same.
        """
        body = {"deadline_s": deadline_s, "keep": keep}
        async with self._pausing:
            self._paused = True
            answers = await self._request_all("POST", "/admin/pause", body, longer_s=deadline_s)
        total: Counter[str] = Counter()
        for answer in answers:
            total.update(answer)
        return PauseResult(total["finished"], total["aborted"], total["kept"])

    async def resume(self) -> None:
        """Let generations begin again."""
        async with self._pausing:
            self._paused = False
            await self._request_all("POST", "/admin/resume")

    async def open_replica(self, url: str) -> None:
        """Let generations begin in a process that was just started, unless all are paused now."""
        async with self._pausing:
            if self._paused:
                return
            try:
                await self._request("POST", url, "/admin/resume")
            except GatewayError as error:
                if not error.unconnected:  # else it has ended again
                    raise

    async def healthy(self) -> bool:
        """Return whether all of the gateway answers."""
        try:
            for url in self.urls:
                await self._request("GET", url, "/health")
        except GatewayError:
            return False
        return True

    async def is_reached_at(self, url: str) -> bool | None:
        """Return whether this gateway answers at ``url``; None if nothing answers there, which does
        not exclude that a sandbox elsewhere reaches it.
        """
        mine = {answer["instance"] for answer in await self._request_all("GET", "/health")}
        there = GatewayAdmin(url, "", deadline_s=min(PROBE_S, self._deadline_s))
        try:
            found = await there._request("GET", url, "/health")
        except GatewayError as error:
            return None if error.status is None else False
        finally:
            await there.close()
        return found.get("instance") in mine

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _request_of(
        self, method: str, session_id: str, tail: str = "", body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask the process of a session; all of them if another client has created it."""
        home, path = self._homes.get(session_id), f"/admin/sessions/{session_id}{tail}"
        *others, last = [home.url] if home is not None else self.urls
        for url in others:
            try:
                return await self._request(method, url, path, body)
            except GatewayError as error:
                if error.status not in (None, 404):  # it lives there
                    raise
        return await self._request(method, last, path, body)

    async def _request_all(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        longer_s: float = 0.0,
    ) -> list[dict[str, Any]]:
        """Ask every process at once; of several, those that are there: one that is gone has no
        generation at the engine any more, and begins paused when it is started again.
        """
        answers = await asyncio.gather(
            *(self._request(method, url, path, body, longer_s=longer_s) for url in self.urls),
            return_exceptions=True,
        )
        found: list[dict[str, Any]] = []
        gone: GatewayError | None = None
        for answer in answers:
            # Only a refused connection proves that nobody is there. One that hangs may still have
            # generations at the engine, so its silence is an error.
            if isinstance(answer, GatewayError) and answer.unconnected:
                gone = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if not found and gone is not None:
            raise gone
        return found

    async def _request(
        self,
        method: str,
        url: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        longer_s: float = 0.0,
    ) -> dict[str, Any]:
        """Send a request, again while no connection holds; ``longer_s`` extends the deadline."""
        if self._client is None:
            self._client = aiohttp.ClientSession(
                trust_env=False, timeout=aiohttp.ClientTimeout(total=None)
            )
        data = None if body is None else orjson.dumps(body)
        sent = {**self._headers, **(headers or {})}
        failures = 0
        try:
            async with asyncio.timeout(self._deadline_s + longer_s):
                while True:
                    try:
                        async with self._client.request(
                            method, url + path, data=data, headers=sent
                        ) as response:
                            raw = await response.read()
                        break
                    except (aiohttp.ClientError, OSError):
                        failures += 1
                        if failures == TRIES:
                            raise
                        await asyncio.sleep(backoff_s(failures))
            if response.status != 200:
                raise _refused(method, path, response.status, raw)
            return _document(raw, f"{method} {path} at {url}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise GatewayError(
                f"the gateway at {url} does not answer {method} {path}: "
                f"{str(error) or type(error).__name__}",
                unconnected=isinstance(error, aiohttp.ClientConnectorError),
            ) from error


def _document(raw: bytes, request: str) -> dict[str, Any]:
    with suppress(orjson.JSONDecodeError):
        found = orjson.loads(raw)
        if isinstance(found, dict):
            return found
    raise GatewayError(f"the answer to {request} is not a gateway's", status=200)


def _refused(method: str, path: str, status: int, raw: bytes) -> GatewayError:
    try:
        message = orjson.loads(raw)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = raw[:200].decode("utf-8", "replace")
    return GatewayError(f"the gateway refused {method} {path}: {message}", status=status)
