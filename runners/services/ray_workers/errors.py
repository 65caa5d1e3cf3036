"""The errors of attempts that run on other machines."""

from __future__ import annotations

from conf.errors import AgentrlError, ExitCode


class ExecutorError(AgentrlError):
    """The cluster cannot run rollouts, or no longer; the run ends and can be resumed."""

    exit_code = ExitCode.SERVICE_GONE

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.SERVICE_GONE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class WorkerError(AgentrlError):
    """A call between driver and worker raised something that is no error of agentrl."""


class NodeLost(AgentrlError):
    """A node is gone, or its worker is."""

    reported = False
    """True once an attempt has reported it: it is one failure for all attempts of the node."""
