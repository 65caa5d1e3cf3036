"""Finds where a replayed session's requests differ from the recorded ones.

It compares what the client sent (messages, tools, limits) and, where that is equal, the tokens that
the model would have seen. What differs between any two runs of a program (ids that it draws, times)
is no difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Literal

from runners.campaigns.replay.recorded_engine import UnansweredPrompt, rebuild_prompts
from runners.records.graph import common_prefix_length
from runners.records.record import BranchKind, IdArray, Turn
from runners.records.text import cut_excerpts
from runners.records.tokenizer import Tokenizer

DifferenceKind = Literal["message", "tools", "limits", "tokens", "missing", "extra"]
"""``message``: one that the turn added; ``tools``: those of the request; ``limits``: its model,
max_tokens and stop; ``tokens``: equal messages became another prompt; ``missing``: the program did
not request the turn; ``extra``: it requested one more.
"""

DRAWN_TEXTS = (
    r"\b\d+(\.\d+)? ?(s|ms|seconds)\b",  # how long something took
    r"\bChunk ID: [0-9a-f]+",  # Codex, of each command's output
    r'"nickname":"[^"]*"',  # Codex, of a sub-agent
    r"\bagentId: \w+",  # Claude Code, of a sub-agent
    r"\bduration_ms: \d+",
    r"\bsubagent_tokens: \d+",  # counts those of such ids too
    r"\bOS Version: [^\n]*",  # Claude Code, of the kernel
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
)
"""Patterns of what agent programs and test runners draw or measure anew each time."""
_DRAWN = re.compile("|".join(DRAWN_TEXTS))
SHOWN = 400
"""Characters shown of a text that differs."""
SHOWN_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """A request that differs from the recorded one."""

    what: DifferenceKind
    branch: BranchKind | None
    """Purpose of the turn; None: the program began a conversation that was not recorded."""
    thread: str | None
    """The recorded thread."""
    turn: int
    """Number of the turn in its thread, from 0."""
    index: int
    """Number of the turn in its session, from 0; of an extra one, that of the turn before it."""
    message: int | None
    """Number of the message among those that the turn added, from 0."""
    role: str | None
    recorded: str
    """From a little before the first character that differs."""
    replayed: str


def compare_turns(
    recorded: Sequence[Turn],
    replayed: Sequence[Turn],
    answered: Sequence[tuple[int, IdArray]],
    unanswered: Sequence[UnansweredPrompt],
    tokenizer: Tokenizer,
) -> list[Difference]:
    """Return every difference in the recorded order, an extra turn after the one it continues.

    ``answered`` holds, for each prompt that was answered, the index of the recorded turn and the
    prompt's ids.
    """
    pairs = pair_turns(replayed, answered)
    exact: set[int] = set()
    differences: list[Difference] = []
    numbers = _number_in_threads(recorded)
    old_prompts, new_prompts = rebuild_prompts(recorded), rebuild_prompts(replayed)
    for turn in recorded:
        other = pairs.get(turn.index)
        if other is None:
            found: _Finding | None = _describe_missing(turn)
        else:
            found = next(_find_changes(turn, other), None)
            if _has_same_words(turn, other) and (turn.parent is None or turn.parent in exact):
                exact.add(turn.index)
                before, after = old_prompts[turn.index], new_prompts[other.index]
                found = found or _compare_tokens(before, after, tokenizer)
        if found is not None:
            differences.append(
                Difference(
                    what=found.what,
                    branch=turn.branch,
                    thread=turn.thread,
                    turn=numbers[turn.index],
                    index=turn.index,
                    message=found.message,
                    role=found.role,
                    recorded=found.recorded,
                    replayed=found.replayed,
                )
            )
    for extra in unanswered:
        differences.append(_describe_extra(extra, recorded, numbers, tokenizer))
    return sorted(differences, key=lambda found: found.index)


def _describe_extra(
    extra: UnansweredPrompt, recorded: Sequence[Turn], numbers: Sequence[int], tokenizer: Tokenizer
) -> Difference:
    before = None if extra.after is None else recorded[extra.after]
    return Difference(
        what="extra",
        branch=None if before is None else before.branch,
        thread=None if before is None else before.thread,
        turn=0 if before is None else numbers[before.index] + 1,
        index=len(recorded) if before is None else before.index,
        message=None,
        role=None,
        recorded="",
        replayed=tokenizer.decode(extra.prompt[-SHOWN_TOKENS:].tolist()),
    )


@dataclass(frozen=True, slots=True)
class _Finding:
    what: DifferenceKind
    message: int | None
    role: str | None
    recorded: str
    replayed: str


def pair_turns(
    replayed: Sequence[Turn], answered: Sequence[tuple[int, IdArray]]
) -> dict[int, Turn]:
    """Return the replayed turns by the index of the recorded turn that answered them."""
    left = list(answered)
    pairs: dict[int, Turn] = {}
    for turn, prompt in zip(replayed, rebuild_prompts(replayed), strict=True):
        for place, (index, seen) in enumerate(left):
            if len(seen) == len(prompt) and (seen == prompt).all():
                pairs[index] = turn
                del left[place]
                break
    return pairs


def _number_in_threads(turns: Sequence[Turn]) -> list[int]:
    """Return each turn's number in its thread."""
    seen: dict[str, int] = {}
    numbers = []
    for turn in turns:
        numbers.append(seen.get(turn.thread, 0))
        seen[turn.thread] = numbers[-1] + 1
    return numbers


