"""Random turn graphs: hypothesis strategies for the turns of a session."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from runners.records.record import Turn

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)


def make_turn(
    index: int, segment: int, parent: int | None, kept: int, new: list[int], output: list[int]
) -> Turn:
    """Return a turn of the main thread; ``kept``, ``new``: its prompt; its weights are its own."""
    return Turn(
        session_id="s",
        index=index,
        thread="main",
        parent_thread=None,
        branch="main",
        segment=segment,
        parent=parent,
        prompt_kept=kept,
        prompt_new=np.array(new, np.int32),
        output_ids=np.array(output, np.int32),
        output_logprobs=np.array([-index - i / 8 for i in range(len(output))], np.float32),
        weight_version=index + 3,
        finish_reason="stop",
        break_reason=None,
        malformed_calls=0,
        request={},
        reply={},
        usage={},
        started_at=0.0,
        engine_s=0.0,
        total_s=0.0,
    )


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[Turn], list[tuple[list[int], list[int]]]]:
    """Draw turns that continue, fork or start anew, with the prompt and output of each."""
    turns: list[Turn] = []
    seen: list[tuple[list[int], list[int]]] = []
    ends: dict[int, int] = {}
    for index in range(draw(st.integers(0, 9))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        held = [] if parent is None else [token for part in seen[parent] for token in part]
        grown = [chain for chain, end in ends.items() if end == parent]
        again: bool = draw(st.booleans())
        segment = grown[0] if grown and again else len(ends)
        new, output = draw(IDS), draw(IDS)
        turns.append(make_turn(index, segment, parent, len(held), new, output))
        seen.append((held + new, output))
        ends[segment] = index
    return turns, seen
