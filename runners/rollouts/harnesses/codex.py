"""Codex: its npm program, the command line it is started with, and the reading of its end.

Its own sandbox is off because ours is around it. Off as well is everything that asks a person or a
service of OpenAI's, or that reads a file of the repository.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from conf.cache import cache_root
from conf.programs import program_path
from conf.sections.extensions import SubagentConfig
from conf.sections.harness import CodexHarnessConfig
from conf.sections.scenario import ScenarioConfig, compaction_window, has_subagents
from runners.gateway.refusal import TURNS_SPENT
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
from runners.rollouts.harnesses.installation import NpmProgram, ProgramError
from runners.rollouts.harnesses.mcp_servers import START_S, fill_directory, mount_servers
from runners.sandboxes.contract import CommandResult, Sandbox
from runners.system.processes import atomic_file


def npm_program(config: CodexHarnessConfig) -> NpmProgram:
    """Return the program of the npm package ``@openai/codex``, one static file."""
    return NpmProgram(
        kind=config.kind,
        version=config.version,
        binary=config.binary,
        path=program_path(config),
        package="@openai/codex",
        platform_package="@openai/codex@{version}-linux-{platform}",
        members=("vendor/*/bin/codex",),
    )


def make_harness(
    config: CodexHarnessConfig, scenario: ScenarioConfig, program: Path
) -> ExternalProgram:
    """Return the harness that runs this program file."""

    def prepare_start(sandbox: Sandbox, context: HarnessContext) -> ProgramStart:
        url = sandbox.gateway_url or ""
        *argv, stdin = build_command(config, scenario, url=url, model=context.model)
        env = {**config.env, **build_environment(context.api_key)}
        return ProgramStart([*argv, *config.arguments, stdin], env)

    read = partial(read_result, version=config.version)
    roles = {_role_path(name): _write_role(agent) for name, agent in config.agents.items()}
    mounts = {INSIDE: program, **roles, **mount_servers(config.mcp_servers)}
    return ExternalProgram(mounts, prepare_start, read)


# --- command line and environment --------------------------------------------------------------

INSIDE = "/opt/agentrl/codex"
"""Path of the program in the sandbox."""
KEY = "AGENTRL_API_KEY"
"""Environment variable from which it reads the provider's key."""
PROVIDER = "agentrl"

FEATURES_OFF = (
    "apps",
    "goals",
    "hooks",
    "image_generation",
    "multi_agent",  # stays on where the scenario has sub-agents
    "plugins",
    "shell_snapshot",  # would run the user's shell start files
    "skill_search",
    "tool_suggest",
    "view_image",
)
UNLIMITED = 1_000_000_000
"""Tokens. Codex must not judge by itself what fits: only the gateway knows the model's context."""
SUBAGENT_DEPTH = 1
"""Sub-agents start no sub-agents."""
RETRIES = 4
"""Few enough to give up on a dead gateway within seconds."""
IDLE_MS = 300_000
"""It repeats a request whose stream was silent for so long; the gateway pings every few seconds."""


def build_command(
    config: CodexHarnessConfig, scenario: ScenarioConfig, *, url: str, model: str
) -> list[str]:
    """Return the command line; the task comes on stdin."""
    keep = {"multi_agent"} if has_subagents(scenario) else set()
    off = [name for name in FEATURES_OFF if name not in keep]
    argv = [
        *(INSIDE, "exec", "--json", "--color", "never"),
        "--dangerously-bypass-approvals-and-sandbox",
        *("--skip-git-repo-check", "--ephemeral", "--ignore-user-config", "--ignore-rules"),
        *("--model", model),
    ]
    for name in off:
        argv += ["--disable", name]
    for key, value in {**_build_settings(scenario, url), **_build_extensions(config)}.items():
        argv += ["-c", f"{key}={_to_toml(value)}"]
    return [*argv, "-"]


def build_environment(api_key: str) -> Mapping[str, str]:
    """Return the variables added to the sandbox's environment."""
    return {KEY: api_key}


def _build_settings(scenario: ScenarioConfig, url: str) -> dict[str, str | int | bool]:
    """Return the entries of ``config.toml``."""
    provider = f"model_providers.{PROVIDER}"
    return {
        "model_provider": PROVIDER,
        f"{provider}.name": PROVIDER,
        f"{provider}.base_url": f"{url}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": KEY,
        f"{provider}.request_max_retries": RETRIES,
        f"{provider}.stream_max_retries": RETRIES,
        f"{provider}.stream_idle_timeout_ms": IDLE_MS,
        "model_context_window": UNLIMITED,
        "model_auto_compact_token_limit": compaction_window(scenario) or UNLIMITED,
        "web_search": "disabled",
        "project_doc_max_bytes": 0,  # not the user's but the repository's AGENTS.md
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
        "skills.include_instructions": False,
        "agents.max_depth": SUBAGENT_DEPTH,
    }


