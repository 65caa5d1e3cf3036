"""Work on texts: short ones at once, long ones in a process of the pool.

The bounds below keep each piece of work at once under 10 ms; a session does one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conf.sections.gateway import GatewayLimitsConfig
from runners.gateway.calls.call_ids import name_calls, order_results
from runners.gateway.conversation import Piece, TurnRequest, group_messages
from runners.gateway.dialects.append_only_list import AppendOnlyList
from runners.gateway.dialects.attribution import ATTRIBUTION_HEADERS
from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.dialects.endpoints import DIALECTS
from runners.gateway.dialects.json_text import mend_unicode
from runners.gateway.dialects.transfer import from_plain, read_pieces
from runners.gateway.fair_scheduling import FairScheduler, Result
from runners.gateway.refusal import OverLimit, RefusalKind
from runners.gateway.texts.request_cache import Continuation, KnownBody, RequestCache, read_marks
from runners.gateway.texts.text_pool import TextFailed, TextPool
from runners.gateway.texts.text_work import (
    PROMPT_END,
    OutputText,
    TextWork,
    count_characters,
    parse_continuation,
    parse_request,
)
from runners.gateway.texts.text_worker import pack_ids
from runners.records.record import IdArray
from runners.records.tokenizer import ParsedResponse, ToolCall

SHORT_TEXT = 8_000
"""Characters that are tokenised at once: 4 ms, and twice that for random ones."""

SHORT_BODY = 1 << 20
"""Bytes of JSON that are parsed at once: up to 5 ms."""

FEW_VALUES = 5_000
"""Brackets and commas of a body that is parsed at once; those in its texts count too."""

PIECE_CHARACTERS = 80
"""Characters that cost as much to render as a piece, without its own."""

VALUE_CHARACTERS = 10
"""Characters that cost as much to render as a value of a tool's schema or of a call's arguments."""

SLICE = 1000
"""Pieces or marks that are made at once of what a process has parsed: up to 2 ms."""

SHORT_PATH = 262_144
"""Tokens of a turn, and of its prompt's tail, that are continued at once: copied, up to 5 ms."""

SHORT_TAIL = 4096
"""Tokens at the end of a prompt that renderers get, if one of them ends a turn: they look for an
open thought behind the last such token, 0.25 µs per token. A chat template leaves a few.
"""

NEAR_TAIL = 32
"""Tokens of these in which such a token mostly stands: the head of an answer comes after it."""

