"""From a session's turns to its token chains.

Invariant: a chain is, token for token, what the model saw; every sampled token stands in exactly
one chain, with the mask True there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conf.errors import AgentrlError, ExitCode
from runners.trajectory.record import Segment, Turn


class ChainError(AgentrlError):
    """Stored turns do not fit together: a token would be lost or seen twice."""

    exit_code = ExitCode.DATA_REFUSED


def segments(turns: Sequence[Turn]) -> list[Segment]:
    """Concatenate one session's turns (in order of ``index``) into its chains, in order of their
    first turn.

    The chain that holds the last turn is ``final``; one that a break ended is ``wipe``. Raises
    ChainError if the turns contradict each other.
    """
    chains: dict[int, list[Turn]] = {}
    for position, turn in enumerate(turns):
        if turn.index != position or turn.session_id != turns[0].session_id:
            raise ChainError(
                f"turn {turn.index} of session {turn.session_id} stands where turn {position} of "
                f"session {turns[0].session_id} belongs: a turn is missing, doubled or foreign"
            )
        chains.setdefault(turn.segment, []).append(turn)
    return [
        _chain(index, "final" if chain[-1] is turns[-1] else "wipe", chain)
        for index, chain in chains.items()
    ]


def _chain(index: int, kind: str, turns: list[Turn]) -> Segment:
    length = 0
    for turn in turns:
        if turn.prompt_kept != length:
            raise ChainError(
                f"turn {turn.index} of session {turn.session_id} keeps {turn.prompt_kept} tokens "
                f"of a chain of {length}: the chain would not be what the model saw"
            )
        if turn.output_logprobs.shape != turn.output_ids.shape:
            raise ChainError(
                f"turn {turn.index} of session {turn.session_id} has {len(turn.output_ids)} "
                f"sampled tokens and {len(turn.output_logprobs)} logprobs"
            )
        length += len(turn.prompt_new) + len(turn.output_ids)
    tokens = np.empty(length, np.int32)
    loss_mask = np.zeros(length, np.bool_)
    logprobs = np.zeros(length, np.float32)
    weight_versions = np.full(length, -1, np.int32)
    at = 0
    for turn in turns:
        start = at + len(turn.prompt_new)
        end = start + len(turn.output_ids)
        tokens[at:start] = turn.prompt_new
        tokens[start:end] = turn.output_ids
        loss_mask[start:end] = True
        logprobs[start:end] = turn.output_logprobs
        weight_versions[start:end] = turn.weight_version
        at = end
    return Segment(
        session_id=turns[0].session_id,
        index=index,
        kind=kind,
        tokens=tokens,
        loss_mask=loss_mask,
        logprobs=logprobs,
        weight_versions=weight_versions,
        turns=tuple(turn.index for turn in turns),
    )
