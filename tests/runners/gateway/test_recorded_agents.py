"""Requests of real programs, replayed: every branch is named right, every sampled token trained."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from tests.fakes.running_gateway import Agent, Gateway

RECORDED = Path(__file__).parents[2] / "fakes" / "recorded" / "agents"
RECORDINGS = sorted(file.stem for file in RECORDED.glob("*.json"))

Request = dict[str, Any]


def read_recording(name: str) -> list[Request]:
    """Return the requests of a recording."""
    requests: list[Request] = json.loads((RECORDED / f"{name}.json").read_text())["requests"]
    return requests


def issued_ids(answer: dict[str, Any]) -> list[str]:
    """Return the ids of the calls in an answer of any API."""
    if "choices" in answer:
        calls = answer["choices"][0]["message"].get("tool_calls", ())
        return [call["id"] for call in calls]
    if "candidates" in answer:
        parts = answer["candidates"][0]["content"]["parts"]
        return [part["functionCall"]["id"] for part in parts if "functionCall" in part]
    items = answer.get("output") or answer["content"]
    return [item.get("call_id") or item["id"] for item in items if "name" in item]


async def replay(agent: Agent, engine: ScriptedEngine, requests: list[Request]) -> None:
    """Send the requests in their order, with the ids that the gateway issued."""
    ids: dict[str, str] = {}
    for each in requests:
        path = each["path"].replace(":streamGenerateContent", ":generateContent")
        text = json.dumps({**each["body"], "stream": False})
        for old, new in ids.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        if each["answer"] is not None:
            engine.say(spoken(each["answer"]))
        status, answer = await agent.post(path, text.encode(), **each["headers"])
        assert status == (400 if each["label"] == "refused" else 200), answer
        if each["answer"] is not None:
            recorded = [block["id"] for block in each["answer"] if block["type"] == "tool_use"]
            ids |= dict(zip(recorded, issued_ids(answer), strict=True))


def expected_chains(labels: list[str]) -> list[tuple[str, list[int]]]:
    """Return the chains of a recording from its labels: kind, and the turns sampled in each.

    ``compact`` sums up the main agent's history, ``summary`` does so without effect; ``handoff``,
    ``rewrite`` and ``edit`` begin it anew, as ``sub1!`` does with a sub-agent's.
    """
    chains: list[tuple[str, str, list[int]]] = []
    growing: dict[str, list[int]] = {}
    edited: list[list[int]] = []
    for turn, label in enumerate(labels):
        is_main = label in ("handoff", "rewrite", "edit", "compact")
        thread = "main" if is_main else label.removesuffix("!")
        if label in ("compact", "summary"):
            chains.append(("compaction", "", [turn]))
            if label == "compact":
                del growing["main"]
            continue
        if label in BREAKS or label == "side":
            left = growing.pop(thread, None)
            edited += [left] if left and BREAKS.get(label) == "edit" else []
        if thread not in growing:
            growing[thread] = []
            kind = {"main": "final", "side": "side"}.get(thread, "subagent")
            chains.append((kind, thread, growing[thread]))
        growing[thread].append(turn)
    return [
        (kind, own)
        if kind not in ("final", "subagent") or own is growing[thread]
        else ("edit" if own in edited else "wipe", own)
        for kind, thread, own in chains
    ]


BREAKS = {
    "compact": "compaction",
    "handoff": "handoff",
    "rewrite": "rewrite",
    "edit": "edit",
    "sub1!": "edit",
}
"""Kinds of breaks, by the label of the request that makes them or comes before them."""


@pytest.mark.parametrize("name", RECORDINGS)
async def test_every_branch_of_a_real_program_is_named_and_all_its_sampled_tokens_are_trained(
    name: str, gateway: Gateway, engine: ScriptedEngine
) -> None:
    requests = read_recording(name)
    agent = await gateway.session()
    await replay(agent, engine, requests)
    finished = await agent.finish()
    chains, stats = finished["segments"], finished["stats"]
    labels = [each["label"] for each in requests if each["label"] != "refused"]
    assert [(chain["kind"], chain["own_turns"]) for chain in chains] == expected_chains(labels)
    wanted = [BREAKS[label] for label in labels if label in BREAKS]
    assert [left["kind"] for left in stats["breaks"]] == wanted, "no break is false"
    assert (stats["turns"], stats["ambiguous"], stats["retries"]) == (len(labels), 0, 0)
    assert stats["trained_tokens"] == stats["sampled_tokens"]
    named = Counter(chain["thread"] for chain in chains if chain["kind"] == "subagent")
    assert set(named.values()) <= {1}, "each sub-agent has a thread of its own"
    for chain in chains:
        last = chain["turns"][-1]
        saw = engine.seen.requests[last]["input_ids"] + engine.seen.answered[last][0]
        assert chain["tokens"] == saw, "the chain is what the model saw"


def test_the_recordings_are_of_every_program_that_is_claimed() -> None:
    programs = {
        json.loads((RECORDED / f"{name}.json").read_text())["program"].split(maxsplit=1)[0]
        for name in RECORDINGS
    }
    assert programs == {
        *(
            "opencode-ai",
            "@qwen-code/qwen-code",
            "openai-agents",
            "aider-chat",
            "anthropic",
            "smolagents",
        ),
        "@mariozechner/pi-coding-agent",
        "@google/gemini-cli",
    }