def _find_changes(old: Turn, new: Turn) -> Iterator[_Finding]:
    """Yield the differences in what the client sent."""
    today = (_day(old), _day(new))
    pairs = zip_longest(old.request["messages"], new.request["messages"])
    for number, (was, now) in enumerate(pairs):
        before, after = _mask_drawn(was, *today), _mask_drawn(now, *today)
        if before != after:
            role = (now or was)["role"]
            yield _Finding("message", number, role, *cut_excerpts(before, after, SHOWN))
    tools = [json.dumps(turn.request.get("tools", [])) for turn in (old, new)]
    if tools[0] != tools[1]:
        yield _Finding("tools", None, None, *cut_excerpts(tools[0], tools[1], SHOWN))
    limits = [_format_limits(turn.request) for turn in (old, new)]
    if limits[0] != limits[1]:
        yield _Finding("limits", None, None, *limits)


def _describe_missing(turn: Turn) -> _Finding:
    """Return a turn that was not requested, with the beginning of its last message."""
    messages = turn.request["messages"]
    last = messages[-1] if messages else None
    role = None if last is None else last["role"]
    return _Finding("missing", None, role, _message_text(last)[:SHOWN], "")


def _has_same_words(old: Turn, new: Turn) -> bool:
    """Return whether a client sent equal messages, ids of calls aside, and equal tools."""
    was, now = (
        [_message_text(message) for message in turn.request["messages"]] for turn in (old, new)
    )
    return was == now and old.request.get("tools") == new.request.get("tools")


def _compare_tokens(before: IdArray, after: IdArray, tokenizer: Tokenizer) -> _Finding | None:
    at = common_prefix_length(before, after)
    if at == len(before) == len(after):
        return None
    texts = (tokenizer.decode(ids[at : at + SHOWN_TOKENS].tolist()) for ids in (before, after))
    return _Finding("tokens", None, None, *texts)


def _message_text(message: Mapping[str, Any] | None) -> str:
    """Return a message as text, without the ids that are drawn for each call."""
    if message is None:
        return ""
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return text + "".join(f"\n{json.dumps(call, sort_keys=True)}" for call in calls)


def _mask_drawn(message: Mapping[str, Any] | None, then: str, now: str) -> str:
    """Return a message with drawn texts masked, and the date ``then`` replaced by ``now``."""
    return _DRAWN.sub("…", _message_text(message).replace(then, now))


def _day(turn: Turn) -> str:
    return datetime.fromtimestamp(turn.started_at, UTC).date().isoformat()


def _format_limits(request: Mapping[str, Any]) -> str:
    return json.dumps({key: request.get(key) for key in ("model", "max_tokens", "stop")})
