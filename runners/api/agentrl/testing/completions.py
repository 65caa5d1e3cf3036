"""Answers that a test scripts for an engine, and the record of what the engine was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from runners.records.routing import RoutingShape

END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Completion:
    """One scripted answer of ``/generate``."""

    text: str = ""
    """The sampled text, special tokens written out."""
    ids: tuple[int, ...] | None = None
    """The sampled tokens, where they are not those that the tokenizer gives for ``text``."""
    finish: str = "stop"
    """``stop``, ``length`` or ``abort``."""
    stop_string: str | None = None
    """Reported as the stop, instead of the last token."""
    delay_s: float = 0.0
    queue_s: float = 0.0
    status: int = 200
    """Any other status answers with SGLang's error body, with ``message``."""
    message: str = "scripted fault"
    headers: Mapping[str, str] = field(default_factory=dict)
    drops: bool = False
    """Close the connection instead of answering."""
    raw: bytes | None = None
    """The body of the answer, instead of everything else."""
    routing: str = "sent"
    """``sent``: the rows that are asked for; ``none``: left out, as a router does; ``short``:
    without the last row; ``whole``: from position 0, whatever was asked for.
    """
    weight_version: str | None = None
    """The engine's version from this answer on; None: unchanged."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


@dataclass(slots=True)
class Seen:
    """Record of all that the engine received and sent."""

    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of every request, in order of arrival."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of ``/generate``."""
    began: list[float] = field(default_factory=list)
    """Loop time at which each of ``requests`` arrived."""
    answered: list[tuple[list[int], list[float]]] = field(default_factory=list)
    """Ids and logprobs sent, per successful request."""
    aborted: list[str] = field(default_factory=list)
    """Request ids whose client disconnected, and ids of ``/abort_request``."""
    mixed: list[str] = field(default_factory=list)
    """Request ids whose weights were updated while they ran."""

    def forget(self) -> None:
        """Drop the bodies and ids so far: of long prompts they are large."""
        for each in (self.calls, self.requests, self.began, self.answered):
            each.clear()


def routed(shape: RoutingShape, tokens: Iterable[int], version: int) -> NDArray[np.int32]:
    """Return the experts that weights of a version choose for tokens, int32 [T, layers, top_k].

    The experts of a token are distinct; another token, position, layer or version changes them;
    dense layers have zeros.
    """
    ids = np.fromiter(tokens, np.int64)
    first = 5 * ids + 3 * np.arange(len(ids)) + 11 * version
    layers, slots = np.arange(shape.layers), np.arange(shape.top_k)
    experts = (first[:, None, None] + 7 * layers[:, None] + slots) % shape.experts
    experts[:, [layer for layer in layers if layer not in shape.routed]] = 0
    return experts.astype(np.int32)


def spoken(content: Iterable[Mapping[str, Any]], *, thinking: str | None = None) -> str:
    """Return the text that a Qwen3 policy would sample for the blocks of an Anthropic answer."""
    text = "" if thinking is None else f"<think>\n{thinking}\n</think>\n\n"
    for block in content:
        if block["type"] == "text":
            text += block["text"]
        else:
            call = {"name": block["name"], "arguments": block["input"]}
            break_line = "\n" if text and not text.endswith("\n") else ""
            text += f"{break_line}<tool_call>\n{orjson.dumps(call).decode()}\n</tool_call>"
    return text + END


def say(text: str) -> str:
    """Return an answer without a call, as the policy samples it."""
    return spoken([{"type": "text", "text": text}])


def call(name: str, **arguments: Any) -> str:
    """Return a tool call as the policy samples it; its format is Qwen's."""
    return spoken([{"type": "tool_use", "name": name, "input": arguments}])
