"""How Claude Code is started: its command line and environment, per scenario.

Everything optional that would make its traffic differ between two requests of one conversation is
off, so that each prompt continues the one before. Tools are a strict list. No secret and nothing of
the task stands in the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from conf.sections.harness import ClaudeCodeHarnessConfig
from conf.sections.scenario import (
    CompactScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
    SubagentScenarioConfig,
)

INSIDE = "/opt/agentrl/claude"
TOOLS = ("Bash", "Edit", "Glob", "Grep", "Read", "Write")

ENVIRONMENT = {
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",  # tools and messages that change in mid-thread
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a system block that differs from request to request
    "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",  # says which requests compact, and whose they are
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # updates, telemetry, titles
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # a sub-agent's report is its call's result
    # A gateway that is gone is found out in 20 s; the default, 10, takes longer than a deadline.
    "CLAUDE_CODE_MAX_RETRIES": "5",
    "IS_SANDBOX": "1",  # without namespaces it would refuse to run as root
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
"""It cannot search. ``Read`` is left to it because ``Edit`` refuses a file unread by its thread."""
INVESTIGATOR_TOOLS = ("Glob", "Grep", "Read")
DISPATCH_TOOLS = ("Edit", "Glob", "Grep", "Read", "Task", "Write")
"""What either has; ``Task`` is the program's name for ``Agent``."""
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

MOST_RESERVED = 20_000
COMPACTION_BUFFER = 13_000
"""It compacts when a turn's prompt and answer exceed its context window, less ``max_tokens`` (at
most ``MOST_RESERVED``), less this.
"""


def command(config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig) -> list[str]:
    """Return the command line; the task comes on stdin."""
    dispatches = _dispatches(scenario)
    line = [
        *(INSIDE, "--print", "--output-format", "stream-json", "--verbose"),
        *("--permission-mode", "bypassPermissions"),
        *("--max-turns", str(config.max_turns)),
        *("--tools", ",".join(DISPATCH_TOOLS if dispatches else TOOLS)),
        "--strict-mcp-config",
        "--disable-slash-commands",
        "--no-session-persistence",
        *("--setting-sources", "user"),  # not those of the repository that it works on
    ]
    if dispatches:
        line += ["--agents", json.dumps(AGENTS), "--agent", DISPATCHER]
    return line


def environment(
    config: ClaudeCodeHarnessConfig,
    scenario: ScenarioConfig,
    *,
    url: str,
    api_key: str,
    model: str,
) -> Mapping[str, str]:
    """Return what is added to the sandbox's environment."""
    chosen = {
        **ENVIRONMENT,
        **dict.fromkeys(MODEL_NAMES, model),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": api_key,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(config.max_tokens),
    }
    if _dispatches(scenario):
        chosen["CLAUDE_AGENT_SDK_DISABLE_BUILTIN_AGENTS"] = "1"
    if isinstance(scenario, CompactScenarioConfig | MixedScenarioConfig):
        reserved = min(config.max_tokens, MOST_RESERVED) + COMPACTION_BUFFER
        chosen["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(scenario.window_tokens + reserved)
    else:
        chosen["DISABLE_COMPACT"] = "1"
    return chosen


def _dispatches(scenario: ScenarioConfig) -> bool:
    return isinstance(scenario, SubagentScenarioConfig | MixedScenarioConfig)
