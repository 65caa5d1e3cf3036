"""Real Claude Code traffic, replayed: every sampled token is trained, exactly as it was sampled."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.session_summary import FinishReason
from runners.records.store.run_store import RunStore
from tests.fakes.running_gateway import Agent, Gateway, assemble_message

WIRE = Path(__file__).parents[4] / "shared" / "wire"
RECORDINGS = (
    *("v328_linear_default", "v197_linear_custom", "v197_subagent_custom", "v197_nest"),
    *("v197_parallel_custom", "v328_rec_parallel", "v197_compact_window"),
)
IDENTIFYING = ("x-claude-code-",)
"""Prefixes of the headers with the attribution."""

Row = dict[str, Any]


def read_recording(name: str) -> list[Row]:
    """Return the requests of a recording, or skip where there is none."""
    file = WIRE / f"{name}.wire.jsonl.zst"
    if not file.is_file():
        pytest.skip(f"no recorded traffic ({file.name})")
    with file.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        rows = [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]
    return [row for row in rows if row["path"].startswith("/v1/messages")]


def replace_ids(body: object, ids: dict[str, str]) -> Any:
    """Rewrite recorded tool-use ids to those that the gateway issued, as the real client would."""
    text = json.dumps(body)
    for old, new in ids.items():
        text = text.replace(old, new)
    return json.loads(text)


def attribution_headers(row: Row) -> dict[str, str]:
    """Return the headers with the attribution."""
    return {
        name.lower(): value
        for name, value in row["headers"]
        if name.lower().startswith(IDENTIFYING) and "session" not in name.lower()
    }


async def replay(
    agent: Agent, engine: ScriptedEngine, rows: list[Row], thinking: str | None
) -> None:
    """Send every recorded request and compare each answer with the recorded one."""
    ids: dict[str, str] = {}
    for row in rows:
        body = replace_ids(row["body"], ids)
        if row["path"] != "/v1/messages":
            status, counted = await agent.post(row["path"], body, **attribution_headers(row))
            assert (status, counted["input_tokens"] > 0) == (200, True)
            continue
        wanted = row["response"]["content"]
        engine.say(spoken(wanted, thinking=thinking))
        answer = assemble_message(await agent.stream(body, **attribution_headers(row)))
        said = [block for block in answer["content"] if block["type"] != "thinking"]
        for old, new in zip(wanted, said, strict=True):
            if old["type"] == "tool_use":
                ids[old["id"]] = new["id"]
        assert said == replace_ids(wanted, ids)
        assert answer["stop_reason"] == row["response"]["stop_reason"]


def expected_chains(rows: list[Row]) -> list[tuple[str, list[int]]]:
    """Return the chains of a recording from its labels: kind, and the turns sampled in each."""
    chains: list[tuple[str, list[int]]] = []
    growing: dict[str, list[int]] = {}
    compacted: set[str] = set()
    for turn, row in enumerate(row for row in rows if row["path"] == "/v1/messages"):
        label = row["label"]
        if label == "compact":
            chains.append(("compaction", [turn]))
            compacted.add("main")
            continue
        if label not in growing or label in compacted:
            growing[label] = []
            chains.append(("final" if label == "main" else "subagent", growing[label]))
            compacted.discard(label)
        growing[label].append(turn)
    last = growing["main"]
    return [("wipe" if k == "final" and own is not last else k, own) for k, own in chains]


@pytest.mark.parametrize("thinking", [None, "I should look first.\nThen act."])
@pytest.mark.parametrize("name", RECORDINGS)
async def test_every_chain_of_a_recording_is_found_and_all_its_sampled_tokens_are_trained(
    name: str, thinking: str | None, gateway: Gateway, engine: ScriptedEngine
) -> None:
    rows = read_recording(name)
    agent = await gateway.session()
    await replay(agent, engine, rows, thinking)
    finished = await agent.finish()
    chains, stats, seen = finished["segments"], finished["stats"], engine.seen
    found = [(chain["kind"], chain["own_turns"]) for chain in chains]
    assert found == expected_chains(rows)
    for chain in chains:
        last = chain["turns"][-1]
        model_saw = seen.requests[last]["input_ids"] + seen.answered[last][0]
        assert chain["tokens"] == model_saw, "the chain is what the model saw"
        masked = [at for at, trained in enumerate(chain["loss_mask"]) if trained]
        sampled = [
            pair for turn in chain["own_turns"] for pair in zip(*seen.answered[turn], strict=True)
        ]
        assert [(chain["tokens"][at], chain["logprobs"][at]) for at in masked] == sampled
    turns = [row for row in rows if row["path"] == "/v1/messages"]
    assert stats["trained_tokens"] == stats["sampled_tokens"]
    assert (stats["turns"], stats["forks"], stats["ambiguous"]) == (len(turns), 0, 0)
    kinds = Counter(row["label"] for row in turns)
    assert [left["kind"] for left in stats["breaks"]] == ["compaction"] * kinds["compact"]


@pytest.mark.parametrize("name", RECORDINGS)
async def test_the_summary_of_a_recording_says_what_was_on_the_wire(
    name: str, gateway: Gateway, engine: ScriptedEngine
) -> None:
    rows = [row for row in read_recording(name) if row["path"] == "/v1/messages"]
    agent = await gateway.session()
    await replay(agent, engine, rows, None)
    await agent.finish()
    with RunStore.open(gateway.run_dir, read_only=True) as store:
        found = store.session_summary(agent.session_id)
    answers = [row["response"]["content"] for row in rows]
    calls = [
        (turn, block["name"], block["input"])
        for turn, answer in enumerate(answers)
        for block in answer
        if block["type"] == "tool_use"
    ]
    last = [answer for answer, row in zip(answers, rows, strict=True) if row["label"] == "main"][-1]
    assert found.final_message == "\n".join(b["text"] for b in last if b["type"] == "text") != ""
    assert found.finish_reason is FinishReason.STOP
    assert [(c.turn, c.name, json.loads(c.arguments)) for c in found.tool_calls] == calls
    assert (found.turns, found.tool_calls_total) == (len(rows), len(calls))
    assert found.tool_turns == len({turn for turn, _, _ in calls})
    seen = engine.seen
    assert found.usage.prompt_tokens == sum(len(each["input_ids"]) for each in seen.requests)
    assert found.usage.sampled_tokens == sum(len(ids) for ids, _ in seen.answered)


async def test_a_nested_sub_agent_keeps_the_link_to_its_parent(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    rows = read_recording("v197_nest")
    agent = await gateway.session()
    await replay(agent, engine, rows, None)
    finished = await agent.finish()
    ids = {row["label"]: attribution_headers(row).get("x-claude-code-agent-id") for row in rows}
    parents = {chain["thread"]: chain["parent_thread"] for chain in finished["segments"]}
    alone = {"main": None, ids["sub1"]: None, ids["sub2"]: None}
    assert parents == alone | {ids["sub77"]: ids["sub1"]}
