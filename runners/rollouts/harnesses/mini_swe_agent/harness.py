"""mini-swe-agent: the settings it is started with, and the reading of its end.

It has one loop and one tool, so only ``scenario=linear``. Nothing but the conversation changes from
turn to turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from conf.sections.harness import MiniSweAgentHarnessConfig
from runners.gateway.refusal import PROMPT_TOO_LONG, TURNS_SPENT
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.external_program import (
    ExternalProgram,
    ProgramStart,
    describe_silent_end,
    describe_timeout,
    make_result,
    read_events,
)
from runners.sandboxes.contract import CommandResult, Sandbox, compile_program

START = Path(__file__).with_name("start.py")
START_PROGRAM = compile_program(START)
START_INSIDE = f"/opt/agentrl/mini_start{START_PROGRAM.suffix}"
PACKAGES_INSIDE = "/opt/agentrl/mini_swe_agent"
KEY = "AGENTRL_API_KEY"
"""Environment variable from which ``start.py`` reads the session's key."""

ENVIRONMENT = {
    "MSWEA_CONFIGURED": "true",  # else it asks a person for a model and a key
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini-swe-agent",
    "MSWEA_COST_TRACKING": "ignore_errors",  # the policy has no price
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",  # waits 4 s and 8 s: a gateway restarts in less
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a price list
}

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
"""By ``exit_status``: its own words and the names of litellm's errors; any other is the program's
failure.
"""


def make_harness(config: MiniSweAgentHarnessConfig, packages: Path) -> ExternalProgram:
    """Return the harness that runs the package in this directory with the sandbox's Python."""

    def prepare_start(sandbox: Sandbox, context: HarnessContext) -> ProgramStart:
        settings = build_settings(
            config, url=sandbox.gateway_url or "", model=context.model, workdir=sandbox.workdir
        )
        return ProgramStart(
            build_command(START_INSIDE, settings), build_environment(context.api_key)
        )

    mounts = {PACKAGES_INSIDE: packages, START_INSIDE: START_PROGRAM}
    return ExternalProgram(mounts, prepare_start, read_result)


def build_settings(
    config: MiniSweAgentHarnessConfig, *, url: str, model: str, workdir: str
) -> list[str]:
    """Return the ``-c`` settings; the key is not among them."""
    settings: dict[str, object] = {
        "agent.step_limit": config.max_turns,
        "agent.cost_limit": 0,
        "environment.cwd": workdir,
        "environment.timeout": config.command_s,
        "model.model_class": "litellm",
        "model.model_name": f"openai/{model}",
        "model.model_kwargs.api_base": f"{url}/v1",
        "model.model_kwargs.max_tokens": config.max_tokens,
    }
    return ["mini.yaml", *(f"{key}={json.dumps(value)}" for key, value in settings.items())]


def build_command(start: str, settings: list[str], packages: str = PACKAGES_INSIDE) -> list[str]:
    """Return the command line; the task comes on stdin."""
    return ["python", "-I", "-S", start, packages, json.dumps(settings)]


def build_environment(api_key: str) -> Mapping[str, str]:
    """Return the variables added to the sandbox's environment."""
    return {**ENVIRONMENT, KEY: api_key}


def read_result(command: CommandResult) -> HarnessResult:
    """Turn the end of the program into a result; never raises.

    The last line that ``start.py`` prints is the JSON object of its end.
    """
    events = reversed(list(read_events(command.stdout)))
    end = next((event for event in events if "exit_status" in event), {})
    status, error = end.get("exit_status"), str(end.get("error"))
    code = CODES.get(status if isinstance(status, str) else "", OutcomeCode.INFRA_HARNESS)
    # To litellm both refusals are ordinary request errors: only the gateway's text tells them.
    if PROMPT_TOO_LONG in error:
        code = OutcomeCode.BUDGET_TOKENS
    elif TURNS_SPENT in error:
        code = OutcomeCode.BUDGET_TURNS
    if command.timed_out:
        code, message = OutcomeCode.BUDGET_WALL, describe_timeout(command)
    elif end:
        message = str(end.get("error") or end.get("submission") or "")
    else:
        message = describe_silent_end(command)
    facts = {
        "program": "mini_swe_agent",
        "version": end.get("version"),
        "turns": end.get("turns"),
    }
    return make_result(command, code, message, status or None, facts)
