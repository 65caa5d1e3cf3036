"""The engine of a replay: it says again what the policy said in a stored session.

A request is answered with the recorded turn whose prompt it is; a request that nobody made then is
answered with the turn whose prompt agrees with it longest, of several the earliest. The history
that a prompt begins with is its thread's own, so this goes thread by thread and turn by turn, also
where a program names its threads differently each time. Every turn answers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runners.engines.contract import EngineError, Generation, SamplingParams
from runners.trajectory.record import IdArray, Turn


def prompts(turns: Sequence[Turn]) -> list[IdArray]:
    """Return each turn's whole prompt."""
    whole: list[IdArray] = []
    for turn in turns:
        kept: IdArray = np.empty(0, np.int32)
        if turn.parent is not None:
            said = turns[turn.parent].output_ids
            kept = np.concatenate([whole[turn.parent], said])[: turn.prompt_kept]
        whole.append(np.concatenate([kept, turn.prompt_new]).astype(np.int32))
    return whole


class RecordedEngine:
    """Answers from ``turns``, a whole session in order."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.asked: list[tuple[int, IdArray]] = []
        """Which turn was said again, and the prompt it answered; in order."""
        self.unanswered: list[IdArray] = []
        """Prompts that came when everything had been said."""
        self._turns = turns
        self._prompts = prompts(turns)
        self._left = list(range(len(turns)))

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Return the recorded output; raises EngineError (400) when nothing is left to say."""
        prompt = np.array(input_ids, np.int32)
        if not self._left:
            self.unanswered.append(prompt)
            raise EngineError("the recorded session had no further turn", status=400)
        index = max(self._left, key=lambda at: (self._agreement(at, prompt), -at))
        self._left.remove(index)
        self.asked.append((index, prompt))
        turn = self._turns[index]
        return Generation(
            output_ids=turn.output_ids,
            logprobs=turn.output_logprobs,
            finish_reason=turn.finish_reason,
            matched=int(turn.output_ids[-1]) if turn.finish_reason == "stop" else None,
            prompt_tokens=len(prompt),
            cached_tokens=0,
            weight_version=turn.weight_version,
            engine_s=0.0,
        )

    def _agreement(self, index: int, prompt: IdArray) -> tuple[bool, int]:
        """Return whether a prompt is that of a turn, and how many tokens they share from the first
        on.
        """
        recorded = self._prompts[index]
        return np.array_equal(recorded, prompt), shared(recorded, prompt)

    async def update_weights(self, path: Path, version: int) -> None:
        """Refuse: a recording learns nothing."""
        raise EngineError("a recorded session has no weights")

    async def healthy(self) -> bool:
        """Return whether it answers: always."""
        return True

    async def close(self) -> None:
        """Hold nothing."""


def shared(one: IdArray, other: IdArray) -> int:
    """Return how many tokens two sequences share from the first on."""
    size = min(len(one), len(other))
    unequal = np.flatnonzero(one[:size] != other[:size])
    return int(unequal[0]) if len(unequal) else size
