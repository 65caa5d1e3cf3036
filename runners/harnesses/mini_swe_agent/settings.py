"""How mini-swe-agent is started: its command line, settings and environment.

It has one loop and one tool: only scenario=linear. What varies from turn to turn is nothing but
the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from conf.sections.harness import MiniSweAgentHarnessConfig

INSIDE = "/opt/agentrl/mini_swe_agent"
"""The package."""
START = "/opt/agentrl/mini_start"
"""``start.py``; its suffix is that of the file."""
KEY = "AGENTRL_API_KEY"

ENVIRONMENT = {
    "MSWEA_CONFIGURED": "true",  # asks nobody for a model and a key
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini-swe-agent",
    "MSWEA_COST_TRACKING": "ignore_errors",  # the policy has no price
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3",  # 4 s and 8 s apart: longer than a restart
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # fetches no price list
}


def settings(config: MiniSweAgentHarnessConfig, *, url: str, model: str, workdir: str) -> list[str]:
    """Return the ``-c`` settings; the key is not among them."""
    chosen: dict[str, object] = {
        "agent.step_limit": config.max_turns,
        "agent.cost_limit": 0,
        "environment.cwd": workdir,
        "environment.timeout": config.command_s,
        "model.model_class": "litellm",
        "model.model_name": f"openai/{model}",
        "model.model_kwargs.api_base": f"{url}/v1",
        "model.model_kwargs.max_tokens": config.max_tokens,
    }
    given = [f"{key}={json.dumps(value)}" for key, value in chosen.items()]
    return ["mini.yaml", *given]


def command(start: str, chosen: list[str], packages: str = INSIDE) -> list[str]:
    """Return the command line; the task comes on stdin."""
    return ["python", "-I", "-S", start, packages, json.dumps(chosen)]


def environment(api_key: str) -> Mapping[str, str]:
    """Return what is added to the sandbox's environment."""
    return {**ENVIRONMENT, KEY: api_key}
