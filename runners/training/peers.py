"""The processes that train one policy together (data parallelism), as one of them sees the others.

Each holds all samples of a step, and runs the forward and backward passes of its share of the
samples. Weights of tokens in the loss are computed from all samples before, so the sum
of the gradients over the processes is the gradient of one process. Invariant: every process makes
the same calls in the same order, also one without samples; nothing that is decided between them
depends on a share alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp

from conf.errors import ExitCode
from runners.training.contract import TrainingError
from runners.training.sample import Sample
from runners.training.tree.packing import order_samples


class PeersLostError(TrainingError):
    """Another process did not take part in an exchange: it has ended or hangs."""

    exit_code = ExitCode.SERVICE_GONE


class TrainingPeers:
    """The ranks of torch.distributed's default group; without one, this process has no others."""

    def __init__(self) -> None:
        joined = torch.distributed.is_initialized()
        self.rank: int = torch.distributed.get_rank() if joined else 0
        self.count: int = torch.distributed.get_world_size() if joined else 1
        self._own: set[int] | None = None

    def share(self, samples: Sequence[Sample], *, tree: bool = True) -> None:
        """Begin a step: deal out the samples that have a gradient in it.

        What is next to each other in the prefix tree stays together, since it is run once; the
        shares have about as many nodes, or with ``tree=False`` tokens.
        """
        if self.count == 1:
            return
        order = order_samples(samples)
        pairs = zip(order.lengths, order.shared, strict=True)
        costs = [length - shared if tree else length for length, shared in pairs]
        until = list(accumulate(costs))
        whole = max(1, until[-1]) if until else 1
        # The middle of a sample decides, so that no share is empty for a sample that crosses; one
        # that adds no node goes where its predecessor does.
        self._own = {
            id(samples[index].tokens)
            for index, end, cost in zip(order.samples, until, costs, strict=True)
            if (end - max(cost, 1) / 2) * self.count // whole == self.rank
        }

    def owns(self, sample: Sample) -> bool:
        """Return whether this process runs a sample of ``share``, or what was made of one."""
        # a sample that is changed keeps its array of tokens
        return self._own is None or id(sample.tokens) in self._own

    @torch.no_grad()
    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set the gradient of each parameter to the sum over all processes; one that nobody has
        stays None.
        """
        trained = list(parameters) if self.count > 1 else []
        present = self._reduce([each.grad is not None for each in trained], ReduceOp.MAX)
        for each, somewhere in zip(trained, present, strict=True):
            if somewhere:
                each.grad = torch.zeros_like(each) if each.grad is None else each.grad.contiguous()
                torch.distributed.all_reduce(each.grad)

    def add(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, computed in float64."""
        return self._reduce(values, ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """Return the largest value of all processes."""
        return self._reduce([value], ReduceOp.MAX)[0]

    def any(self, flag: bool) -> bool:
        """Return whether a flag is true in any process."""
        return self.largest(float(flag)) > 0

    def join(self, numbers: Tensor) -> Tensor:
        """Return the numbers of all processes, [n] each on the CPU, in the order of their ranks."""
        if self.count == 1:
            return numbers
        sizes = self.add([len(numbers) * (rank == self.rank) for rank in range(self.count)])
        parts = [numbers.new_empty(int(size)) for size in sizes]
        parts[self.rank] = numbers
        for rank, part in enumerate(parts):
            if len(part):
                torch.distributed.broadcast(part, rank)
        return torch.cat(parts)

    def join_texts(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all processes, in the order of their ranks."""
        whole = json.dumps(list(texts)).encode() + b"\n"
        joined = self.join(torch.frombuffer(bytearray(whole), dtype=torch.uint8))
        lines = bytes(joined.tolist()).decode().splitlines()
        return [text for line in lines for text in json.loads(line)]

    def _reduce(self, values: Sequence[float], operation: ReduceOp.RedOpType) -> list[float]:
        numbers = torch.tensor(values, dtype=torch.float64)
        if self.count > 1 and len(numbers):
            torch.distributed.all_reduce(numbers, operation)
        found: list[float] = numbers.tolist()
        return found


@contextmanager
def find_lost_peers() -> Iterator[None]:
    """Turn torch.distributed's errors into ours: raises PeersLostError for a failed exchange."""
    try:
        yield
    except torch.distributed.DistError as error:
        raise _describe(error) from error
    except RuntimeError as error:  # gloo has no type of its own; it names its source file
        if "gloo" not in str(error):
            raise
        raise _describe(error) from error


def _describe(error: RuntimeError) -> PeersLostError:
    reason = str(error).partition("\n")[0]
    return PeersLostError(f"the trainer's processes cannot exchange: {reason}")
