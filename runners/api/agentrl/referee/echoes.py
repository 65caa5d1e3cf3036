"""Compare a message that comes back with the answer that was given.

*same*: the words and calls are those of the answer; *mechanical*: a program took something away as
it does to every answer; *edit*: it is another message, which the policy has to see as it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl.referee.conversation import Message, PolicyCall, Tool

Echo = Literal["same", "mechanical", "edit"]
_ORDER: tuple[Echo, ...] = ("same", "mechanical", "edit")
_CD = re.compile(r"cd [\w./~-]+ && ")
_COMMANDS = ("command", "cmd")


def classify(answer: Message, sent: Message, tools: Sequence[Tool]) -> Echo:
    """Compare what was answered with what came back; ``tools``: of the request that was answered.

    Thoughts and ids of calls are free.
    """
    found = [_compare_texts(answer.texts, sent.texts)]
    if [call.name for call in answer.calls] != [call.name for call in sent.calls]:
        return "edit"
    schemas = {tool.name: tool.properties for tool in tools}
    found += [
        _compare_arguments(ours, theirs, schemas.get(ours.name, {}))
        for ours, theirs in zip(answer.calls, sent.calls, strict=True)
    ]
    return max(found, key=_ORDER.index)


def is_blank(message: Message) -> bool:
    """Return whether an assistant's message says nothing: programs leave it out."""
    return message.role == "assistant" and not message.calls and not message.text.strip()


def matches(known: Message, sent: Message, tools: Sequence[Tool]) -> bool:
    """Return whether a message repeats a known one: an input unchanged, an answer as an echo."""
    if known.role != sent.role or known.image != sent.image:
        return False
    if known.role == "assistant":
        return classify(known, sent, tools) != "edit"
    return known.text == sent.text


def _compare_texts(answer: Sequence[str], sent: Sequence[str]) -> Echo:
    lines, others = _lines("\n".join(answer)), _lines("\n".join(sent))
    if lines == others or "".join(lines) == "".join(others):
        return "same"
    ours, theirs = (" ".join("\n".join(part).split()) for part in (answer, sent))
    return "mechanical" if ours == theirs and len("".join(sent)) < len("".join(answer)) else "edit"


def _lines(text: str) -> list[str]:
    return [line for line in map(str.rstrip, text.strip().split("\n")) if line]


def _compare_arguments(answer: PolicyCall, sent: PolicyCall, schema: Mapping[str, Any]) -> Echo:
    ours, theirs = answer.arguments, sent.arguments
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return "same" if _equal(ours, theirs) else "edit"
    found: list[Echo] = ["same"]
    for key in {**ours, **theirs}:
        declared = schema.get(key)
        declared = declared if isinstance(declared, Mapping) else {}
        free = (None, declared.get("default"))  # left out, null, or the schema's own default
        value = ours.get(key, free[1]) if theirs.get(key) is not None else ours.get(key)
        other = theirs.get(key, free[1]) if ours.get(key) is not None else theirs.get(key)
        found.append(_compare_values(key, value, other, declared))
    return max(found, key=_ORDER.index)


def _compare_values(key: str, ours: Any, theirs: Any, declared: Mapping[str, Any]) -> Echo:
    if _equal(ours, theirs):
        return "same"
    if isinstance(ours, str) and isinstance(theirs, str):
        cut = "\n".join(map(str.rstrip, ours.split("\n")))
        if theirs in (cut, ours.rstrip(), cut.rstrip()):
            return "mechanical"
        start = _CD.match(ours) if key in _COMMANDS else None
        return "mechanical" if start is not None and ours[start.end() :] == theirs else "edit"
    is_number = declared.get("type") in ("number", "integer") and not isinstance(theirs, bool)
    if is_number and isinstance(ours, str) and isinstance(theirs, int | float):
        return "mechanical" if ours.strip() == str(theirs) else "edit"
    return "edit"


def _equal(ours: Any, theirs: Any) -> bool:
    """Compare as JSON: 1 is 1.0, but not true."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return ours.keys() == theirs.keys() and all(_equal(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))
    return bool(ours == theirs) and isinstance(ours, bool) == isinstance(theirs, bool)
