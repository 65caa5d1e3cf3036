"""Claude Code: its npm program, the command line it is started with, and the reading of its end.

Every option that would make its traffic differ between two requests of one conversation is off, so
that each prompt continues the one before. The tools are a closed list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from conf.programs import program_path
from conf.sections.harness import ClaudeCodeHarnessConfig
from conf.sections.scenario import ScenarioConfig, compaction_window, has_subagents
from runners.gateway.refusal import PROMPT_TOO_LONG, TURNS_SPENT
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.external_program import (
    Event,
    ExternalProgram,
    ProgramStart,
    describe_silent_end,
    describe_timeout,
    make_result,
    read_events,
)
from runners.rollouts.harnesses.installation import NpmProgram
from runners.rollouts.harnesses.mcp_servers import START_S, fill_directory, mount_servers
from runners.sandboxes.contract import CommandResult, Sandbox


def npm_program(config: ClaudeCodeHarnessConfig) -> NpmProgram:
    """Return the program of the npm package ``@anthropic-ai/claude-code``."""
    return NpmProgram(
        kind=config.kind,
        version=config.version,
        binary=config.binary,
        path=program_path(config),
        package="@anthropic-ai/claude-code",
        platform_package="@anthropic-ai/claude-code-linux-{platform}@{version}",
        members=("claude", "bin/claude.exe"),
    )


def make_harness(
    config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig, program: Path
) -> ExternalProgram:
    """Return the harness that runs this program file."""

    def prepare_start(sandbox: Sandbox, context: HarnessContext) -> ProgramStart:
        env = build_environment(
            config,
            scenario,
            url=sandbox.gateway_url or "",
            api_key=context.api_key,
            model=context.model,
        )
        argv = [*build_command(config, scenario), *config.arguments]
        return ProgramStart(argv, {**config.env, **env})

    mounts = {INSIDE: program, **mount_servers(config.mcp_servers)}
    read = partial(read_result, servers=tuple(config.mcp_servers))
    return ExternalProgram(mounts, prepare_start, read)


# --- command line and environment --------------------------------------------------------------

INSIDE = "/opt/agentrl/claude"
"""Path of the program in the sandbox."""
TOOLS = ("Bash", "Edit", "Glob", "Grep", "Read", "Write")

ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",  # else tools and messages change in mid-thread
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # else a system block differs in every request
    "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",  # headers name the thread and compactions
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # updates, telemetry, titles
    "SHELL": "/bin/bash",  # else its prompt names the shell that it finds on this machine
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # a sub-agent's report must be its call's result
    # Gives up on a dead gateway after 20 s. The default, 10 retries, outlasts the deadline.
    "CLAUDE_CODE_MAX_RETRIES": "5",
    "IS_SANDBOX": "1",  # else it refuses to run as root where there are no namespaces
}
MODEL_NAMES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)

DISPATCHER, INVESTIGATOR = "dispatcher", "investigator"
DISPATCHER_TOOLS = ("Agent(investigator)", "Edit", "Read", "Write")
"""No search. ``Read`` is needed: ``Edit`` refuses a file that the same thread has not read."""
INVESTIGATOR_TOOLS = ("Glob", "Grep", "Read")
DISPATCH_TOOLS = ("Edit", "Glob", "Grep", "Read", "Task", "Write")
"""Union of both; ``Task`` is the name of ``Agent`` in ``--tools``."""
AGENTS = {
    DISPATCHER: {
        "description": "Fixes problems with the help of an investigator.",
        "prompt": (
            "You fix a problem in a software repository. You cannot search it: first send the "
            "investigator, with all it needs to know of the problem, and have it find where the "
            "fault is. Then read what you must change, and change it. When the problem is fixed, "
            "say in one sentence what you did."
        ),
        "tools": list(DISPATCHER_TOOLS),
    },
    INVESTIGATOR: {
        "description": "Searches and reads the repository; changes nothing.",
        "prompt": (
            "You investigate a software repository for another agent, which sees only your answer. "
            "Search and read; change nothing. Answer with what you found: paths, line numbers, and "
            "the lines that matter."
        ),
        "tools": list(INVESTIGATOR_TOOLS),
    },
}

WAIT_FOR_SERVERS = {
    # Else it takes its first turns without the tools of a slow server, and has others later.
    "MCP_CONNECTION_NONBLOCKING": "0",
    "MCP_CONNECT_TIMEOUT_MS": str(1000 * START_S),
    "MCP_TIMEOUT": str(1000 * START_S),
}

MAX_RESERVED = 20_000
COMPACTION_BUFFER = 13_000
"""Claude Code compacts when the tokens of a turn (prompt and answer) exceed
``context window - min(max_tokens, MAX_RESERVED) - COMPACTION_BUFFER``.
"""


def build_command(config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig) -> list[str]:
    """Return the command line; the task comes on stdin."""
    argv = [
        *(INSIDE, "--print", "--output-format", "stream-json", "--verbose"),
        *("--permission-mode", "bypassPermissions"),
        *("--max-turns", str(config.max_turns)),
        *("--tools", ",".join(_choose_tools(config, scenario))),
        "--strict-mcp-config",
        "--disable-slash-commands",
        "--no-session-persistence",
        *("--setting-sources", "user"),  # never the settings in the repository it works on
    ]
    if agents := _build_agents(config, scenario):
        argv += ["--agents", json.dumps(agents)]
    if has_subagents(scenario):
        argv += ["--agent", DISPATCHER]
    if config.system_prompt is not None:
        argv += ["--append-system-prompt", config.system_prompt]
    if config.disallowed_tools:
        argv += ["--disallowedTools", *config.disallowed_tools]
    if config.mcp_servers:
        argv += ["--mcp-config", json.dumps({"mcpServers": _build_servers(config)})]
    return argv


def _choose_tools(
    config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig
) -> tuple[str, ...] | list[str]:
    """Return its own tools: the scenario's, or the configured ones and that of sub-agents."""
    if has_subagents(scenario):
        return DISPATCH_TOOLS
    tools = TOOLS if config.tools is None else config.tools
    return list(dict.fromkeys((*tools, "Task"))) if config.agents else tools


