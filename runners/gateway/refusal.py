"""Why a request gets no turn, in words every dialect can put into its own envelope."""

from __future__ import annotations

from enum import StrEnum

from runners.engines.contract import EngineError


class RefusalKind(StrEnum):
    """Kind of refusal; the value is Anthropic's name for it."""

    INVALID = "invalid_request_error"
    UNAUTHENTICATED = "authentication_error"
    FORBIDDEN = "permission_error"
    UNKNOWN = "not_found_error"
    CONFLICT = "conflict_error"
    TOO_LARGE = "request_too_large"
    BROKEN = "api_error"
    OVERLOADED = "overloaded_error"


STATUS: dict[RefusalKind, int] = {
    RefusalKind.INVALID: 400,
    RefusalKind.UNAUTHENTICATED: 401,
    RefusalKind.FORBIDDEN: 403,
    RefusalKind.UNKNOWN: 404,
    RefusalKind.CONFLICT: 409,
    RefusalKind.TOO_LARGE: 413,
    RefusalKind.BROKEN: 500,
    RefusalKind.OVERLOADED: 529,
}
"""Agents ask again after 500 and 529, and give up after the others."""

PROMPT_TOO_LONG = "prompt is too long"
"""How Anthropic's API begins that refusal; Claude Code compacts its context when it reads it."""

TURNS_SPENT = "the session has had its turns"
"""How the refusal of a turn beyond the session's budget begins; harnesses look for it in what their
programs say, and 403 is what none of them tries again.
"""


class Refused(Exception):
    """A request that is answered with an error; the message is for the client's user."""

    def __init__(self, why: RefusalKind, message: str, *, param: str | None = None) -> None:
        self.why = why
        self.param = param
        """Field of the body that is at fault."""
        super().__init__(message)

    @property
    def status(self) -> int:
        """HTTP status."""
        return STATUS[self.why]

    @property
    def is_too_long(self) -> bool:
        """Whether the prompt exceeds the model's context."""
        return self.why is RefusalKind.INVALID and str(self).startswith(PROMPT_TOO_LONG)


def to_refusal(error: EngineError) -> Refused:
    """Turn a failure of the engine into what the agent is told."""
    if error.retryable:
        return Refused(RefusalKind.OVERLOADED, f"the engine cannot answer now: {error}")
    if error.status == 400:  # asking again cannot help
        return Refused(RefusalKind.INVALID, f"the engine refuses the request: {error}")
    return Refused(RefusalKind.BROKEN, f"the engine failed: {error}")
