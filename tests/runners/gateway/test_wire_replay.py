"""Real Claude Code traffic, replayed: every sampled token is trained, exactly as it was sampled."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.fakes.scripted_engine import ScriptedEngine, spoken
from tests.runners.gateway.running import Agent, Gateway, assembled

WIRE = Path(__file__).parents[4] / "shared" / "wire"
LINEAR = ("v328_linear_default", "v197_linear_custom")


def recorded(name: str) -> list[dict[str, Any]]:
    """Return the requests for turns of a recording, or skip where there is none."""
    file = WIRE / f"{name}.wire.jsonl.zst"
    if not file.is_file():
        pytest.skip(f"no recorded traffic ({file.name})")
    with file.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        rows = [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]
    return [row for row in rows if row["path"] == "/v1/messages"]


def with_ids(body: object, ids: dict[str, str]) -> Any:
    """Rewrite recorded tool-use ids to those that the gateway issued, as the real client would."""
    text = json.dumps(body)
    for old, new in ids.items():
        text = text.replace(old, new)
    return json.loads(text)


async def replay(
    agent: Agent, engine: ScriptedEngine, rows: list[dict[str, Any]], thinking: str | None
) -> None:
    """Send every recorded request and compare each answer with the recorded one."""
    ids: dict[str, str] = {}
    for row in rows:
        wanted = row["response"]["content"]
        engine.say(spoken(wanted, thinking=thinking))
        answer = assembled(await agent.stream(with_ids(row["body"], ids)))
        said = [block for block in answer["content"] if block["type"] != "thinking"]
        for old, new in zip(wanted, said, strict=True):
            if old["type"] == "tool_use":
                ids[old["id"]] = new["id"]
        assert said == with_ids(wanted, ids)
        assert answer["stop_reason"] == row["response"]["stop_reason"]


@pytest.mark.parametrize("thinking", [None, "I should look first.\nThen act."])
@pytest.mark.parametrize("name", LINEAR)
async def test_a_linear_recording_is_one_chain_with_every_sampled_token_trained(
    name: str, thinking: str | None, gateway: Gateway, engine: ScriptedEngine
) -> None:
    rows = recorded(name)
    agent = await gateway.session()
    await replay(agent, engine, rows, thinking)
    finished = await agent.finish()
    (chain,) = finished["segments"]
    sampled = [token for ids, _ in engine.seen.answered for token in ids]
    logprobs = [value for _, values in engine.seen.answered for value in values]
    trained = [i for i, mask in enumerate(chain["loss_mask"]) if mask]
    assert [chain["tokens"][i] for i in trained] == sampled
    assert [chain["logprobs"][i] for i in trained] == logprobs
    stats = finished["stats"]
    assert stats["trained_tokens"] == stats["sampled_tokens"] == len(sampled)
    assert (stats["turns"], stats["forks"], stats["breaks"]) == (len(rows), 0, [])
    last = engine.seen.requests[-1]["input_ids"] + engine.seen.answered[-1][0]
    assert chain["tokens"] == last, "the chain is what the model saw"
