"""How Codex is started: its command line and environment, per scenario.

Its own sandbox is off, ours is around it; so is everything that asks a person, a service of
OpenAI's, or a file of the repository's. No secret and nothing of the task stands in the command
line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from conf.sections.scenario import (
    CompactScenarioConfig,
    MixedScenarioConfig,
    ScenarioConfig,
    SubagentScenarioConfig,
)

INSIDE = "/opt/agentrl/codex"
KEY = "AGENTRL_API_KEY"
"""Variable that the provider's key is read from."""
PROVIDER = "agentrl"

FEATURES_OFF = (
    "apps",
    "goals",
    "hooks",
    "image_generation",
    "multi_agent",  # on again where the scenario has sub-agents
    "plugins",
    "shell_snapshot",  # runs the user's shell start files
    "skill_search",
    "tool_suggest",
    "view_image",
)
ENDLESS = 1_000_000_000
"""Tokens: it never thinks that a conversation is long; the gateway knows what fits the model."""
SUBAGENT_DEPTH = 1
"""Sub-agents send no sub-agents."""
RETRIES = 4
"""A gateway that is gone is found out in seconds."""
IDLE_MS = 300_000
"""Without a word of the stream, not even a ping, it asks again after so long."""


def command(scenario: ScenarioConfig, *, url: str, model: str) -> list[str]:
    """Return the command line; the task comes on stdin."""
    dispatches = isinstance(scenario, SubagentScenarioConfig | MixedScenarioConfig)
    off = [name for name in FEATURES_OFF if not (dispatches and name == "multi_agent")]
    line = [
        *(INSIDE, "exec", "--json", "--color", "never"),
        "--dangerously-bypass-approvals-and-sandbox",
        *("--skip-git-repo-check", "--ephemeral", "--ignore-user-config", "--ignore-rules"),
        *("--model", model),
    ]
    for name in off:
        line += ["--disable", name]
    for key, value in _settings(scenario, url).items():
        line += ["-c", f"{key}={json.dumps(value)}"]
    return [*line, "-"]


def environment(api_key: str) -> Mapping[str, str]:
    """Return what is added to the sandbox's environment."""
    return {KEY: api_key}


def _settings(scenario: ScenarioConfig, url: str) -> dict[str, str | int | bool]:
    """Return what ``config.toml`` would hold; JSON scalars are TOML ones."""
    provider = f"model_providers.{PROVIDER}"
    chosen: dict[str, str | int | bool] = {
        "model_provider": PROVIDER,
        f"{provider}.name": PROVIDER,
        f"{provider}.base_url": f"{url}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": KEY,
        f"{provider}.request_max_retries": RETRIES,
        f"{provider}.stream_max_retries": RETRIES,
        f"{provider}.stream_idle_timeout_ms": IDLE_MS,
        "model_context_window": ENDLESS,
        "model_auto_compact_token_limit": ENDLESS,
        "web_search": "disabled",
        "project_doc_max_bytes": 0,  # the repository's AGENTS.md is not its user's
        "analytics.enabled": False,
        "check_for_update_on_startup": False,
        "skills.include_instructions": False,
        "agents.max_depth": SUBAGENT_DEPTH,
    }
    if isinstance(scenario, CompactScenarioConfig | MixedScenarioConfig):
        chosen["model_auto_compact_token_limit"] = scenario.window_tokens
    return chosen
