"""The base class of all errors that a user sees, and the exit codes.

Every boundary (config, engine, sandbox, gateway, store, …) has one subclass, defined in the package
that owns the boundary, and one function there that turns foreign errors into it.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes; scripts rely on them."""

    DONE = 0
    FAILURE_BUDGET = 1
    """Ran to its end, but more failed than the run tolerates."""
    USAGE = 2
    """Usage or configuration."""
    PREFLIGHT = 3
    """A pre-flight check failed."""
    SERVICE_GONE = 4
    """A service the run needs (engine, gateway) is gone; the run can be resumed."""
    DATA_REFUSED = 5
    """Stored data was refused (unreadable, wrong schema, changed config)."""
    INTERRUPTED = 130
    TERMINATED = 143


class AgentrlError(Exception):
    """An error whose message tells a user what is wrong, where, and what to do.

    ``str(error)`` is printed without a traceback; the process exits with ``exit_code``.
    """

    exit_code: ExitCode = ExitCode.FAILURE_BUDGET


def error_text(error: BaseException) -> str:
    """Return an exception's text as valid UTF-8, even if its ``__str__`` raises; the name of its
    type if the text is empty.
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as second:  # a hostile __str__ must not replace the failure it describes
        return f"<{name} whose text cannot be read: {type(second).__name__}>"
    return text.encode("utf-8", "replace").decode() or name


class ConfigError(AgentrlError):
    """The configuration is wrong; ``faults`` lists every fault, each with its key and the fix."""

    exit_code = ExitCode.USAGE

    def __init__(self, faults: str | list[str]) -> None:
        self.faults = [faults] if isinstance(faults, str) else faults
        super().__init__("\n".join(self.faults))
