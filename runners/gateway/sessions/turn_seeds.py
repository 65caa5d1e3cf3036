"""Seeds of a session's turns, which follow from what the policy reads, not from when it is asked.

Invariant: a turn's seed is a function of the session's seed, its prompt, and the number of turns of
the same prompt that were taken or are in flight. So sub-agents that run at once sample the same
tokens in any order of their requests, and the retry of a turn that was never taken samples the same
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from runners.records.record import IdArray

KEY_BYTES = 16


@dataclass(slots=True)
class SeedPlace:
    """The seed of a turn in flight."""

    prompt: bytes
    """Digest of its prompt."""
    number: int
    """Among the turns of the same prompt."""
    seed: int
    """31 bits, as every engine takes them."""
    is_taken: bool = False


class TurnSeeds:
    """Gives out the seeds of one session."""

    def __init__(self, session_seed: int) -> None:
        self._session_seed = session_seed
        self._prompts: list[bytes] = []
        """By turn: the digest of its prompt."""
        self._used: dict[bytes, set[int]] = {}
        """Numbers of the turns taken or in flight, by the digest of their prompt."""

    @contextmanager
    def reserve(self, parent: int | None, added: IdArray) -> Iterator[SeedPlace]:
        """Yield the seed of a turn that continues turn ``parent``; None: it continues none.

        ``added``: the ids of its prompt after the parent's prompt, int32 [n]; without ids of any,
        it is empty. Unless the turn is added before the end, the next turn of the same prompt gets
        its seed.
        """
        before = b"" if parent is None else self._prompts[parent]
        prompt = blake2b(before + added.astype(np.int64).tobytes(), digest_size=KEY_BYTES).digest()
        used = self._used.setdefault(prompt, set())
        number = next(n for n in range(len(used) + 1) if n not in used)
        used.add(number)
        name = f"{self._session_seed}:{number}:".encode() + prompt
        seed = int.from_bytes(blake2b(name, digest_size=4).digest()) >> 1
        place = SeedPlace(prompt, number, seed)
        try:
            yield place
        finally:
            if not place.is_taken:
                used.discard(number)

    def add_turn(self, place: SeedPlace) -> None:
        """Keep the seed of the session's next turn."""
        place.is_taken = True
        self._prompts.append(place.prompt)
