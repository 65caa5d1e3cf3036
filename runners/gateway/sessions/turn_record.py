"""The record of a turn, made of its request, its place in the session, and its answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from runners.engines.contract import Generation
from runners.gateway.conversation import Answer, TurnRequest, assistant_message, group_messages
from runners.gateway.texts.text_work import count_characters
from runners.gateway.tree.branches import Placement
from runners.records.record import Turn


def make_turn(
    place: Placement,
    generation: Generation,
    answer: Answer,
    *,
    session_id: str,
    index: int,
    segment: int,
    started_at: float,
    total_s: float,
) -> Turn:
    """Return the record of a turn; without ids if the engine has answered with a text."""
    parent, history_break, request = place.parent, place.history_break, place.request
    kept = parent.node.length if parent else 0
    return Turn(
        session_id=session_id,
        index=index,
        thread=place.thread,
        parent_thread=place.name.parent_thread,
        branch=place.branch,
        segment=segment,
        parent=parent.node.index if parent else None,
        prompt_kept=kept,
        prompt_new=np.array(place.prompt[kept:], np.int32),
        output_ids=generation.output_ids,
        output_logprobs=generation.logprobs,
        weight_version=generation.weight_version,
        finish_reason=generation.finish_reason,
        break_reason=f"{history_break.kind}: {history_break.reason}" if history_break else None,
        malformed_calls=answer.malformed_calls,
        request=_stored_request(request, place),
        reply=assistant_message(answer.text, answer.thinking, answer.calls),
        usage=answer.usage,
        started_at=started_at,
        engine_s=generation.engine_s,
        total_s=total_s,
        has_ids=generation.reply is None,
        weight_spans=[list(span) for span in generation.weight_spans],
    )


def count_added(request: TurnRequest, place: Placement) -> int:
    """Return the characters that a request adds to the session's history, about."""
    size = sum(len(piece.text) for piece in request.pieces[place.first_new_piece :])
    if place.parent is None or place.tools_changed:
        size += count_characters([request.tools, *(piece.arguments for piece in request.pieces)])
    return size


def _stored_request(request: TurnRequest, place: Placement) -> dict[str, Any]:
    """Return the part of a request that its parent turn does not have, as it is stored."""
    stored: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "messages": group_messages(request.pieces[place.first_new_piece :], request.tools),
    }
    if place.parent is None or place.tools_changed:
        stored["tools"] = request.tools
    if request.attribution.agent_type:
        stored["agent_type"] = request.attribution.agent_type
    if request.stop:
        stored["stop"] = list(request.stop)
    return stored
