"""SGLang's parsers of sampled text, for Qwen's format."""

from __future__ import annotations

import re
from typing import Any

import orjson


def parse_tool_calls(text: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer ``/parse_function_call`` as ``qwen25`` does: calls that are no JSON are left out."""
    names = [tool["function"]["name"] for tool in tools]
    calls: list[dict[str, Any]] = []
    for found in re.findall(r"<tool_call>\n?(.*?)\n?</tool_call>", text, re.DOTALL):
        try:
            call = orjson.loads(found)
        except orjson.JSONDecodeError:
            continue
        if call.get("name") in names:
            arguments = orjson.dumps(call.get("arguments")).decode()
            calls.append({"tool_index": len(calls), "name": call["name"], "parameters": arguments})
    normal = text.partition("<tool_call>")[0] if calls else text
    return {"normal_text": normal.strip(), "calls": calls}


def separate_reasoning(text: str, *, known: bool) -> dict[str, Any]:
    """Answer ``/separate_reasoning`` as ``qwen3`` does; an unknown parser finds nothing."""
    if not known:
        return {"reasoning_text": "", "text": text}
    thought, close, rest = text.partition("</think>")
    thought, rest = (thought, rest) if close else ("", thought)
    return {
        "reasoning_text": thought.removeprefix("<think>").strip(),
        "text": rest.lstrip("\n"),
    }
