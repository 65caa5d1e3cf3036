"""Builds the JSON of one rollout for the page, of a bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.observe.export.contract import Decode
from runners.observe.export.html import build_turn_graph
from runners.observe.export.page_texts import TextCutter
from runners.observe.viewer.filters import ViewError
from runners.observe.viewer.rollout_view import ViewedRollout
from runners.records.record import Segment, Turn
from runners.records.routing import (
    NO_ROW,
    RoutingError,
    RoutingShape,
    build_segment_routing,
    checksum_tokens,
)

TOKENS = 4000
"""Tokens of one answer, as the page draws at once (``tokens.js``)."""
NOT_RECORDED, RECORDED, OTHER_WEIGHTS = range(3)
"""Codes of what the store has of a token's experts."""


def build_document(view: ViewedRollout) -> dict[str, Any]:
    """Return a rollout without its tokens; texts that are too long are cut, and say so."""
    graph = build_turn_graph(view.exported, tokens=False)
    document: dict[str, Any] = TextCutter().cut(graph)
    for turn in document["turns"]:
        turn["wired"] = turn["index"] in view.wired
    return document | {"attempts": view.attempts, "progress": view.progress}


def build_tokens(
    view: ViewedRollout,
    index: int,
    start: int,
    decode: Decode | None,
    shape: RoutingShape | None,
    agreements: Iterable[tuple[int, NDArray[np.uint8]]] = (),
) -> dict[str, Any]:
    """Return a page of a turn's tokens, those that it added, from the ``start``-th on.

    ``logprobs`` are null for tokens that were not sampled, ``routed`` has a code for each token,
    ``agreed`` the percentage of its experts that training's own router would choose, null: not
    known; ``words`` has the text of each id.

    ``agreements``: as the store has them. Raises ViewError for a turn that does not exist.
    """
    turns = view.exported.turns
    if not 0 <= index < len(turns):
        raise ViewError(f"{view.record.rollout_id} has no turn {index}: it has {len(turns)}")
    turn = turns[index]
    ids = np.concatenate([turn.prompt_new, turn.output_ids])
    prompt = len(turn.prompt_new)
    part = range(len(ids))[max(0, start) :][:TOKENS]
    shown = ids[part.start : part.stop]
    logprobs = [float(turn.output_logprobs[at - prompt]) if at >= prompt else None for at in part]
    versions = turn.output_versions
    routed = _routing_codes(view, turn, shape)
    return {
        "start": turn.prompt_kept + part.start,
        "total": len(ids),
        "ids": shown,
        "words": None if decode is None else dict(_words(shown.tolist(), decode)),
        "logprobs": logprobs,
        "versions": [int(versions[at - prompt]) if at >= prompt else None for at in part],
        "routed": None if routed is None else routed[part.start : part.stop],
        "agreed": _find_agreement(view, turn, agreements)[part.start : part.stop],
    }


def _find_agreement(
    view: ViewedRollout, turn: Turn, agreements: Iterable[tuple[int, NDArray[np.uint8]]]
) -> list[int | None]:
    """Return the percentage of each token that a turn added; of a chain that was run in training
    its beginning is known.
    """
    chain = next(each for each in view.exported.chains if each.index == turn.segment)
    for crc, percent in agreements:
        if checksum_tokens(chain.tokens[: len(percent)]) == crc and len(percent):
            part = percent[turn.prompt_kept :].tolist()
            return [None if each == NO_ROW else each for each in part]
    return []


def _words(ids: list[int], decode: Decode) -> Iterator[tuple[str, str]]:
    for token in sorted(set(ids)):
        yield str(token), decode([token])


def _routing_codes(view: ViewedRollout, turn: Turn, shape: RoutingShape | None) -> list[int] | None:
    """Return what is known of the experts of each token that a turn added; None: of no turn."""
    if shape is None:
        return None
    chain: Segment = next(each for each in view.exported.chains if each.index == turn.segment)
    parts = view.exported.routing()
    try:
        routing = build_segment_routing(chain, parts, shape)
    except RoutingError as error:
        raise ViewError(f"the experts of this turn cannot be read: {error}") from error
    codes = np.zeros(len(chain.tokens), np.int8)
    for index in chain.turns:
        if (part := parts.get(index)) is not None:
            codes[part.start : part.start + len(part.experts)] = OTHER_WEIGHTS
    codes[routing.valid] = RECORDED
    end = turn.prompt_kept + len(turn.prompt_new) + len(turn.output_ids)
    return [int(code) for code in codes[turn.prompt_kept : end]]
