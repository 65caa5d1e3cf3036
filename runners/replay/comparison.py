"""Where a replayed session's requests differ from those that were recorded.

Compared is what the client sent (messages, tools, limits) and then, where that is equal, what the
model would have seen. What two runs of the same program never have in common (ids it draws, clocks)
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

from runners.gateway.tokenizer import Tokenizer
from runners.replay.recording import Unanswered, prompts
from runners.trajectory.prefix import common_prefix_length
from runners.trajectory.record import BranchKind, IdArray, Turn

What = Literal["message", "tools", "limits", "tokens", "missing", "extra"]
"""``message``: one of those that the turn added; ``tools``, and ``limits`` (model, max_tokens,
stop): what came with them; ``tokens``: the same words became another prompt; ``missing``: the
program did not ask for the turn; ``extra``: it asked for one more.
"""

DRAWN = (
    r"\b\d+(\.\d+)? ?(s|ms|seconds)\b",  # how long something took
    r"\bChunk ID: [0-9a-f]+",  # Codex, of each command's output
    r'"nickname":"[^"]*"',  # Codex, of a sub-agent
    r"\bagentId: \w+",  # Claude Code, of a sub-agent
    r"\bduration_ms: \d+",
    r"\bsubagent_tokens: \d+",  # counts those of such ids too
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
)
"""What agent programs and test runners draw anew or measure."""
_DRAWN = re.compile("|".join(DRAWN))
SHOWN_BEFORE, SHOWN = 60, 400
"""Characters shown before the first that differs, and in all."""
SHOWN_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """A request that is not the recorded one."""

    what: What
    branch: BranchKind | None
    """What the turn is for; None: the program began a line of work that was not recorded."""
    thread: str | None
    """Who asks, as recorded."""
    turn: int
    """Number of the turn in its thread, from 0."""
    index: int
    """Number of the turn in its session, from 0; of an extra one, that of the turn before it."""
    message: int | None
    """Which of the messages that the turn added, from 0."""
    role: str | None
    recorded: str
    """From a little before the first character that differs."""
    replayed: str


def compare(
    recorded: Sequence[Turn],
    replayed: Sequence[Turn],
    asked: Sequence[tuple[int, IdArray]],
    unanswered: Sequence[Unanswered],
    tokenizer: Tokenizer,
) -> list[Difference]:
    """Return every difference, in the recorded order: a turn that was not recorded stands behind
    the one that it goes on from.

    ``asked`` says which recorded turn answered which prompt.
    """
    pairs = _pairs(replayed, asked)
    exact: set[int] = set()
    differences: list[Difference] = []
    numbers = _numbers(recorded)
    old_prompts, new_prompts = prompts(recorded), prompts(replayed)
    for turn in recorded:
        other = pairs.get(turn.index)
        if other is None:
            found: _Found | None = _missing(turn)
        else:
            found = next(_differing(turn, other), None)
            if _same(turn, other) and (turn.parent is None or turn.parent in exact):
                exact.add(turn.index)
                before, after = old_prompts[turn.index], new_prompts[other.index]
                found = found or _of_tokens(before, after, tokenizer)
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
        differences.append(_extra(extra, recorded, numbers, tokenizer))
    return sorted(differences, key=lambda found: found.index)


def _extra(
    extra: Unanswered, recorded: Sequence[Turn], numbers: Sequence[int], tokenizer: Tokenizer
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
class _Found:
    what: What
    message: int | None
    role: str | None
    recorded: str
    replayed: str


def _pairs(replayed: Sequence[Turn], asked: Sequence[tuple[int, IdArray]]) -> dict[int, Turn]:
    """Return the replayed turns by the index of the recorded turn that answered them."""
    left = list(asked)
    pairs: dict[int, Turn] = {}
    for turn, prompt in zip(replayed, prompts(replayed), strict=True):
        for place, (index, seen) in enumerate(left):
            if len(seen) == len(prompt) and (seen == prompt).all():
                pairs[index] = turn
                del left[place]
                break
    return pairs


def _numbers(turns: Sequence[Turn]) -> list[int]:
    """Return each turn's number in its thread."""
    seen: dict[str, int] = {}
    numbers = []
    for turn in turns:
        numbers.append(seen.get(turn.thread, 0))
        seen[turn.thread] = numbers[-1] + 1
    return numbers


def _differing(old: Turn, new: Turn) -> Iterator[_Found]:
    """Yield what a client sent differently."""
    today = (_day(old), _day(new))
    pairs = zip_longest(old.request["messages"], new.request["messages"])
    for number, (was, now) in enumerate(pairs):
        before, after = _plain(was, *today), _plain(now, *today)
        if before != after:
            role = (now or was)["role"]
            yield _Found("message", number, role, *_excerpts(before, after))
    tools = [json.dumps(turn.request.get("tools", [])) for turn in (old, new)]
    if tools[0] != tools[1]:
        yield _Found("tools", None, None, *_excerpts(*tools))
    limits = [_limits(turn.request) for turn in (old, new)]
    if limits[0] != limits[1]:
        yield _Found("limits", None, None, *limits)


def _missing(turn: Turn) -> _Found:
    """Return what the program did not ask: how the last message of its request begins."""
    messages = turn.request["messages"]
    last = messages[-1] if messages else None
    role = None if last is None else last["role"]
    return _Found("missing", None, role, _words(last)[:SHOWN], "")


def _same(old: Turn, new: Turn) -> bool:
    """Return whether a client sent the same words, ids of calls aside, and nothing drawn."""
    was, now = ([_words(message) for message in turn.request["messages"]] for turn in (old, new))
    return was == now and old.request.get("tools") == new.request.get("tools")


def _of_tokens(before: IdArray, after: IdArray, tokenizer: Tokenizer) -> _Found | None:
    at = common_prefix_length(before, after)
    if at == len(before) == len(after):
        return None
    texts = (tokenizer.decode(ids[at : at + SHOWN_TOKENS].tolist()) for ids in (before, after))
    return _Found("tokens", None, None, *texts)


def _words(message: Mapping[str, Any] | None) -> str:
    """Return a message as text, without the ids that are drawn for each call."""
    if message is None:
        return ""
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return text + "".join(f"\n{json.dumps(call, sort_keys=True)}" for call in calls)


def _plain(message: Mapping[str, Any] | None, then: str, now: str) -> str:
    """Return a message without what is drawn or measured; ``then`` and ``now`` are one day."""
    return _DRAWN.sub("…", _words(message).replace(then, now))


def _day(turn: Turn) -> str:
    return datetime.fromtimestamp(turn.started_at, UTC).date().isoformat()


def _limits(request: Mapping[str, Any]) -> str:
    return json.dumps({key: request.get(key) for key in ("model", "max_tokens", "stop")})


def _excerpts(before: str, after: str) -> tuple[str, str]:
    """Return both texts from a little before the first character that differs."""
    pairs = enumerate(zip(before, after, strict=False))
    at = next((n for n, (b, a) in pairs if b != a), min(len(before), len(after)))
    start = max(0, at - SHOWN_BEFORE)
    return before[start : start + SHOWN], after[start : start + SHOWN]
