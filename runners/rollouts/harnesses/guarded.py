"""Keep a plug-in's failure within its rollout: what it raises is the end of one agent."""

from __future__ import annotations

import time
from pathlib import Path

from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import Harness, HarnessContext, HarnessResult
from runners.sandboxes.contract import Sandbox, SandboxError
from runners.sandboxes.wrappers import UNWIND_S, SandboxElsewhere
from runners.system.plugins import describe_failure, run_beside


class GuardedHarness:
    """A harness that runs in the loop of plug-ins, so that it may block, and whose exceptions, and
    results of another type, are ``infra.harness``.

    As with any agent program that ends without a result, the rollout counts against the policy if
    it had taken a turn: its commands may have caused it.
    """

    def __init__(self, target: str, harness: Harness) -> None:
        self._name = f"harness={target}"
        self._harness = harness

    def mounts(self) -> dict[str, Path]:
        """Return the plug-in's own files."""
        return self._harness.mounts()

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run the plug-in; raises only SandboxError, and TimeoutError of the caller's deadline."""
        started = time.monotonic()
        try:
            result = await run_beside(
                self._harness.run, SandboxElsewhere(sandbox), context, unwind_s=UNWIND_S
            )
            if isinstance(result, HarnessResult):
                return result
            message = f"{self._name} returned {type(result).__name__}, not HarnessResult"
        except (SandboxError, TimeoutError):
            raise
        except (Exception, SystemExit) as error:
            message = str(describe_failure(self._name, error))
        return HarnessResult(
            code=OutcomeCode.INFRA_HARNESS,
            final_message="",
            raw_finish_reason=None,
            exit_code=-1,
            duration_s=time.monotonic() - started,
            output=message,
        )
