"""Agents of sessions that several gateway processes serve."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from agentrl.testing.completions import spoken
from runners.gateway.client import GatewayAdmin
from tests.fakes.running_gateway import Agent, Gateway, echo, results, user

CALL = spoken(
    [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}},
    ]
)


async def open_agent(
    admin: GatewayAdmin, http: aiohttp.ClientSession, name: str, task: str | None = None
) -> Agent:
    """Open a session, and return an agent at the URL of its process."""
    made, key = await admin.create_session(name, task=task, seed=int(name[1:]))
    home = admin.home(made)
    gateway = Gateway(home.url, str(home.control), admin, admin.admin_key, Path(), http)
    return Agent(gateway, made, key)


async def converse(agent: Agent, *, stream: bool, turns: int = 3) -> None:
    """Take turns, each of which continues the one before."""
    messages = [user(f"Task of {agent.session_id}.")]
    for _ in range(turns):
        if stream:
            events = await agent.stream(agent.body(messages))
            assert events[-1]["type"] == "message_stop"
        answer = await agent.ask(messages)  # of a turn that was streamed: the same answer again
        messages += [echo(answer), results(answer, "calc.py")]
