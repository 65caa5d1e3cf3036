"""Refusals: why a request gets no turn; each dialect puts them into its own error envelope. And the
error of a call to the gateway, apart from its client, so that who knows it needs no HTTP.
"""

from __future__ import annotations

from enum import StrEnum

from conf.errors import AgentrlError, ExitCode
from runners.engines.contract import EngineError


class RefusalKind(StrEnum):
    """Kinds of refusal, by Anthropic's names."""

    INVALID = "invalid_request_error"
    UNAUTHENTICATED = "authentication_error"
    FORBIDDEN = "permission_error"
    UNKNOWN = "not_found_error"
    CONFLICT = "conflict_error"
    TOO_LARGE = "request_too_large"
    RATE_LIMITED = "rate_limit_error"
    BROKEN = "api_error"
    OVERLOADED = "overloaded_error"


STATUS: dict[RefusalKind, int] = {
    RefusalKind.INVALID: 400,
    RefusalKind.UNAUTHENTICATED: 401,
    RefusalKind.FORBIDDEN: 403,
    RefusalKind.UNKNOWN: 404,
    RefusalKind.CONFLICT: 409,
    RefusalKind.TOO_LARGE: 413,
    RefusalKind.RATE_LIMITED: 429,
    RefusalKind.BROKEN: 500,
    RefusalKind.OVERLOADED: 529,
}
"""HTTP status of each. Agent programs retry after 429, 500 and 529, and give up after the others.
"""

PROMPT_TOO_LONG = "prompt is too long"
"""Beginning of the refusal as Anthropic's API writes it: Claude Code compacts its context when it
reads these words.
"""

TURNS_SPENT = "the session has had its turns"
"""Beginning of the refusal of a turn beyond the session's budget. Harnesses look for it in their
program's output. Its status is 403, which no program retries.
"""

MESSAGE_LENGTH = 2000
"""A refusal may quote the request, whose parts have any length."""


class Refused(Exception):
    """Raised for a request that is answered with an error; its message is for the client's user."""

    def __init__(
        self,
        kind: RefusalKind,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        self.kind = kind
        self.param = _printable(param) if param else None
        """The field of the body that is wrong."""
        self.retry_after_s = retry_after_s
        """Header ``retry-after``; None: there is none."""
        super().__init__(_printable(message))

    @property
    def status(self) -> int:
        """HTTP status (OpenAI's dialects replace one of them)."""
        return STATUS[self.kind]

    @property
    def is_too_long(self) -> bool:
        """True if the prompt exceeds the model's context."""
        return self.kind is RefusalKind.INVALID and str(self).startswith(PROMPT_TOO_LONG)


class EngineFailed(Refused):
    """Raised for a turn that the engine failed to sample, for no reason of the request's own."""


class OverLimit(Refused):
    """Raised for a request that asks for more than one session may have.

    Sessions count these. An honest agent program never meets one, so a rollout that fails after one
    has failed by what its policy did (``policy.request_limits``).
    """


def _printable(text: str) -> str:
    """Return a text that JSON can hold, at most ``MESSAGE_LENGTH`` characters of it."""
    return text[:MESSAGE_LENGTH].encode("utf-8", "replace").decode()


def refuse_for_engine(error: EngineError) -> Refused:
    """Return the refusal that answers an agent when the engine failed."""
    if error.too_long:  # in the words by which agent programs know that they must compact
        return Refused(RefusalKind.INVALID, f"{PROMPT_TOO_LONG}: {error}")
    if error.retryable:
        return EngineFailed(RefusalKind.OVERLOADED, f"the engine cannot answer now: {error}")
    if error.by_request:  # a retry would be refused the same way
        return Refused(RefusalKind.INVALID, f"the engine refuses the request: {error}")
    return EngineFailed(RefusalKind.BROKEN, f"the engine failed: {error}")


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