SHORT_OUTPUT = 2048
"""Tokens of an answer that is parsed at once."""


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A prompt, or the end of one."""

    ids: IdArray
    """int32 [n]"""
    forged: int = 0
    """Control tokens that are spelled in its content, as plain text."""


NO_IDS = PromptIds(np.empty(0, np.int32))


class Texts:
    """The texts of one gateway."""

    def __init__(
        self, work: TextWork | None, limits: GatewayLimitsConfig, pool: TextPool | None = None
    ) -> None:
        """``work`` None: the engine takes texts, and prompts have no ids (they are empty lists).

        ``pool`` None: all work is done at once.
        """
        self._work = work
        self._limits = limits
        self._pool = pool
        self._share = FairScheduler()

    @property
    def has_ids(self) -> bool:
        """True if texts become token ids here, False if the engine takes texts."""
        return self._work is not None

    def stop_token_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a turn."""
        return () if self._work is None else self._work.stop_token_ids()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens written out."""
        return "" if self._work is None else self._work.decode(ids)

    async def parse(
        self,
        session_id: str,
        path: str,
        body: Sequence[bytes],
        headers: Mapping[str, str],
        max_context_tokens: int,
        known: RequestCache | None = None,
    ) -> ParsedRequest:
        """Parse a request; ``body`` is in pieces. Raises Refused.

        ``known``: the bodies that the session has sent; this one is added to them.
        """
        whole, found, known, replaced = b"", None, known or RequestCache(), 0
        if self._pool is None or sum(map(len, body)) <= SHORT_BODY:
            whole, replaced = mend_unicode(b"".join(body))
            body = [whole]
            with suppress(ValueError, RecursionError):
                found = known.find(path, whole, DIALECTS[path].conversation)
            if self._pool is None or _has_few_values(found.new_bytes() if found else whole):
                parsed = await self._at_once(
                    session_id,
                    lambda: self._parse(path, whole, found, headers, max_context_tokens, known),
                )
                return _with_replaced(parsed, replaced)
        plain = await self._run(
            session_id,
            {
                "kind": "parse",
                "path": path,
                "headers": {
                    name.lower(): value
                    for name, value in headers.items()
                    if name.lower().startswith(ATTRIBUTION_HEADERS)
                },
                "max_context_tokens": max_context_tokens,
                "with_marks": found is not None,
            },
            body,
        )
        items: list[Piece] = []
        if found is not None and (read := plain["read"]) is not None:
            items = await _in_slices(read_pieces, read["pieces"])
            marks = await _in_slices(read_marks, read["marks"])
            ends = read["start"], read["close"]
            known.add(
                KnownBody(path, whole, *ends, AppendOnlyList(marks), AppendOnlyList(items)), found
            )
        pieces = await _in_slices(lambda part: read_pieces(part, items), plain["pieces"])
        return _with_replaced(from_plain(plain, pieces), replaced or plain["replaced"])

    def _parse(
        self,
        path: str,
        body: bytes,
        found: Continuation | None,
        headers: Mapping[str, str],
        max_context_tokens: int,
        known: RequestCache,
    ) -> ParsedRequest:
        if found is None:
            return parse_request(path, body, headers, self._limits, max_context_tokens)
        parsed, read = parse_continuation(found, headers, self._limits, max_context_tokens)
        if read is not None:
            known.add(read, found)
        return parsed

    async def render(self, session_id: str, request: TurnRequest) -> PromptIds:
        """Return a whole conversation as ids; raises Refused."""
        work = self._work
        if work is None:
            return NO_IDS
        messages = name_calls(
            group_messages(request.pieces, request.tools), request.pieces, own_ids=work.own_ids
        )
        values = (*request.tools, *(piece.arguments for piece in request.pieces))
        size = _size(request.pieces) + _size_of_values(values)
        if self._pool is None or size <= SHORT_TEXT:
            made = await self._at_once(session_id, lambda: work.render(messages, request.tools))
            return PromptIds(np.array(made.ids, np.int32), made.forged)
        job = {"kind": "render", "messages": messages, "tools": request.tools}
        packed, forged = await self._run(session_id, job)
        return PromptIds(np.frombuffer(packed, np.int32), forged)

    async def extend(
        self,
        session_id: str,
        path: IdArray,
        prompt_length: int,
        request: TurnRequest,
        first_new_piece: int,
    ) -> PromptIds | str:
        """Return the ids that continue ``path``, or why there are none; see ``TextWork.extend``."""
        work = self._work
        if work is None:
            return NO_IDS
        pieces = request.pieces[first_new_piece:]
        messages = group_messages(pieces, request.tools)
        if work.orders_results:
            messages = order_results(messages, request.pieces, first_new_piece)
        messages = name_calls(messages, request.pieces, first_new_piece, own_ids=work.own_ids)
        start = self._tail_start(path[:prompt_length])
        tail = path[start or 0 :]
        held = prompt_length - (start or 0)
        values = [piece.arguments for piece in pieces]
        if any(piece.references for piece in pieces):
            values += request.tools
        size = _size(pieces) + _size_of_values(values)
        if self._pool is None or (
            start is not None and size <= SHORT_TEXT and len(tail) <= SHORT_PATH
        ):
            found = await self._at_once(
                session_id, lambda: work.extend(tail.tolist(), held, messages, request.tools)
            )
        else:
            job = {"kind": "extend", "path": tail.tobytes(), "prompt_length": held}
            sent = await self._run(
                session_id, {**job, "messages": messages, "tools": request.tools}
            )
            if isinstance(sent, str):
                return sent
            return PromptIds(np.frombuffer(sent[0], np.int32), sent[1])
        if isinstance(found, str):
            return found
        return PromptIds(np.array(found.ids, np.int32), found.forged)

    async def read_output(
        self, session_id: str, ids: list[int], tools: list[dict[str, Any]], prompt: IdArray
    ) -> OutputText:
        """Parse sampled tokens. Never raises Refused: the policy has sampled them, so they are a
        turn, and one that no parser takes in time is one malformed call.
        """
        work = self._work
        assert work is not None
        tail = prompt[-PROMPT_END:].tolist()
        if self._pool is None or len(ids) <= SHORT_OUTPUT:
            return await self._at_once(session_id, lambda: work.read_output(ids, tools, tail))
        job = {"kind": "read_output", "ids": pack_ids(ids), "prompt": tail, "tools": tools}
        try:
            content, reasoning, calls, retokenizes = await self._pool.run(session_id, job)
        except TextFailed:
            return OutputText(self.read_unparsed(ids), retokenizes=False)
        tool_calls = [ToolCall(*call) for call in calls]
        return OutputText(ParsedResponse(content, reasoning, tool_calls), retokenizes)

    def _tail_start(self, prompt: IdArray) -> int | None:
        """Return where the part of a prompt begins that the renderers look at: none looks further
        back than to the last token that ends a turn. None if that may be all of a long prompt.
        """
        stops = self.stop_token_ids()
        near = prompt[-NEAR_TAIL:].tolist()
        for back, token in enumerate(reversed(near), 1):
            if token in stops:
                return len(prompt) - back
        start = max(0, len(prompt) - SHORT_TAIL)
        places = np.flatnonzero(np.isin(prompt[start:], stops))
        if len(places):
            return start + int(places[-1])
        return None if start else 0

    def read_unparsed(self, ids: list[int]) -> ParsedResponse:
        """Return sampled tokens as one call that cannot be parsed."""
        assert self._work is not None
        return self._work.read_unparsed(ids)

    async def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            await self._pool.close()

    async def _at_once(self, session_id: str, work: Callable[[], Result]) -> Result:
        return work() if self._pool is None else await self._share.run(session_id, work)

    async def _run(self, session_id: str, job: dict[str, Any], body: Sequence[bytes] = ()) -> Any:
        assert self._pool is not None
        try:
            return await self._pool.run(session_id, job, body)
        except TextFailed as failed:
            raise OverLimit(
                RefusalKind.TOO_LARGE, f"the text of this request cannot be tokenised: {failed}"
            ) from failed


def _with_replaced(parsed: ParsedRequest, replaced: int) -> ParsedRequest:
    if not replaced:
        return parsed
    return replace(parsed, request=replace(parsed.request, replaced_surrogates=replaced))


async def _in_slices(
    make: Callable[[Sequence[Any]], list[Result]], plain: Sequence[Any]
) -> list[Result]:
    """Return what ``make`` returns of all, with a pause of the loop between slices."""
    made: list[Result] = []
    for start in range(0, len(plain), SLICE):
        made += make(plain[start : start + SLICE])
        await asyncio.sleep(0)
    return made


def _has_few_values(body: bytes) -> bool:
    return body.count(b"[") + body.count(b"{") + body.count(b",") <= FEW_VALUES


def _size(pieces: Sequence[Piece]) -> int:
    return sum(len(piece.text) for piece in pieces) + len(pieces) * PIECE_CHARACTERS


def _size_of_values(values: Iterable[Any]) -> int:
    """Return the characters of what is rendered beside the texts, as far as it is of interest."""
    size = 0
    for value in values:
        size += count_characters(value, VALUE_CHARACTERS)
        if size > SHORT_TEXT:
            break
    return size
