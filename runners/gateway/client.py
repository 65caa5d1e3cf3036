"""Client of the gateway's admin API, for the driver and everything else that opens sessions.

Every call can be repeated safely, and is while no connection holds: creating a session carries an
idempotency key, the others are idempotent by themselves.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import orjson

from runners.concurrency.limits import backoff_s
from runners.engines.resilient import PauseResult
from runners.gateway.gateway_error import GatewayError

DEADLINE_S = 60.0
"""Of a call. The gateway answers in milliseconds; ``finish`` waits for turns that are being stored.
"""

PROBE_S = 15.0
"""Of a call to an address where nothing may listen."""

TRIES = 4
"""Connections per call, within about two seconds: a gateway that is gone does not come back."""


class GatewayAdmin:
    """A client of one gateway; closed exactly once. Every call raises GatewayError."""

    def __init__(self, url: str, admin_key: str, *, deadline_s: float = DEADLINE_S) -> None:
        self.url = url.rstrip("/")
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

        An id that was ever used is refused with status 409. The idempotency key lets a retry after
        a lost reply return the session that the first request created.
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
        created = await self._request("POST", "/admin/sessions", body, headers=headers)
        return created["session_id"], created["api_key"]

    async def stats(self, session_id: str) -> dict[str, Any]:
        """Return a session's counters."""
        return await self._request("GET", f"/admin/sessions/{session_id}")

    async def finish(
        self, session_id: str, reward: float | None = None, *, segments: bool = True
    ) -> dict[str, Any]:
        """End a session's turns; return ``stats``, and ``segments`` unless the caller wants none.

        ``segments=False`` spares the gateway reading and sending every token of every chain.
        """
        body: dict[str, Any] = {} if segments else {"segments": False}
        if reward is not None:
            body["reward"] = reward
        return await self._request("POST", f"/admin/sessions/{session_id}/finish", body)

    async def delete(self, session_id: str) -> None:
        """End a session and make the gateway forget it; one that it does not know is no error."""
        try:
            await self._request("DELETE", f"/admin/sessions/{session_id}")
        except GatewayError as error:
            if error.status != 404:
                raise

    async def pause(self, deadline_s: float, *, keep: bool = False) -> PauseResult:
        """Let no generation begin at the engine until ``resume``; return when none is there.

        Those in flight get ``deadline_s``, then they are aborted and sampled again after the pause,
        with ``keep`` continued from the tokens that they have; new ones wait. A call that raises
        may have paused the gateway all the same.
        """
        body = {"deadline_s": deadline_s, "keep": keep}
        return PauseResult(**await self._request("POST", "/admin/pause", body, longer_s=deadline_s))

    async def resume(self) -> None:
        """Let generations begin again."""
        await self._request("POST", "/admin/resume")

    async def healthy(self) -> bool:
        """Return whether the gateway answers."""
        try:
            await self._request("GET", "/health")
        except GatewayError:
            return False
        return True

    async def is_reached_at(self, url: str) -> bool | None:
        """Return whether this gateway answers at ``url``; None if nothing answers there, which does
        not exclude that a sandbox elsewhere reaches it.
        """
        mine = await self._request("GET", "/health")
        there = GatewayAdmin(url, "", deadline_s=min(PROBE_S, self._deadline_s))
        try:
            found = await there._request("GET", "/health")
        except GatewayError as error:
            return None if error.status is None else False
        finally:
            await there.close()
        return bool(found.get("instance") == mine["instance"])

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _request(
        self,
        method: str,
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
                            method, self.url + path, data=data, headers=sent
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
            return _document(raw, f"{method} {path} at {self.url}")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise GatewayError(
                f"the gateway at {self.url} does not answer {method} {path}: "
                f"{str(error) or type(error).__name__}"
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
