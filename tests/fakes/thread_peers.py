"""Processes that train together, as threads of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from runners.training.peers import TrainingPeers

Result = TypeVar("Result")
PATIENCE_S = 60.0


class ThreadPeers(TrainingPeers):
    """One of several that share a board; ``gather``, ``add_rows`` and ``largest`` are common to
    them.
    """

    def __init__(self, rank: int, board: list[Tensor | None], barrier: Barrier) -> None:
        super().__init__()
        self.rank, self.count = rank, len(board)
        self._board, self._barrier = board, barrier

    def gather(self, own: Tensor) -> Sequence[Tensor]:
        """See ``TrainingPeers.gather``."""
        self._board[self.rank] = own.clone()
        self._barrier.wait(PATIENCE_S)
        found = [each for each in self._board if each is not None]
        assert len({(each.shape, each.dtype) for each in found}) == 1, "alike in every process"
        self._barrier.wait(PATIENCE_S)
        return found

    def add_rows(self, rows: Tensor) -> Tensor:
        """See ``TrainingPeers.add_rows``."""
        whole = torch.stack(list(self.gather(rows))).sum(0)
        return whole.chunk(self.count)[self.rank]

    def largest(self, value: float) -> float:
        """See ``TrainingPeers.largest``."""
        return max(each.item() for each in self.gather(torch.tensor(value)))


def run_together(
    count: int, work: Callable[[TrainingPeers], Result], *, bucket: int = TrainingPeers.bucket
) -> list[Result]:
    """Do the same work as so many processes; return what each of them returns."""
    board: list[Tensor | None] = [None] * count
    barrier = Barrier(count)
    with ThreadPoolExecutor(count) as threads:
        ranks = [ThreadPeers(rank, board, barrier) for rank in range(count)]
        for each in ranks:
            each.bucket = bucket
        return list(threads.map(work, ranks))
