"""The gateway's admin API on a bad day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runners.faults.inject import strike
from runners.faults.injection import Injection
from runners.faults.plan import Fault
from runners.gateway.client import GatewayAdmin, GatewayError


def gateway_error(fault: Fault) -> GatewayError:
    """Return what the gateway's boundary raises."""
    return GatewayError(str(fault), status=fault.status)


class FaultyAdmin(GatewayAdmin):
    """A client whose requests go through a real one, which its owner closes."""

    def __init__(self, real: GatewayAdmin, injection: Injection) -> None:
        self.url = real.url
        self._real = real
        self._injection = injection

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        seed: int | None = None,
        sampling: Mapping[str, float | int] | None = None,
        max_context_tokens: int | None = None,
        max_turns: int | None = None,
        scenario: str = "linear",
    ) -> tuple[str, str]:
        """Make a session; a reply that is cut off leaves it made."""
        fault = self._injection.draw("session", session_id or "")
        await strike(fault, gateway_error)
        made = await super().create_session(
            session_id,
            seed=seed,
            sampling=sampling,
            max_context_tokens=max_context_tokens,
            max_turns=max_turns,
            scenario=scenario,
        )
        _cut(fault)
        return made

    async def finish(
        self, session_id: str, reward: float | None = None, *, segments: bool = True
    ) -> dict[str, Any]:
        """End a session's turns; a reply that is cut off or garbage leaves it ended."""
        fault = self._injection.draw("finish", session_id)
        await strike(fault, gateway_error)
        finished = await super().finish(session_id, reward, segments=segments)
        _cut(fault)
        garbage = fault is not None and fault.what == "garbage"
        return {} if garbage else finished

    async def delete(self, session_id: str) -> None:
        """Delete a session; a failure comes after that, so that nothing is left."""
        await super().delete(session_id)
        await strike(self._injection.draw("teardown", session_id), gateway_error)

    async def close(self) -> None:
        """Leave the connections to the real client's owner."""

    async def _request(self, *request: Any, **how: Any) -> dict[str, Any]:
        return await self._real._request(*request, **how)


def _cut(fault: Fault | None) -> None:
    if fault is not None and fault.what == "cut":
        raise gateway_error(fault)
