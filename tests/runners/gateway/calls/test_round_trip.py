"""A call that a family's own template writes is read as that call."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from runners.gateway.calls.families import PARSERS
from tests.fakes.family_tokenizer import load_family
from tests.runners.gateway.calls.random_calls import Call, random_tools

FAMILIES = sorted(PARSERS.keys() - {"chat_template", "gpt-oss"})


def sample(family: str, call_list: list[Call], tools: Any, thought: str, text: str) -> Any:
    """Return what the family's template writes for a turn, read as if the policy had sampled it."""
    work, renderer, _ = load_family(family)
    calls = [
        {
            "type": "function",
            "id": f"functions.{name}:{number}",
            "function": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(call_list)
    ]
    reply: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": calls}
    if thought:
        reply["reasoning_content"] = thought
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go on."}, reply]
    offered = None if family == "kimi-k2.5" else tools  # it refuses schemas without a type
    rendered = renderer.render(messages, tools=offered)  # type: ignore[attr-defined]
    mask, ids = rendered.sampled_mask, rendered.token_ids
    if not mask:  # the family does not tell: a turn comes after its header
        start = len(renderer.render_ids(messages[:1], tools=offered, add_generation_prompt=True))
        return work.read_output(ids[start:], tools, ids[:start]).parsed
    start, end = mask.index(True), len(mask) - mask[::-1].index(True)
    return work.read_output(ids[start:end], tools, ids[:start]).parsed


def check(family: str, seed: int) -> int:
    """Check the calls that a seed draws, and return their number."""
    rng = random.Random(seed)
    tools, calls = random_tools(rng)
    if family == "llama-3":  # its template writes one
        calls = calls[:1]
    thought, text = rng.choice(("", "Hm.\n\nSo.")), rng.choice(("", "I look.\n  Now."))
    if family == "llama-3":
        text = ""
    read = sample(family, calls, tools, thought, text)
    found = [(call.name, call.arguments, call.status, call.recovered) for call in read.tool_calls]
    wanted = [(name, arguments, "ok", "") for name, arguments in calls]
    assert written(found) == written(wanted), f"{family}, seed {seed}"
    assert read.content == text, f"{family}, seed {seed}"
    return len(calls)


def written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_is_read_as_its_template_writes_it(family: str) -> None:
    assert sum(check(family, seed) for seed in range(12)) >= 12


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_thousand_calls_are_read_as_their_template_writes_them(family: str) -> None:
    calls, seeds = 0, itertools.count(30)
    while calls < 20_000:
        calls += check(family, next(seeds))