def _build_agents(config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig) -> dict[str, Any]:
    """Return the definitions of all sub-agents; the scenario's dispatcher may send each of them."""
    own = {
        name: agent.model_dump(mode="json", exclude_none=True)
        for name, agent in config.agents.items()
    }
    if not has_subagents(scenario):
        return own
    sent = f"Agent({', '.join((INVESTIGATOR, *own))})"
    tools = [sent, *DISPATCHER_TOOLS[1:], *(f"mcp__{name}" for name in config.mcp_servers)]
    return {**AGENTS, DISPATCHER: {**AGENTS[DISPATCHER], "tools": tools}, **own}


def _build_servers(config: ClaudeCodeHarnessConfig) -> dict[str, Any]:
    return {
        name: {
            "command": fill_directory(name, server.command),
            "args": [fill_directory(name, word) for word in server.args],
            "env": dict(server.env),
        }
        for name, server in config.mcp_servers.items()
    }


def build_environment(
    config: ClaudeCodeHarnessConfig,
    scenario: ScenarioConfig,
    *,
    url: str,
    api_key: str,
    model: str,
) -> Mapping[str, str]:
    """Return the variables added to the sandbox's environment."""
    env = {
        **ENVIRONMENT,
        **dict.fromkeys(MODEL_NAMES, model),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": api_key,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(config.max_tokens),
    }
    if config.mcp_servers:
        env |= WAIT_FOR_SERVERS
    if has_subagents(scenario) or config.agents:
        env["CLAUDE_AGENT_SDK_DISABLE_BUILTIN_AGENTS"] = "1"
    if window := compaction_window(scenario):
        reserved = min(config.max_tokens, MAX_RESERVED) + COMPACTION_BUFFER
        env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(window + reserved)
    else:
        env["DISABLE_COMPACT"] = "1"
    return env


# --- the end -----------------------------------------------------------------------------------