def _build_extensions(config: CodexHarnessConfig) -> dict[str, Any]:
    """Return the entries of what the user adds."""
    added: dict[str, Any] = {}
    if config.system_prompt is not None:
        added["developer_instructions"] = config.system_prompt
    for name, agent in config.agents.items():
        added[f"agents.{name}.description"] = agent.description
        added[f"agents.{name}.config_file"] = _role_path(name)
    for name, server in config.mcp_servers.items():
        key = f"mcp_servers.{name}"
        added[f"{key}.command"] = fill_directory(name, server.command)
        added[f"{key}.args"] = [fill_directory(name, word) for word in server.args]
        added |= {f"{key}.env.{variable}": value for variable, value in server.env.items()}
        added[f"{key}.startup_timeout_sec"] = START_S
        added[f"{key}.required"] = True  # else it goes on without the tools
    return added


def _to_toml(value: str | float | list[str]) -> str:
    """Return a value as TOML: JSON, but for surrogates and DEL, which TOML does not take."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _role_path(name: str) -> str:
    return f"/opt/agentrl/codex-roles/{name}.toml"


def _write_role(agent: SubagentConfig) -> Path:
    """Return the file with a sub-agent's instructions, in the user's cache; raises ProgramError."""
    text = f"developer_instructions = {_to_toml(agent.prompt)}\n".encode()
    folder = cache_root() / "programs" / "codex-roles"
    path = folder / f"{hashlib.sha256(text).hexdigest()[:16]}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with atomic_file(path) as partial_path:
                partial_path.write_bytes(text)
    except OSError as error:
        raise ProgramError(
            f"harness.agents: cannot write {path}: {error}; make it writable, or choose another "
            "cache with XDG_CACHE_HOME"
        ) from error
    return path


# --- the end -----------------------------------------------------------------------------------

CODES = {
    "completed": OutcomeCode.POLICY_FINISHED,
    "turns": OutcomeCode.BUDGET_TURNS,
    "context": OutcomeCode.BUDGET_TOKENS,
    "timeout": OutcomeCode.BUDGET_WALL,
    "model": OutcomeCode.INFRA_MODEL,
    "gateway": OutcomeCode.INFRA_GATEWAY,
}
"""By the reason of the end; any other is the program's failure."""
PATTERNS = (
    ("turns", re.compile(re.escape(TURNS_SPENT))),
    ("context", re.compile(r"context window")),
    ("model", re.compile(r"unexpected status (429|5\d\d)|the engine (cannot answer|failed)")),
    ("gateway", re.compile(r"unexpected status \d+|error sending request|stream disconnected")),
)
"""Reason of an error message, by the first pattern that it matches.

Codex reports an error only as a sentence, and no contract fixes its wording.
"""


def read_result(command: CommandResult, version: str) -> HarnessResult:
    """Turn the end of the program, which is of this version, into a result; never raises.

    It prints one JSON event per line: ``thread.started`` first, ``turn.completed`` or
    ``turn.failed`` last.
    """
    events = list(read_events(command.stdout))
    last = events[-1] if events else {}
    if last.get("type") == "turn.completed":
        reason, message = "completed", _final_message(events)
    elif command.timed_out:
        # A deadline that passes while it retries a request is not the policy's failure but ours.
        error = _last_error(events[-1:])
        reason = _error_reason(error) if error else "timeout"
        message = describe_timeout(command)
    else:
        error = _last_error(events)
        reason = _error_reason(error)
        message = error or describe_silent_end(command)
    code = CODES.get(reason, OutcomeCode.INFRA_HARNESS)
    return make_result(command, code, message, last.get("type"), _collect_facts(events, version))


def _last_error(events: list[Event]) -> str:
    """Return the last error message, "" if there was none."""
    for event in reversed(events):
        error = event.get("error") if event.get("type") == "turn.failed" else event
        if event.get("type") in ("turn.failed", "error") and isinstance(error, dict):
            return str(error.get("message", ""))
    return ""


def _error_reason(error: str) -> str:
    return next((reason for reason, pattern in PATTERNS if pattern.search(error)), "")


def _completed_items(events: list[Event], kind: str) -> list[dict[str, Any]]:
    completed = (event.get("item") for event in events if event.get("type") == "item.completed")
    return [item for item in completed if isinstance(item, dict) and item.get("type") == kind]


def _final_message(events: list[Event]) -> str:
    messages = _completed_items(events, "agent_message")
    return str(messages[-1].get("text", "")) if messages else ""


def _collect_facts(events: list[Event], version: str) -> dict[str, Any]:
    """Return the statements about itself that the rollout's record keeps."""
    usages = (event["usage"] for event in events if isinstance(event.get("usage"), dict))
    usage: dict[str, Any] = next(usages, {})
    calls = _completed_items(events, "collab_tool_call")
    spawned = [call for call in calls if call.get("tool") == "spawn_agent"]
    return {
        "program": "codex",
        "version": version,
        "commands": len(_completed_items(events, "command_execution")),
        "subagents": len(spawned),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
    }
