"""The error of a call to the gateway; apart from its client, so that who knows it needs no HTTP."""

from __future__ import annotations

from conf.errors import AgentrlError, ExitCode


class GatewayError(AgentrlError):
    """The gateway refused a call or is gone; ``status`` is the HTTP status, None if it could not be
    reached. ``unconnected``: no connection was made, so nothing was done there.
    """

    exit_code = ExitCode.SERVICE_GONE

    def __init__(
        self, message: str, *, status: int | None = None, unconnected: bool = False
    ) -> None:
        self.status, self.unconnected = status, unconnected
        super().__init__(message)
