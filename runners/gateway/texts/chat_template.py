"""Rendering and parsing for model families that the `renderers` library does not know: the model's
own chat template renders, SGLang's parsers parse.

Exact continuation is lost: a template renders the whole history anew, so every turn after the first
of its thread is a break, which is counted with its first differing token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.errors import ConfigError
from conf.sections.gateway import ControlText
from conf.sections.model import CHAT_TEMPLATE
from runners.engines.client import HttpEngine
from runners.engines.contract import EngineError
from runners.gateway.texts.control_text import guard_content
from runners.records.tokenizer import (
    ParsedResponse,
    RenderedTokens,
    Renderer,
    Tokenizer,
    ToolCall,
    load_renderer,
    load_tokenizer,
    read_json,
    token_text,
)

ExampleGuard = Callable[[list[dict[str, Any]], Any], tuple[list[dict[str, Any]], Any]]

PARSE_S = 30.0
"""Deadline of a parse: SGLang needs a fraction of a millisecond, but its process may be busy."""


class ChatTemplate:
    """A ``Renderer`` by a model directory's Jinja template.

    It runs in Jinja's sandbox: the template is code that came with the model.
    """

    def __init__(self, tokenizer: Tokenizer, directory: Path) -> None:
        """Compile the template; raises ConfigError if there is none."""
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        settings = read_json(directory / "tokenizer_config.json")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(_template(directory, settings))
        except TemplateError as error:
            raise ConfigError(
                [f"model.tokenizer={directory}: its chat template: {error}"]
            ) from error
        self._errors = TemplateError
        self._tokenizer = tokenizer
        self._special = {
            name: text
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (text := token_text(settings.get(name)))
        }
        self._stop = _stop_ids(tokenizer, read_json(directory / "generation_config.json"))

    def render_ids(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Render a whole conversation; raises ValueError if the template refuses it."""
        try:
            text = self._template.render(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except self._errors as error:
            raise ValueError(str(error)) from error
        return self._tokenizer.encode(text)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
    ) -> RenderedTokens | None:
        """Return None: no continuation of a template's output can be proven."""
        return None

    def get_stop_token_ids(self) -> list[int]:
        """Return the ids that end a turn."""
        return list(self._stop)


def make_renderer(tokenizer: Tokenizer, family: str, directory: Path) -> Renderer:
    """Return the renderer of ``model.renderer``; raises ConfigError if it cannot be made."""
    if family == CHAT_TEMPLATE:
        return ChatTemplate(tokenizer, directory)
    return load_renderer(tokenizer, family)


def make_example_renderer(
    directory: Path, family: str, control_text: ControlText
) -> tuple[Renderer, ExampleGuard | None]:
    """Return the renderer of conversations to learn from, and what their messages and tools are to
    be passed through before; raises ConfigError.
    """
    tokenizer = load_tokenizer(directory)
    if control_text == "tokens":
        return make_renderer(tokenizer, family, directory), None
    marked, guard = guard_content(tokenizer, family)
    return make_renderer(marked, family, directory), guard.guard_example


class ServerParsers:
    """Parses with SGLang's ``/separate_reasoning`` and ``/parse_function_call``, on any server."""

    def __init__(
        self, servers: Sequence[HttpEngine], *, tool_call_parser: str, reasoning_parser: str | None
    ) -> None:
        self._servers = list(servers)
        self._tool_call_parser = tool_call_parser
        self._reasoning_parser = reasoning_parser

    async def parse(self, text: str, tools: list[dict[str, Any]]) -> ParsedResponse:
        """Return the parts of a text; raises EngineError.

        Without tools a call is text, as in SGLang.
        """
        reasoning = ""
        if self._reasoning_parser is not None:
            body = {"text": text, "reasoning_parser": self._reasoning_parser}
            parts = await self._request("/separate_reasoning", body)
            reasoning, text = parts.get("reasoning_text") or "", parts.get("text") or ""
        if not tools:
            return ParsedResponse(text, reasoning or None)
        call_body = {"text": text, "tools": tools, "tool_call_parser": self._tool_call_parser}
        found = await self._request("/parse_function_call", call_body)
        calls = [_call(item) for item in found.get("calls") or ()]
        return ParsedResponse(found.get("normal_text") or "", reasoning or None, calls)

    async def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            await server.close()

    async def _request(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        for server in self._servers[:-1]:
            try:
                return await server.request_json(path, body, deadline_s=PARSE_S)
            except EngineError as error:
                if not error.unreachable:
                    raise
        return await self._servers[-1].request_json(path, body, deadline_s=PARSE_S)


def _call(item: Mapping[str, Any]) -> ToolCall:
    name, written = item.get("name"), item.get("parameters")
    try:
        arguments = json.loads(written) if isinstance(written, str) else written
    except (RecursionError, ValueError):
        arguments = written
    is_object = isinstance(arguments, dict)
    raw = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return ToolCall(raw, name, arguments, "ok" if is_object else "invalid_json")


def _template(directory: Path, settings: Mapping[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {part["name"]: part["template"] for part in found}.get("default")
    if not isinstance(found, str):
        raise ConfigError(
            [
                f"model.renderer=chat_template, but model.tokenizer={str(directory)!r} has neither "
                "chat_template.jinja nor a chat_template in tokenizer_config.json"
            ]
        )
    return found


def _stop_ids(tokenizer: Tokenizer, generation: Mapping[str, Any]) -> list[int]:
    """Return the stop tokens of ``generation_config.json``, else the end-of-sequence token."""
    found = generation.get("eos_token_id", tokenizer.eos_token_id)
    if found is None:
        return []
    return [int(token) for token in found] if isinstance(found, list) else [int(found)]


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as transformers' filter does; Jinja's own escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
