"""Lists of which each continues the one before it: only what is new is copied, or looked at.

Invariant: a list never changes. Its continuation lies behind it in the same memory if nothing else
does; otherwise, as when a conversation goes on from an earlier place, memory of its own is begun.
So a list that a conversation was cut to keeps nothing of what was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

T = TypeVar("T")


class _Memory(list[T]):
    """The items of several lists; only added to, by ``AppendOnlyList``."""

    led: tuple[int, AppendOnlyList[T]] | None = None
    """The last list that ``AppendOnlyList.prefixed`` made of these, and from which item on."""


class AppendOnlyList(Sequence[T]):
    """A list, with as much of the memory as it has items."""

    __slots__ = ("_length", "_memory")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, items: Iterable[T] = ()) -> None:
        """Begin memory with these items."""
        self._memory: _Memory[T] = _Memory(items)
        self._length = len(self._memory)

    def continue_from(self, length: int, added: Sequence[T] = ()) -> AppendOnlyList[T]:
        """Return the first ``length`` items of this list, and ``added`` behind them."""
        memory = self._memory
        if length < len(memory):  # not shared even if nothing is added: it would keep the rest too
            memory = _Memory(memory[:length])
        memory += added
        found: AppendOnlyList[T] = object.__new__(AppendOnlyList)
        found._memory, found._length = memory, length + len(added)
        return found

    def prefixed(self, first: T, start: int = 0) -> AppendOnlyList[T]:
        """Return ``first``, and the items from ``start`` on. It continues what was returned last of
        the same memory, if that began in the same way.
        """
        wanted = 1 + self._length - start
        begun, led = self._memory.led or (start, AppendOnlyList[T]())
        if begun != start or not led or led[0] != first:
            led = AppendOnlyList((first, *self[start:]))
        elif len(led) < wanted:
            led = led.continue_from(len(led), self[start + len(led) - 1 :])
        self._memory.led = start, led
        return led.continue_from(wanted)

    def count_shared(self, other: Sequence[T]) -> int:
        """Return how many leading items are known to be the same: they are the same memory."""
        if not isinstance(other, AppendOnlyList) or other._memory is not self._memory:
            return 0
        return min(self._length, other._length)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            start, stop, step = place.indices(self._length)
            if step == 1:
                return self._memory[start:stop]
            return [self._memory[at] for at in range(start, stop, step)]
        if not -self._length <= place < self._length:
            raise IndexError(place)
        return self._memory[place if place >= 0 else place + self._length]

    def __iter__(self) -> Iterator[T]:
        return islice(self._memory, self._length)

    def __eq__(self, other: object) -> Any:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))
