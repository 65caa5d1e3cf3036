"""An engine that answers with the recorded outputs of a stored session.

A request is answered from the recorded thread that it belongs to, in whatever order requests of
several threads arrive and whatever the program names its threads now. A prompt that was recorded
gets its recorded output. A prompt that continues a turn answered here belongs to that turn's
thread. Any other prompt begins a conversation, and gets the output of the most similar turn of its
branch that began one, of those whose threads have come that far. Every turn answers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.engines.contract import EngineError, Generation, SamplingParams, TokenIds
from runners.records.graph import common_prefix_length
from runners.records.record import IdArray, Turn


def rebuild_prompts(turns: Sequence[Turn]) -> list[IdArray]:
    """Return each turn's whole prompt, int32 [prompt_tokens], from a session in order."""
    whole: list[IdArray] = []
    for turn in turns:
        kept: IdArray = np.empty(0, np.int32)
        if turn.parent is not None:
            output = turns[turn.parent].output_ids
            kept = np.concatenate([whole[turn.parent], output])[: turn.prompt_kept]
        whole.append(np.concatenate([kept, turn.prompt_new]).astype(np.int32))
    return whole


@dataclass(frozen=True, slots=True)
class UnansweredPrompt:
    """A prompt that came after the last turn of its thread."""

    prompt: IdArray
    after: int | None
    """Index of the recorded turn that it continues; None: it begins a thread that was not recorded.
    """


class RecordedEngine:
    """Answers from ``turns``, a whole session in order."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.answered: list[tuple[int, IdArray]] = []
        """Index of each turn that answered, and the prompt that it answered, in order."""
        self.unanswered: list[UnansweredPrompt] = []
        self._turns = turns
        self._prompts = rebuild_prompts(turns)
        self._left = list(range(len(turns)))

    async def generate(
        self, input_ids: TokenIds, params: SamplingParams, *, rid: str
    ) -> Generation:
        """Return the recorded output; raises EngineError (400) when the thread has no turn left.

        ``rid`` is the gateway's request id, "session:branch:name".
        """
        prompt = np.array(input_ids, np.int32)
        before = self._find_continued(prompt)
        index = self._match(prompt, before, rid.split(":")[1])
        if index is None:
            self.unanswered.append(UnansweredPrompt(prompt, before[0] if before else None))
            raise EngineError("the recorded session had no further turn here", status=400)
        self._left.remove(index)
        self.answered.append((index, prompt))
        turn = self._turns[index]
        return Generation(
            output_ids=turn.output_ids,
            logprobs=turn.output_logprobs,
            finish_reason=turn.finish_reason,
            matched=int(turn.output_ids[-1]) if turn.finish_reason == "stop" else None,
            prompt_tokens=len(prompt),
            cached_tokens=0,
            weight_version=turn.weight_version,
            weight_spans=turn.weight_spans,
            engine_s=0.0,
        )

    def _find_continued(self, prompt: IdArray) -> list[int]:
        """Return the indices of the turns that a prompt may continue.

        It begins with the turn's prompt, as it came in this replay, and shares more tokens with its
        output than with any other turn's. Several turns can agree equally.
        """
        agreement: dict[int, int] = {}
        for index, came in self.answered:
            path = np.concatenate([came, self._turns[index].output_ids])
            common = common_prefix_length(path, prompt)
            if len(came) <= common and len(came) < len(prompt):
                agreement[index] = common
        longest = max(agreement.values(), default=0)
        return [index for index, common in agreement.items() if common == longest]

    def _match(self, prompt: IdArray, before: Sequence[int], branch: str) -> int | None:
        """Return the index of the turn that answers a prompt, among those left."""
        turns, recorded = self._turns, self._prompts
        for index in self._left:
            if np.array_equal(recorded[index], prompt):
                return index
        threads = {turns[index].thread for index in before}
        its = [index for index in self._left if turns[index].thread in threads]
        if not before:
            roots = [index for index in self._left if turns[index].parent is None]
            its = [index for index in roots if turns[index].branch == branch]
            its = [index for index in its if not self._has_earlier(index)] or its

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

    def _has_earlier(self, index: int) -> bool:
        """Return whether an earlier turn of its thread has not answered: what begins anew after a
        summary is not what the thread begins with.
        """
        thread = self._turns[index].thread
        return any(self._turns[left].thread == thread for left in self._left if left < index)

    async def close(self) -> None:
        """Do nothing: no resource is open."""
