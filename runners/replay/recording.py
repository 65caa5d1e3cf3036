"""The engine of a replay: it says again what the policy said in a stored session.

A request is answered from the recorded thread that it belongs to, however the requests of several
threads come in between each other, and whatever a program calls them this time. A prompt that is a
recorded one gets its answer; one that goes on from a turn that was answered here belongs to that
turn's thread; any other begins a line of its own, and gets the answer of the first turn, of its
branch, that it is most like. Every turn answers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runners.engines.contract import EngineError, Generation, SamplingParams
from runners.trajectory.prefix import common_prefix_length
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


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A prompt that came when its thread had said everything."""

    prompt: IdArray
    after: int | None
    """The recorded turn that it goes on from; None: it begins a line that nobody began then."""


class RecordedEngine:
    """Answers from ``turns``, a whole session in order."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.asked: list[tuple[int, IdArray]] = []
        """Which turn was said again, and the prompt it answered; in order."""
        self.unanswered: list[Unanswered] = []
        self._turns = turns
        self._prompts = prompts(turns)
        self._left = list(range(len(turns)))

    async def generate(
        self, input_ids: list[int], params: SamplingParams, *, rid: str
    ) -> Generation:
        """Return the recorded output; raises EngineError (400) when its thread has nothing left to
        say. ``rid`` is the gateway's: session, branch and a name.
        """
        prompt = np.array(input_ids, np.int32)
        before = self._goes_on_from(prompt)
        index = self._match(prompt, before, rid.split(":")[1])
        if index is None:
            self.unanswered.append(Unanswered(prompt, before[0] if before else None))
            raise EngineError("the recorded session had no further turn here", status=400)
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

    def _goes_on_from(self, prompt: IdArray) -> list[int]:
        """Return the turn that a prompt goes on from: it begins with that turn's prompt, as it came
        now, and repeats more of the answer than of any other's. Several, if nothing tells them
        apart.
        """
        agreement: dict[int, int] = {}
        for index, came in self.asked:
            path = np.concatenate([came, self._turns[index].output_ids])
            common = common_prefix_length(path, prompt)
            if len(came) <= common and len(came) < len(prompt):
                agreement[index] = common
        longest = max(agreement.values(), default=0)
        return [index for index, common in agreement.items() if common == longest]

    def _match(self, prompt: IdArray, before: Sequence[int], branch: str) -> int | None:
        """Return which of the turns that are left answers a prompt."""
        turns, recorded = self._turns, self._prompts
        for index in self._left:
            if np.array_equal(recorded[index], prompt):
                return index
        threads = {turns[index].thread for index in before}
        its = [index for index in self._left if turns[index].thread in threads]
        if not before:
            roots = [index for index in self._left if turns[index].parent is None]
            its = [index for index in roots if turns[index].branch == branch]

        def likeness(index: int) -> tuple[bool, bool, int, int, int]:
            return (
                turns[index].branch == branch,
                turns[index].parent in before,
                common_prefix_length(recorded[index], prompt),
                common_prefix_length(
                    recorded[index][::-1], prompt[::-1]
                ),  # its task, below other tools
                -index,
            )

        return max(its, key=likeness, default=None)

    async def update_weights(self, path: Path, version: int) -> None:
        """Refuse: a recording learns nothing."""
        raise EngineError("a recorded session has no weights")

    async def healthy(self) -> bool:
        """Return whether it answers: always."""
        return True

    async def close(self) -> None:
        """Hold nothing."""
