"""What a session holds is bounded: its turns, threads, pieces and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.refusal import TURNS_SPENT
from tests.fakes.running_gateway import LIMITS, Agent, running_gateway, user

DONE = f"Done.{END}"


async def ask_until_refused(agent: Agent, texts: list[str], **headers: str) -> str:
    """Take a turn per text; return the message of the last one's refusal."""
    for number, text in enumerate(texts):
        status, body = await agent.post(
            "/v1/messages",
            agent.body([user(text)]),
            **{name: value.format(number) for name, value in headers.items()},
        )
        if number < len(texts) - 1:
            assert status == 200, body
    assert status == 403
    assert body["error"]["message"].startswith(TURNS_SPENT), "harnesses read a spent budget in it"
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    ("limits", "texts", "headers", "message"),
    [
        ({"turns": 2}, ["a", "b", "c"], {}, "2 of them"),
        (
            {"threads": 2},
            ["a", "b", "c"],
            {"x-claude-code-agent-id": "agent-{}"},
            "2 threads (sub-agents)",
        ),
        # a system prompt, a text and an answer per turn
        ({"history_pieces": 7}, ["a", "b", "c"], {}, "7 pieces of history"),
        ({"history_mb": 1}, ["a" * 600_000, "b" * 600_000, "c"], {}, "1 MB of history"),
    ],
    ids=["turns", "threads", "pieces", "bytes"],
)
async def test_a_session_that_has_had_all_it_may_is_refused(
    limits: dict[str, int],
    texts: list[str],
    headers: dict[str, str],
    message: str,
    engine: ScriptedEngine,
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    async with running_gateway(
        engine.url,
        tokenizer_dir,
        tmp_path / "run",
        limits={**LIMITS, **limits},
        max_context_tokens=10**6,
    ) as gateway:
        agent, another = await gateway.session("s1"), await gateway.session("s2")
        engine.always = Completion(DONE)
        assert message in await ask_until_refused(agent, texts, **headers)
        assert (await another.ask([user("hi")]))["stop_reason"] == "end_turn"


async def test_names_that_a_client_makes_up_are_counted_up_to_a_number(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with running_gateway(engine.url, tokenizer_dir, tmp_path / "run") as gateway:
        agent = await gateway.session()
        engine.always = Completion(DONE)
        body = {
            "model": "m",
            "messages": [user("hi")],
            "tools": [{"type": f"odd-{number}"} for number in range(500)],
        }
        assert (await agent.post("/v1/chat/completions", body))[0] == 200
        ignored = (await agent.stats())["ignored"]
        assert len(ignored) <= 101
        assert sum(ignored.values()) == 500


@pytest.mark.parametrize(
    "change",
    [{"model": "m" * 1001}, {"stop_sequences": ["x"] * 65}, {"stop_sequences": ["x" * 1001]}],
    ids=["model", "stops", "stop"],
)
async def test_what_every_event_or_token_would_repeat_is_short(
    change: dict[str, object], engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with running_gateway(engine.url, tokenizer_dir, tmp_path / "run") as gateway:
        agent = await gateway.session()
        status, body = await agent.post("/v1/messages", agent.body([user("hi")], **change))
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
