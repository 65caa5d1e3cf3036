"""The driver's end of the gateway's admin API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from conf.errors import AgentrlError, ExitCode

DEADLINE_S = 60.0
"""The gateway answers in milliseconds; finishing waits for turns that are being stored."""


class GatewayError(AgentrlError):
    """The gateway refused or is gone; ``status`` is the HTTP status, None when it could not be
    reached.
    """

    exit_code = ExitCode.SERVICE_GONE

    def __init__(self, message: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class GatewayAdmin:
    """A client of one gateway; closed exactly once."""

    def __init__(self, url: str, admin_key: str, *, deadline_s: float = DEADLINE_S) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {admin_key}", "content-type": "application/json"}
        self._timeout = aiohttp.ClientTimeout(total=deadline_s)
        self._client: aiohttp.ClientSession | None = None

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        seed: int | None = None,
        sampling: Mapping[str, float | int] | None = None,
        max_context_tokens: int | None = None,
        scenario: str = "linear",
    ) -> tuple[str, str]:
        """Make a session; return its id and API key. An id that was ever used is refused (409)."""
        wish = {
            "session_id": session_id,
            "seed": seed,
            "sampling": dict(sampling) if sampling else None,
            "max_context_tokens": max_context_tokens,
            "scenario": scenario,
        }
        given = {name: value for name, value in wish.items() if value is not None}
        made = await self._ask("POST", "/admin/sessions", given)
        return made["session_id"], made["api_key"]

    async def stats(self, session_id: str) -> dict[str, Any]:
        """Return a session's counters."""
        return await self._ask("GET", f"/admin/sessions/{session_id}")

    async def finish(self, session_id: str, reward: float | None = None) -> dict[str, Any]:
        """End a session's turns; returns ``segments`` and ``stats``."""
        body = {} if reward is None else {"reward": reward}
        return await self._ask("POST", f"/admin/sessions/{session_id}/finish", body)

    async def delete(self, session_id: str) -> None:
        """End a session and make the gateway forget it."""
        await self._ask("DELETE", f"/admin/sessions/{session_id}")

    async def healthy(self) -> bool:
        """Whether the gateway answers."""
        try:
            await self._ask("GET", "/health")
        except GatewayError:
            return False
        return True

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        if self._client is None:
            self._client = aiohttp.ClientSession(trust_env=False, timeout=self._timeout)
        data = None if body is None else orjson.dumps(body)
        try:
            async with self._client.request(
                method, self.url + path, data=data, headers=self._headers
            ) as response:
                raw = await response.read()
                if response.status != 200:
                    raise _refused(method, path, response.status, raw)
                answer: dict[str, Any] = orjson.loads(raw)
                return answer
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise GatewayError(
                f"the gateway at {self.url} does not answer {method} {path}: "
                f"{error or type(error).__name__}"
            ) from error


def _refused(method: str, path: str, status: int, raw: bytes) -> GatewayError:
    try:
        message = orjson.loads(raw)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = raw[:200].decode("utf-8", "replace")
    return GatewayError(f"the gateway refused {method} {path}: {message}", status=status)