CODES = {
    "completed": OutcomeCode.POLICY_FINISHED,
    "malformed_tool_use_exhausted": OutcomeCode.POLICY_FORMAT_ERROR,
    "max_turns": OutcomeCode.BUDGET_TURNS,
    "prompt_too_long": OutcomeCode.BUDGET_TOKENS,
    "blocking_limit": OutcomeCode.BUDGET_TOKENS,
    "rapid_refill_breaker": OutcomeCode.BUDGET_TOKENS,  # each summary was outgrown at once
    "timeout": OutcomeCode.BUDGET_WALL,
    "model_gone": OutcomeCode.INFRA_MODEL,
    "gateway_gone": OutcomeCode.INFRA_GATEWAY,
}
"""By ``terminal_reason``, or by one of our own last three; any other is the program's failure."""
ENGINE_DOWN = (429, 500, 502, 503, 504, 529)
"""HTTP statuses by which the gateway reports that the engine does not answer."""


def read_result(command: CommandResult, servers: Sequence[str] = ()) -> HarnessResult:
    """Turn the end of the program into a result; never raises.

    It prints one JSON event per line: ``system/init`` first, ``result`` last. ``servers``: those
    that it was to start.
    """
    events = list(read_events(command.stdout))
    last = events[-1] if events else {}
    end = last if last.get("type") == "result" else {}
    reason: str | None = None
    if missing := _missing_servers(events, servers):
        reason, message = "servers", f"these MCP servers did not start: {', '.join(missing)}"
    elif end:
        reason, message = _end_reason(end), _end_text(end)
    elif command.timed_out:
        # A deadline that passes while it retries a request is not the policy's failure but ours.
        retrying = last.get("subtype") == "api_retry"
        reason = _failed_service(last.get("error_status")) if retrying else "timeout"
        message = describe_timeout(command)
    else:
        message = describe_silent_end(command)
    code = CODES.get(reason or "", OutcomeCode.INFRA_HARNESS)
    return make_result(command, code, message, _raw_reason(end), _collect_facts(events, end))


def _raw_reason(end: Event) -> str | None:
    """Return its own word for the end; versions before about 2.1.200 have only ``subtype``."""
    reason = end.get("terminal_reason") or end.get("subtype")
    return reason if isinstance(reason, str) else None


def _end_reason(end: Event) -> str | None:
    """Return a key of ``CODES``, or a reason that is not among them."""
    reason = _raw_reason(end)
    if reason in ("api_error", "model_error"):
        if TURNS_SPENT in _end_text(end):
            return "max_turns"
        if PROMPT_TOO_LONG in _end_text(end):  # refused by the engine, when the stream was open
            return "prompt_too_long"
        return _failed_service(end.get("api_error_status"))
    if reason in ("success", "completed"):
        return None if end.get("is_error") else "completed"
    return "max_turns" if reason == "error_max_turns" else reason


def _missing_servers(events: list[Event], servers: Sequence[str]) -> list[str]:
    """Return the servers without a connection when it began; it goes on without their tools."""
    begun = next((event for event in events if event.get("subtype") == "init"), None)
    states = begun.get("mcp_servers") if begun else None
    if not isinstance(states, list):
        return []
    up = {s.get("name") for s in states if isinstance(s, dict) and s.get("status") == "connected"}
    return [name for name in servers if name not in up]


def _failed_service(status: object) -> str:
    return "model_gone" if status in ENGINE_DOWN else "gateway_gone"


def _end_text(end: Event) -> str:
    text = end.get("result")
    if isinstance(text, str):
        return text
    errors = end.get("errors")
    return "\n".join(map(str, errors)) if isinstance(errors, list) else ""


def _collect_facts(events: list[Event], end: Event) -> dict[str, Any]:
    """Return the statements about itself that the rollout's record keeps."""
    start = next((event for event in events if event.get("subtype") == "init"), {})
    boundaries = [event for event in events if event.get("subtype") == "compact_boundary"]
    stats, usage = end.get("subagent_stats"), end.get("usage")
    return {
        "program": "claude_code",
        "version": start.get("claude_code_version"),
        "turns": end.get("num_turns"),
        "compactions": len(boundaries),
        "subagents": stats.get("spawned") if isinstance(stats, dict) else None,
        "input_tokens": usage.get("input_tokens") if isinstance(usage, dict) else None,
        "output_tokens": usage.get("output_tokens") if isinstance(usage, dict) else None,
    }
