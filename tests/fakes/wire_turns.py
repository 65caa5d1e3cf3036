"""Conversations of one neutral form, in the bodies of each API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.echo_table import Block, escaped

Turn = tuple[str, Any]
"""``user`` with a text, ``said`` with blocks, ``results`` with pairs of a call's id and a text."""
Tools = Mapping[str, Mapping[str, Any]]
"""Schemas of parameters, by name."""


@dataclass(frozen=True)
class Api:
    """One API: how a client writes a conversation, and reads which calls were made."""

    path: str

    def body(self, turns: Sequence[Turn], tools: Tools) -> bytes:
        """Return a request's body."""
        raise NotImplementedError

    def issued_ids(self, answer: Mapping[str, Any]) -> list[str]:
        """Return the ids of the calls of an answer."""
        raise NotImplementedError


class Anthropic(Api):
    def body(self, turns: Sequence[Turn], tools: Tools) -> bytes:
        messages: list[Block] = []
        for kind, content in turns:
            if kind == "results":
                blocks = [
                    {"type": "tool_result", "tool_use_id": each, "content": text}
                    for each, text in content
                ]
                messages.append({"role": "user", "content": blocks})
            elif content:
                messages.append(
                    {"role": "user" if kind == "user" else "assistant", "content": content}
                )
        offered = [{"name": name, "input_schema": each} for name, each in tools.items()]
        whole = {"model": "m", "max_tokens": 1000, "tools": offered, "messages": messages}
        return escaped(whole).encode()

    def issued_ids(self, answer: Mapping[str, Any]) -> list[str]:
        return [block["id"] for block in answer["content"] if block["type"] == "tool_use"]


class Chat(Api):
    def body(self, turns: Sequence[Turn], tools: Tools) -> bytes:
        messages: list[Block] = []
        for kind, content in turns:
            if kind == "user":
                messages.append({"role": "user", "content": content})
            elif kind == "results":
                messages += [
                    {"role": "tool", "tool_call_id": each, "content": text}
                    for each, text in content
                ]
            elif content:
                messages.append(self._assistant(content))
        offered = [
            {"type": "function", "function": {"name": name, "parameters": each}}
            for name, each in tools.items()
        ]
        return json.dumps({"model": "m", "tools": offered, "messages": messages}).encode()

    def _assistant(self, blocks: Sequence[Block]) -> Block:
        texts = [block for block in blocks if block["type"] == "text"]
        calls = [
            {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": escaped(block["input"])},
            }
            for block in blocks
            if block["type"] == "tool_use"
        ]
        message: Block = {"role": "assistant", "content": texts or None}
        return message | ({"tool_calls": calls} if calls else {})

    def issued_ids(self, answer: Mapping[str, Any]) -> list[str]:
        message = answer["choices"][0]["message"]
        return [call["id"] for call in message.get("tool_calls", ())]


class Responses(Api):
    def body(self, turns: Sequence[Turn], tools: Tools) -> bytes:
        items: list[Block] = []
        for kind, content in turns:
            if kind == "user":
                items.append({"role": "user", "content": content})
            elif kind == "results":
                items += [
                    {"type": "function_call_output", "call_id": each, "output": text}
                    for each, text in content
                ]
            else:
                items += map(self._item, content)
        offered = [
            {"type": "function", "name": name, "parameters": each} for name, each in tools.items()
        ]
        return json.dumps({"model": "m", "tools": offered, "input": items}).encode()

    def _item(self, block: Block) -> Block:
        match block["type"]:
            case "text":
                part = {"type": "output_text", "text": block["text"], "annotations": []}
                return {"type": "message", "role": "assistant", "content": [part]}
            case "tool_use":
                named = {"call_id": block["id"], "name": block["name"]}
                return {"type": "function_call", **named, "arguments": escaped(block["input"])}
            case _:
                return {"type": "reasoning", "summary": [], "encrypted_content": "c2ln"}

    def issued_ids(self, answer: Mapping[str, Any]) -> list[str]:
        return [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]


class Google(Api):
    def body(self, turns: Sequence[Turn], tools: Tools) -> bytes:
        contents: list[Block] = []
        names: dict[str, str] = {}
        for kind, content in turns:
            if kind == "user":
                contents.append({"role": "user", "parts": [{"text": content}]})
            elif kind == "results":
                answers = [
                    {"id": each, "name": names.get(each, "none"), "response": {"output": text}}
                    for each, text in content
                ]
                parts = [{"functionResponse": answer} for answer in answers]
                contents.append({"role": "user", "parts": parts})
            elif content:
                names |= {block["id"]: block["name"] for block in content if "id" in block}
                contents.append({"role": "model", "parts": [*map(self._part, content)]})
        offered = [{"name": name, "parametersJsonSchema": each} for name, each in tools.items()]
        whole = {"tools": [{"functionDeclarations": offered}], "contents": contents}
        return escaped(whole).encode()

    def _part(self, block: Block) -> Block:
        match block["type"]:
            case "text":
                return {"text": block["text"]}
            case "tool_use":
                named = {"id": block["id"], "name": block["name"]}
                return {"functionCall": {**named, "args": block["input"]}, "thoughtSignature": "s"}
            case "thinking":
                return {"text": block["thinking"], "thought": True}
            case _:
                return {"text": "", "thoughtSignature": "c2ln"}

    def issued_ids(self, answer: Mapping[str, Any]) -> list[str]:
        parts = answer["candidates"][0]["content"]["parts"]
        return [part["functionCall"]["id"] for part in parts if "functionCall" in part]


APIS: dict[str, Api] = {
    "anthropic": Anthropic("/v1/messages"),
    "chat": Chat("/v1/chat/completions"),
    "responses": Responses("/v1/responses"),
    "google": Google("/v1beta/models/m:generateContent"),
}
