"""How mini-swe-agent ended: its last word, in ours. Whatever it printed, nothing is raised."""

from __future__ import annotations

from runners.gateway.refusal import PROMPT_TOO_LONG, TURNS_SPENT
from runners.harnesses.contract import HarnessResult
from runners.harnesses.events import events, tail
from runners.sandboxes.contract import CommandResult
from runners.trajectory.outcome import OutcomeCode

CODES = {
    "Submitted": OutcomeCode.POLICY_FINISHED,
    "RepeatedFormatError": OutcomeCode.POLICY_FORMAT_ERROR,
    "LimitsExceeded": OutcomeCode.BUDGET_TURNS,
    "TimeExceeded": OutcomeCode.BUDGET_WALL,
    "RateLimitError": OutcomeCode.INFRA_MODEL,
    "InternalServerError": OutcomeCode.INFRA_MODEL,
    "ServiceUnavailableError": OutcomeCode.INFRA_MODEL,
    "Timeout": OutcomeCode.INFRA_MODEL,
    "AuthenticationError": OutcomeCode.INFRA_GATEWAY,
    "PermissionDeniedError": OutcomeCode.INFRA_GATEWAY,
    "NotFoundError": OutcomeCode.INFRA_GATEWAY,
    "BadRequestError": OutcomeCode.INFRA_GATEWAY,
    "APIConnectionError": OutcomeCode.INFRA_GATEWAY,
}
"""By ``exit_status``: its own words, and the names of litellm's errors; any other is the program's
failure.
"""


def read_result(command: CommandResult) -> HarnessResult:
    """Turn the end of the program into a result."""
    ended = next((e for e in reversed(list(events(command.stdout))) if "exit_status" in e), {})
    status = ended.get("exit_status")
    if not isinstance(status, str):
        status = ""
    code = CODES.get(status, OutcomeCode.INFRA_HARNESS)
    if PROMPT_TOO_LONG in str(ended.get("error")):  # to litellm one bad request among others
        code = OutcomeCode.BUDGET_TOKENS
    elif TURNS_SPENT in str(ended.get("error")):
        code = OutcomeCode.BUDGET_TURNS
    if command.timed_out:
        code = OutcomeCode.BUDGET_WALL
        message = f"killed at its deadline after {command.duration_s:.0f} s"
    elif ended:
        message = str(ended.get("error") or ended.get("submission") or "")
    else:
        message = f"it ended with exit code {command.exit_code} and without a result"
    return HarnessResult(
        code=code,
        final_message=message,
        raw_finish_reason=status or None,
        exit_code=command.exit_code,
        duration_s=command.duration_s,
        output=f"{tail(command.stdout, command.stderr)}\n{message}".strip(),
        facts={
            "program": "mini_swe_agent",
            "version": ended.get("version"),
            "turns": ended.get("turns"),
        },
    )
