"""Compactions that never happened are counted, and reported once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.tree.recognition import COMPACTION_PROMPTS, COMPACTION_SUMMARIES
from tests.fakes.running_gateway import echo, results, running_gateway, user

LOOK = spoken([{"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}])
WINDOW = 500
"""Tokens; the first prompt has about 250."""
LONG = "line\n" * 100


@pytest.mark.parametrize(
    ("compacts", "window", "missed"), [(False, WINDOW, 2), (True, WINDOW, 0), (False, None, 0)]
)
async def test_turns_that_go_on_beyond_the_window_are_counted_and_reported_once(
    compacts: bool,
    window: int | None,
    missed: int,
    engine: ScriptedEngine,
    tokenizer_dir: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.say(*[LOOK] * 6)
    async with running_gateway(
        engine.url, tokenizer_dir, tmp_path / "run", compaction_window=window
    ) as gateway:
        agent = await gateway.session()
        messages = [user("fix it")]
        with caplog.at_level(logging.WARNING, "runners.gateway.sessions.compaction_watch"):
            for number, text in enumerate(("short", LONG, "short", "short", "short")):
                answer = await agent.ask(messages)
                messages += [echo(answer), results(answer, text)]
                if compacts and number == 3:
                    summing = {"type": "text", "text": COMPACTION_PROMPTS[0]}
                    last = {"role": "user", "content": [*messages[-1]["content"], summing]}
                    await agent.ask([*messages[:-1], last])
                    messages = [user(f"{COMPACTION_SUMMARIES[0]}: it is short")]
            if not compacts:
                await agent.ask(messages)
        assert len(engine.seen.requests[0]["input_ids"]) < WINDOW
        stats = await agent.stats()
    assert stats["compactions_missed"] == missed
    assert len(caplog.messages) == bool(missed)
    if missed:
        assert "was to be summed up at scenario.window_tokens=500" in caplog.messages[0]
