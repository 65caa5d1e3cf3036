"""The environment of a program that is attached to the gateway by hand, not in a sandbox."""

from __future__ import annotations

import os

from conf.sections.section import SERVER_KEYS

MODEL = "policy"
"""The one name that ``GET /v1/models`` lists; a request may name any other."""
WITHHELD = (*SERVER_KEYS, "ANTHROPIC_AUTH_TOKEN")
"""Keys of servers are not the program's; a token of Anthropic's would be sent beside our key."""


def program_environment(url: str, api_key: str) -> dict[str, str]:
    """Return this process's environment with a gateway's address and a session's key, under the
    names that the clients of OpenAI and Anthropic read.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in WITHHELD}
    return inherited | {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": api_key,
        "OPENAI_MODEL": MODEL,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": api_key,
        "ANTHROPIC_MODEL": MODEL,
    }
