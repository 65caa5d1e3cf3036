"""The processes that train one policy together (data parallelism), as one of them sees the others.

Each holds all samples of a step, and runs the forward and backward passes of its share of the
samples. Weights of tokens in the loss are computed from all samples before, so the sum
of the gradients over the processes is the gradient of one process. Invariant: every process makes
the same calls in the same order, also one without samples; nothing that is decided between them
depends on a share alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor, nn

from conf.errors import ExitCode
from runners.training.sample import Sample
from runners.training.training_error import TrainingError
from runners.training.tree.packing import order_samples

# torch 2.13 has new names, and warns of the old ones.
_all_gather: Callable[[Tensor, Tensor], object] = getattr(
    torch.distributed, "all_gather_single", None
) or getattr(torch.distributed, "all_gather_into_tensor")  # noqa: B009
_reduce_scatter: Callable[[Tensor, Tensor], object] = getattr(
    torch.distributed, "reduce_scatter_single", None
) or getattr(torch.distributed, "reduce_scatter_tensor")  # noqa: B009


class PeersLostError(TrainingError):
    """Another process did not take part in an exchange: it has ended or hangs."""

    exit_code = ExitCode.SERVICE_GONE


class TrainingPeers:
    """No others: one process has all samples."""

    rank = 0
    count = 1
    bucket = 1 << 24
    """Numbers that are exchanged in one call: 64 MiB of float32. A call costs some 10 µs, a copy
    memory.
    """

    def __init__(self) -> None:
        self._own: set[int] | None = None
        self._places: dict[int, int] = {}
        """Place of each sample's array of tokens in the order of the step's prefix tree."""
        self._shared: list[int] = []
        """Nodes that the sample at each place has in common with the one before it."""

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
        self._places = {id(samples[index].tokens): n for n, index in enumerate(order.samples)}
        self._shared = order.shared if tree else [0] * len(order.shared)
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

    def count_repeated(self, samples: Sequence[Sample]) -> int:
        """Count the nodes of some of the step's samples that this process runs and one before it,
        too.

        In the order of the tree a sample has most in common with the one before it, and two have
        in common what all neighbours between them have.
        """
        if self._own is None:
            return 0
        tokens = {id(sample.tokens) for sample in samples} & self._places.keys()
        places = sorted((self._places[each], each in self._own) for each in tokens)
        first = next((n for n, (_, own) in enumerate(places) if own), 0)
        if not first:
            return 0
        before, own = places[first - 1][0], places[first][0]
        return min(self._shared[before + 1 : own + 1])

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set the gradient of each parameter to the sum over all processes; one that nobody has
        stays None.
        """

    def add(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, computed in float64."""
        return list(values)

    def largest(self, value: float) -> float:
        """Return the largest value of all processes."""
        return value

    def any(self, flag: bool) -> bool:
        """Return whether a flag is true in any process."""
        return self.largest(float(flag)) > 0

    def join(self, numbers: Tensor) -> Tensor:
        """Return the numbers of all processes, [n] each, in the order of their ranks."""
        return numbers

    def gather(self, own: Tensor) -> Sequence[Tensor]:
        """Return the tensors of all processes, alike in shape and type, in the order of their
        ranks.
        """
        return [own]

    def join_rows(self, own: Tensor) -> Tensor:
        """Return the rows of all processes, which have as many each, in the order of their ranks:
        [count · n, …] of [n, …], on their device.
        """
        return torch.cat(list(self.gather(own)))

    def add_rows(self, rows: Tensor) -> Tensor:
        """Return this process's part of the sum over all processes: [n, …] of [count · n, …]."""
        return rows

    def join_texts(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all processes, in the order of their ranks."""
        whole = json.dumps(list(texts)).encode() + b"\n"
        joined = self.join(torch.frombuffer(bytearray(whole), dtype=torch.uint8))
        lines = bytes(joined.tolist()).decode().splitlines()
        return [text for line in lines for text in json.loads(line)]


class ProcessPeers(TrainingPeers):
    """The ranks of torch.distributed's default group, which the caller has initialised."""

    def __init__(self, device: torch.device) -> None:
        """``device``: where this process trains."""
        super().__init__()
        self.rank = torch.distributed.get_rank()
        self.count = torch.distributed.get_world_size()
        self._device = device

    @torch.no_grad()
    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """See ``TrainingPeers.add_gradients``; raises PeersLostError, as all of them do."""
        trained = list(parameters)
        present = torch.tensor([each.grad is not None for each in trained], dtype=torch.int32)
        present = self._reduce(present, torch.distributed.ReduceOp.MAX)
        bucket: list[nn.Parameter] = []
        for each, somewhere in zip(trained, present.tolist(), strict=True):
            if not somewhere:
                continue
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            if bucket and sum(other.numel() for other in bucket) + each.numel() > self.bucket:
                self._add_bucket(bucket)
                bucket = []
            bucket.append(each)
        if bucket:
            self._add_bucket(bucket)

    def add(self, values: Sequence[float]) -> list[float]:
        """See ``TrainingPeers.add``."""
        numbers = torch.tensor(values, dtype=torch.float64)
        found: list[float] = self._reduce(numbers, torch.distributed.ReduceOp.SUM).tolist()
        return found

    def largest(self, value: float) -> float:
        """See ``TrainingPeers.largest``."""
        number = torch.tensor([value], dtype=torch.float64)
        return float(self._reduce(number, torch.distributed.ReduceOp.MAX).item())

    def gather(self, own: Tensor) -> Sequence[Tensor]:
        """See ``TrainingPeers.gather``."""
        parts = [torch.empty_like(own) for _ in range(self.count)]
        with _exchange():
            torch.distributed.all_gather(parts, own)
        return parts

    def join_rows(self, own: Tensor) -> Tensor:
        """See ``TrainingPeers.join_rows``."""
        joined = own.new_empty(self.count * len(own), *own.shape[1:])
        with _exchange():
            _all_gather(joined, own)
        return joined

    def add_rows(self, rows: Tensor) -> Tensor:
        """See ``TrainingPeers.add_rows``."""
        part = rows.new_empty(len(rows) // self.count, *rows.shape[1:])
        with _exchange():
            _reduce_scatter(part, rows)
        return part

    def join(self, numbers: Tensor) -> Tensor:
        """See ``TrainingPeers.join``."""
        lengths = [0.0] * self.count
        lengths[self.rank] = float(len(numbers))
        sizes = [int(size) for size in self.add(lengths)]
        own = torch.zeros(max(1, *sizes), dtype=numbers.dtype, device=self._device)
        own[: len(numbers)] = numbers
        parts = self.gather(own)
        return torch.cat([part[:size].cpu() for part, size in zip(parts, sizes, strict=True)])

    def _add_bucket(self, bucket: Sequence[nn.Parameter]) -> None:
        """Add up gradients in one call, on their device and in their type."""
        gradients = [each.grad for each in bucket if each.grad is not None]
        if len(bucket) == 1 and gradients[0].is_contiguous():  # a large one, without a copy
            with _exchange():
                torch.distributed.all_reduce(gradients[0])
            return
        whole = torch.cat([gradient.flatten() for gradient in gradients])
        with _exchange():
            torch.distributed.all_reduce(whole)
        parts = torch.split(whole, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _reduce(self, numbers: Tensor, operation: torch.distributed.ReduceOp.RedOpType) -> Tensor:
        moved = numbers.to(self._device)
        with _exchange():
            torch.distributed.all_reduce(moved, operation)
        return moved.cpu()


@contextmanager
def find_lost_peers() -> Iterator[None]:
    """Raise PeersLostError for a failed exchange inside of a forward or backward pass."""
    try:
        yield
    except torch.distributed.DistError as error:
        raise _describe(error) from error
    except RuntimeError as error:  # gloo has no type of its own; it names its source file
        if "gloo" not in str(error):
            raise
        raise _describe(error) from error


@contextmanager
def _exchange() -> Iterator[None]:
    """Turn torch.distributed's errors into ours."""
    try:
        yield
    except torch.OutOfMemoryError:  # a RuntimeError, too, and our own fault
        raise
    except RuntimeError as error:
        raise _describe(error) from error


def _describe(error: RuntimeError) -> PeersLostError:
    reason = str(error).partition("\n")[0]
    return PeersLostError(f"the trainer's processes cannot exchange: {reason}")
