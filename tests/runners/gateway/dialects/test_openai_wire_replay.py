"""Real traffic of Codex and mini-swe-agent, replayed: one chain, trained exactly as sampled."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.session_summary import FinishReason
from runners.records.store.run_store import RunStore
from tests.fakes.openai_clients import (
    assembled_response,
    chat,
    response_events,
    stream,
)
from tests.fakes.running_gateway import Agent, Gateway

WIRE = Path(__file__).parents[5] / "shared" / "wire"
THOUGHT = "I should look first.\nThen act."


def read_recording(name: str) -> list[dict[str, Any]]:
    """Return the requests of a recording, or skip where there is none."""
    file = WIRE / f"{name}.wire.jsonl.zst"
    if not file.is_file():
        pytest.skip(f"no recorded traffic ({file.name})")
    with file.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as lines:
        return [json.loads(line) for line in io.TextIOWrapper(lines, encoding="utf-8")]


class Ids:
    """The ids of a recording, and those that the gateway issued in their place."""

    def __init__(self) -> None:
        self._new: dict[str, str] = {}

    def learn(self, old: object, new: object) -> None:
        """Note every id of a recorded answer that came out as another one."""
        match old, new:
            case dict(), dict():
                for key in old.keys() & new.keys():
                    if key in ("id", "call_id"):
                        self._new[old[key]] = new[key]
                    self.learn(old[key], new[key])
            case list(), list():
                for one, other in zip(old, new, strict=True):
                    self.learn(one, other)

    def written(self, body: object) -> Any:
        """Rewrite ids as the real client would."""
        text = json.dumps(body)
        for old, new in self._new.items():
            text = text.replace(old, new)
        return json.loads(text)


def chat_blocks(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if message["content"]:
        yield {"type": "text", "text": message["content"]}
    for call in message.get("tool_calls", ()):
        value = orjson.loads(call["function"]["arguments"])
        yield {"type": "tool_use", "name": call["function"]["name"], "input": value}


def item_blocks(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        if item["type"] == "message":
            yield {"type": "text", "text": item["content"][0]["text"]}
        else:
            value = orjson.loads(item["arguments"])
            yield {"type": "tool_use", "name": item["name"], "input": value}


async def replay_mini(
    agent: Agent, engine: ScriptedEngine, rows: list[dict[str, Any]], *, thinks: bool
) -> None:
    ids = Ids()
    for row in rows:
        wanted = row["response"]["message"]
        engine.say(spoken(chat_blocks(wanted), thinking=THOUGHT if thinks else None))
        answer = await chat(agent, ids.written(row["body"]))
        said = answer["choices"][0]["message"]
        ids.learn(wanted, said)
        assert said == ids.written(wanted)
        assert answer["choices"][0]["finish_reason"] == "tool_calls"


async def replay_codex(
    agent: Agent, engine: ScriptedEngine, rows: list[dict[str, Any]], *, thinks: bool
) -> None:
    ids = Ids()
    for row in rows:
        wanted = row["response"]["items"]
        thoughts = [item for item in wanted if item["type"] == "reasoning"]
        acts = [item for item in wanted if item["type"] != "reasoning"]
        thinking = thoughts[0]["content"][0]["text"] if thoughts else THOUGHT
        engine.say(spoken(item_blocks(acts), thinking=thinking if thinks else None))
        headers = {
            name: value
            for name, value in row["headers"]
            if name.lower() not in ("authorization", "host", "content-length")
        }
        whole = await stream(agent, "/v1/responses", ids.written(row["body"]), **headers)
        answer = assembled_response(response_events(whole))
        said = answer["output"]
        assert answer["status"] == "completed"
        if not thoughts or not thinks:  # this one was not recorded
            said, wanted = [item for item in said if item["type"] != "reasoning"], acts
        ids.learn(wanted, said)
        assert said == ids.written(wanted)


BLOCKS: dict[str, Callable[[Any], Iterator[dict[str, Any]]]] = {
    "mini": lambda response: chat_blocks(response["message"]),
    "codex": lambda response: item_blocks(
        [item for item in response["items"] if item["type"] != "reasoning"]
    ),
}
REPLAYS = {"mini": replay_mini, "codex": replay_codex}


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("name", REPLAYS)
async def test_a_recording_is_one_chain_with_every_sampled_token_trained(
    name: str, thinks: bool, gateway: Gateway, engine: ScriptedEngine
) -> None:
    rows = read_recording(name)
    agent = await gateway.session()
    await REPLAYS[name](agent, engine, rows, thinks=thinks)
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
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        summary = store.session_summary(agent.session_id)
    said = [list(BLOCKS[name](row["response"])) for row in rows]
    calls = [
        (turn, block["name"], block["input"])
        for turn, blocks in enumerate(said)
        for block in blocks
        if block["type"] == "tool_use"
    ]
    assert [(c.turn, c.name, json.loads(c.arguments)) for c in summary.tool_calls] == calls != []
    assert summary.final_message == "".join(b["text"] for b in said[-1] if b["type"] == "text")
    assert summary.finish_reason is FinishReason.STOP
    assert (summary.turns, summary.tool_turns) == (len(rows), len({turn for turn, _, _ in calls}))
    assert summary.usage.sampled_tokens == len(sampled)
