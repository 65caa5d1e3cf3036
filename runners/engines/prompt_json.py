"""The JSON of long prompts: most continue one that was sent before, whose text is kept.

A prompt is known by its memory: the prompts of a branch lie in one array that grows at its end
(``runners/gateway/tree/growing_ids.py``), so the text of what was there before still holds, and
nothing of it is read, compared or copied. The text goes when the array goes: with its session.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import ref

import numpy as np
import orjson

from runners.records.record import IdArray

LEAST_TOKENS = 4096
"""Ids that are written anew in less time than it takes to look for them."""
LAST_BYTES = 32 << 10
"""They are copied in less time than it takes to send a part of its own."""
MAX_BYTES = 64 << 20
"""Of all kept texts: those of 170 prompts of 66,000 ids."""


@dataclass(slots=True)
class _Written:
    """The text of the first ids of an array."""

    ids: ref[IdArray]
    count: int = 0
    """Ids that are written."""
    size: int = 0
    """Bytes of ``parts``."""
    parts: tuple[bytes, ...] = ()
    """``1,2`` and ``,3,4``: each is less than half as long as the one before it, and only the last
    one has less than ``LAST_BYTES``: so there are few, and a byte of another is copied a few times
    in all.
    """


class PromptJson:
    """The texts of the prompts that were sent last, one per array."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        """``max_bytes``: of what is kept."""
        self.bytes = 0
        """Of what is kept, now."""
        self._max_bytes = max_bytes
        self._written: dict[int, _Written] = {}
        """By the address of the array object, the latest last."""

    def write(self, ids: IdArray) -> tuple[bytes, ...]:
        """Return the text of a prompt, int32 [n], without its brackets, in parts. The array, and
        the one that it is a view of, are not to be changed after, but behind what was written.
        """
        owner = ids if ids.base is None or not isinstance(ids.base, np.ndarray) else ids.base
        if len(ids) < LEAST_TOKENS or _address(ids) != _address(owner):
            return (_dumps(ids),)
        known = self._forget(id(owner))
        assert known is None or known.ids() is owner  # else it had been forgotten
        if known is None or known.count > len(ids):
            known = self._begin(owner)
        _add(known, ids)
        self._written[id(owner)] = known
        self.bytes += known.size
        if self.bytes > self._max_bytes:
            self._forget_oldest()
        return known.parts

    def _forget_oldest(self) -> None:
        # of a copy: a collection of garbage, on any thread, may forget others meanwhile
        for key in list(self._written):
            if self.bytes <= self._max_bytes:
                return
            self._forget(key)

    def _begin(self, owner: IdArray) -> _Written:
        key = id(owner)

        def forget(_: object) -> None:
            self._forget(key)

        return _Written(ref(owner, forget))

    def _forget(self, key: int) -> _Written | None:
        known = self._written.pop(key, None)
        if known is not None:
            self.bytes -= known.size
        return known


def _add(known: _Written, ids: IdArray) -> None:
    """Write those ids that are new."""
    if len(ids) == known.count:
        return
    parts = [*known.parts, b"," * (known.count > 0) + _dumps(ids[known.count :])]
    while len(parts) > 1 and len(parts[-2]) <= max(2 * len(parts[-1]), LAST_BYTES):
        parts[-2:] = [parts[-2] + parts[-1]]
    known.count, known.parts = len(ids), tuple(parts)
    known.size = sum(map(len, parts))


def _address(ids: IdArray) -> int:
    address: int = ids.__array_interface__["data"][0]
    return address


def _dumps(ids: IdArray) -> bytes:
    """Return ``1,2,3``."""
    return orjson.dumps(ids, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
