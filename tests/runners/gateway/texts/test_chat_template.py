"""A model family without a renderer: its chat template renders, SGLang's parsers parse."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.errors import ConfigError
from runners.engines.client import HttpEngine
from runners.gateway.texts.chat_template import ChatTemplate, ServerParsers, make_renderer
from runners.records.tokenizer import load_tokenizer, write_tiny_tokenizer
from tests.fakes.running_gateway import TOOLS, echo, results, running_gateway, user

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>tools\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'nobody' %}{{ raise_exception('who is nobody?') }}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + call.function.arguments | tojson + '</tool_call>' }}
{%- endfor %}
{{- eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
CALL = {"type": "tool_use", "name": TOOLS[0]["name"], "input": {"command": "ls"}}
OPENAI_TOOLS = [{"type": "function", "function": {"name": TOOLS[0]["name"], "parameters": {}}}]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = write_tiny_tokenizer(tmp_path / "tokenizer")
    settings = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


@pytest.fixture
async def server() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as engine:
        yield engine


def parsers(*urls: str) -> ServerParsers:
    servers = [HttpEngine(url) for url in urls]
    return ServerParsers(servers, tool_call_parser="qwen25", reasoning_parser="qwen3")


def test_the_models_own_template_renders(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    renderer = make_renderer(tokenizer, "chat_template", directory)
    text = tokenizer.decode(
        renderer.render_ids([{"role": "user", "content": "é<b>"}], add_generation_prompt=True)
    )
    assert text == "<|im_start|>user\né<b><|im_end|>\n<|im_start|>assistant\n"
    assert renderer.get_stop_token_ids() == tokenizer.encode("<|im_end|>")
    with pytest.raises(ValueError, match="who is nobody"):
        renderer.render_ids([{"role": "nobody", "content": ""}])


def test_a_template_s_json_is_indented_as_it_asks(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ messages | tojson(indent=2) }}")
    tokenizer = load_tokenizer(directory)
    messages = [{"role": "user", "content": "é<b>"}]
    text = tokenizer.decode(ChatTemplate(tokenizer, directory).render_ids(messages))
    assert text == json.dumps(messages, indent=2, ensure_ascii=False)


def test_a_template_cannot_reach_out_of_its_sandbox(directory: Path) -> None:
    hostile = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    (directory / "chat_template.jinja").write_text(hostile)
    renderer = ChatTemplate(load_tokenizer(directory), directory)
    with pytest.raises(ValueError, match="unsafe"):
        renderer.render_ids([])


def test_a_missing_template_is_reported_with_both_places(tmp_path: Path) -> None:
    made = write_tiny_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match=r"neither chat_template\.jinja nor"):
        ChatTemplate(load_tokenizer(made), made)


async def test_the_server_parses_thoughts_and_calls(server: ScriptedEngine) -> None:
    reader = parsers("http://127.0.0.1:9", server.url)
    text = spoken([{"type": "text", "text": "I look."}, CALL], thinking="hm")
    read = await reader.parse(text.removesuffix("<|im_end|>"), OPENAI_TOOLS)
    assert (read.reasoning_content, read.content) == ("hm", "I look.")
    assert [(call.name, call.arguments, call.status) for call in read.tool_calls] == [
        (CALL["name"], {"command": "ls"}, "ok")
    ]
    nothing = await reader.parse("<tool_call>\n{}\n</tool_call>", [])
    assert (nothing.content, len(nothing.tool_calls)) == ("<tool_call>\n{}\n</tool_call>", 0)
    await reader.close()


async def test_a_session_works_and_its_breaks_are_counted(
    directory: Path, server: ScriptedEngine, tmp_path: Path
) -> None:
    server.say(spoken([CALL], thinking="hm"), spoken([{"type": "text", "text": "Done."}]))
    settings: dict[str, Any] = {"renderer": "chat_template", "tool_call_parser": "qwen25"}
    async with running_gateway(
        server.url, directory, tmp_path / "run", reasoning_parser="qwen3", **settings
    ) as gateway:
        agent = await gateway.session()
        first = await agent.ask([user("Fix it.")])
        assert first["stop_reason"] == "tool_use"
        last = await agent.ask([user("Fix it."), echo(first), results(first, "a.py")])
        stats = await agent.stats()
    assert last["content"][-1]["text"] == "Done."
    (found,) = stats["breaks"]
    assert found["kind"] == "renderer"
    assert (stats["turns"], stats["parser_fallbacks"]) == (2, 0)


async def test_an_output_that_no_parser_answers_for_is_stored_and_sent_as_text(
    directory: Path, server: ScriptedEngine, tmp_path: Path
) -> None:
    server.say(spoken([CALL]))
    settings: dict[str, Any] = {"renderer": "chat_template", "tool_call_parser": "qwen25"}
    gone = "http://127.0.0.1:9"
    async with running_gateway(
        server.url, directory, tmp_path / "run", engine_workers=(gone,), **settings
    ) as gateway:
        agent = await gateway.session()
        answer = await agent.ask([user("Fix it.")])
        stats = await agent.stats()
        assert len(gateway.turns("s1")) == 1
    assert "<tool_call>" in answer["content"][0]["text"]
    assert stats["parser_fallbacks"] == 1
