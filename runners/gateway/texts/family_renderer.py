"""A family's renderer, mended where it refuses or hides what a client may send.

Whatever a request says is shown: where the family's template has no place for a part of it, the
part is written in the nearest form that the template has. What the library renders as the template
does stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from runners.records.tokenizer import RenderedTokens, Renderer, Tokenizer

Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
DECLARES_AS_JSON = "kimi-k2.5"
"""Declares tools as TypeScript, and as JSON where that cannot be: so does the tokenizer that
Moonshot ships. An argument without a type is such a case.
"""
ONE_RESULT = "deepseek-v4"
"""Continues a turn with one result only, as its results have no ids (``order_results``)."""
_WORD = "later"
_FAULTS = (AttributeError, KeyError, RecursionError, TypeError)
"""Raised inside of the library by a schema of a form that it does not expect."""


class FamilyRenderer:
    """The ``Renderer`` of a family."""

    def __init__(self, library: Renderer, tokenizer: Tokenizer, family: str) -> None:
        self._library = library
        self._family = family
        self._has_later_system = _shows_later_system(library, tokenizer)

    def render_ids(
        self,
        messages: Messages,
        *,
        tools: Tools = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the ids of a whole conversation; raises ValueError if the family refuses it."""
        messages = [*messages[:1], *self._place_system(messages[1:])]
        refusal: Exception | None = None
        for some, offered in self._list_forms(messages, tools):
            try:
                return self._library.render_ids(
                    some, tools=offered, add_generation_prompt=add_generation_prompt
                )
            except (*_FAULTS, ValueError) as error:
                refusal = refusal or error
        if isinstance(refusal, ValueError):
            raise refusal
        what = "a tool's parameters are no JSON schema" if tools else "its template fails"
        raise ValueError(f"{what} ({type(refusal).__name__}: {refusal})") from refusal

    def _list_forms(self, messages: Messages, tools: Tools) -> Iterator[tuple[Messages, Tools]]:
        """Yield the forms in which a conversation may be rendered, the template's own first."""
        yield messages, tools
        if tools and self._family == DECLARES_AS_JSON:
            yield [_declare(tools), *messages], None
        elif tools:
            yield messages, [_without_booleans(tool) for tool in tools]
        if (told := _without_orphans(messages)) != messages:
            yield told, tools

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Messages,
        *,
        tools: Tools = None,
    ) -> RenderedTokens | None:
        """Return the ids that continue a turn; None if they cannot be proven."""
        messages = self._place_system(new_messages)
        results = [message for message in messages if message["role"] == "tool"]
        if self._family == ONE_RESULT and len(results) > 1:
            messages = [_as_text(message) for message in messages]
        return self._library.bridge_to_next_turn(
            previous_prompt_ids, previous_completion_ids, messages, tools=tools
        )

    def get_stop_token_ids(self) -> list[int]:
        """Return the ids that end a turn."""
        return self._library.get_stop_token_ids()

    def _place_system(self, messages: Messages) -> Messages:
        """Return messages inside of a conversation whose system messages the family can show."""
        if self._has_later_system:
            return messages
        return [
            {**message, "role": "user"} if message["role"] == "system" else message
            for message in messages
        ]


def _shows_later_system(renderer: Renderer, tokenizer: Tokenizer) -> bool:
    """Return whether a template shows a system message that does not open the conversation: some
    refuse it, some leave it out.
    """
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": _WORD},
        {"role": "user", "content": "c"},
    ]
    try:
        return _WORD in tokenizer.decode(renderer.render_ids(messages))
    except (*_FAULTS, ValueError):
        return False


def _declare(tools: list[dict[str, Any]]) -> dict[str, Any]:
    written = json.dumps(tools, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return {"role": "tool_declare", "content": written}


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """Return a result as the user's text that DeepSeek's template makes of it."""
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"<tool_result>{message['content']}</tool_result>"}


def _without_orphans(messages: Messages) -> Messages:
    """Return messages in which a result that does not follow its call is the user's text."""
    waiting: set[str] = set()
    told: Messages = []
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] not in waiting:
            message = {"role": "user", "content": message["content"]}
        elif message["role"] != "tool":
            waiting = {call["id"] for call in message.get("tool_calls", ())}
        told.append(message)
    return told


def _without_booleans(schema: Any) -> Any:
    """Return a schema with ``{}`` for ``true`` as the schema of a member, which means the same."""
    if isinstance(schema, bool):
        return {}
    if not isinstance(schema, dict):
        return schema
    members: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "properties" and isinstance(value, dict):
            value = {key: _without_booleans(member) for key, member in value.items()}
        elif name in ("function", "items", "parameters"):
            value = _without_booleans(value)
        members[name] = value
    return members
