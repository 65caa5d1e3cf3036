"""The checks of a server's tokenizer, template and parsers: each one differs once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.campaigns.preflight.tokenizer_check import (
    MESSAGES,
    TOOLS,
    PolicyFormat,
    ServerParser,
    probe_server,
)
from runners.records.tokenizer import (
    load_renderer,
    load_tokenizer,
    tiny_tokenizer,
    write_tiny_tokenizer,
)
from tests.fakes.family_tokenizer import load_family


@pytest.fixture
async def server() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        engine.always = Completion("a b<|im_end|>")
        engine.long_s = 1.0
        yield engine


@pytest.fixture
def policy_format(tmp_path: Path) -> PolicyFormat:
    directory = write_tiny_tokenizer(tmp_path / "tokenizer")
    tokenizer = load_tokenizer(directory)
    return PolicyFormat(
        tokenizer,
        load_renderer(tokenizer, "qwen3"),
        "qwen3",
        directory,
        tool_call_parser=ServerParser("engine.tool_call_parser", "qwen25", used=True),
        reasoning_parser=ServerParser("engine.reasoning_parser", "qwen3", used=True),
    )


async def run_check(
    server: ScriptedEngine, policy_format: PolicyFormat | None
) -> dict[str, tuple[bool, str]]:
    """Return what was found, from the first thing that takes a tokenizer on."""
    found = await probe_server(
        server.url, [], context_tokens=32768, routing=None, policy_format=policy_format
    )
    names = [result.name for result in found]
    assert names[:5] == [
        *("generates, with logprobs", "weight version", "loads", "abort", "context length")
    ]
    return {result.name: (result.ok, result.detail) for result in found[5:]}


async def test_a_server_with_the_same_text_format_passes(
    server: ScriptedEngine, policy_format: PolicyFormat
) -> None:
    found = await run_check(server, policy_format)
    assert list(found) == ["tokenizer", "chat template", "tool-call parser", "reasoning parser"]
    assert all(ok for ok, _ in found.values()), found
    assert "ids of a templated conversation are the same" in found["tokenizer"][1]
    assert found["chat template"][1] == "not seen: the tokenizer's directory has none"


async def test_without_a_tokenizer_only_capabilities_are_checked(
    server: ScriptedEngine,
) -> None:
    assert await run_check(server, None) == {}


async def test_another_tokenizer_fails_with_the_first_different_id(
    server: ScriptedEngine, policy_format: PolicyFormat
) -> None:
    other = Backend.from_str(tiny_tokenizer().to_str())
    other.add_tokens(["naïve"])
    server.tokenizer = other
    ok, detail = (await run_check(server, policy_format))["tokenizer"]
    assert not ok
    assert "here and" in detail
    assert "set model.tokenizer" in detail


@pytest.mark.parametrize("wrong", ["tool_call_parser", "reasoning_parser"])
async def test_a_parser_that_cannot_read_the_template_fails(
    server: ScriptedEngine, policy_format: PolicyFormat, wrong: str
) -> None:
    parser = ServerParser(f"model.parsers.{wrong}", "glm45", used=False)
    changed = (
        replace(policy_format, tool_call_parser=parser)
        if wrong == "tool_call_parser"
        else replace(policy_format, reasoning_parser=parser)
    )
    found = await run_check(server, changed)
    (detail,) = [detail for ok, detail in found.values() if not ok]
    assert f"model.parsers.{wrong}=glm45 reads" in detail
    assert "choose the parser of the model's own family" in detail


async def test_the_renderer_is_compared_with_the_model_s_own_template(
    server: ScriptedEngine, policy_format: PolicyFormat
) -> None:
    prompt = policy_format.renderer.render_ids(
        MESSAGES[:2], tools=TOOLS, add_generation_prompt=True
    )
    text = policy_format.tokenizer.decode(prompt)
    file = policy_format.directory / "chat_template.jinja"
    file.write_text("{{ " + json.dumps(text, ensure_ascii=False) + " }}", "utf-8")
    assert (await run_check(server, policy_format))["chat template"] == (
        True,
        "model.renderer=qwen3 writes the same first prompt",
    )
    file.write_text("<|im_start|>{{ messages[0].content }}", "utf-8")
    ok, detail = (await run_check(server, policy_format))["chat template"]
    assert not ok
    assert "model.renderer=qwen3 is not the model's own template: id 1 of" in detail


async def test_a_renderer_that_shows_no_tools_is_named(
    server: ScriptedEngine, policy_format: PolicyFormat
) -> None:
    _, renderer, tokenizer = load_family("deepseek-v3")
    changed = replace(
        policy_format, renderer=renderer, tokenizer=tokenizer, renderer_name="deepseek-v3"
    )
    ok, detail = (await run_check(server, changed))["chat template"]
    assert not ok
    assert "model.renderer=deepseek-v3 shows the policy no tools" in detail
