"""Pack samples as prefix trees: a token that several samples reach with one history is run once.

A node is a token with all tokens before it, and with everything else that changes its forward pass:
the experts that are replayed. Samples in the order of their keys visit the nodes depth first, so
each adds one run of nodes to what it shares with its predecessor. A pack is a run of that order;
where one ends, the next begins with a whole path, whose shared nodes are run again.

Invariants: a sample is never divided; the nodes of its path follow its tokens, in order; a
pack has more nodes than allowed only if it holds a single longer sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from runners.records.graph import common_prefix_length
from runners.records.record import IdArray
from runners.training.sample import Sample

Nodes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pack:
    """Some samples as one prefix tree of n nodes, numbered depth first."""

    samples: tuple[int, ...]
    """Their indices in the list that was packed, in depth-first order."""
    paths: tuple[Nodes, ...]
    """int64 [tokens that are run] of each sample: the nodes of its tokens, ascending."""
    depths: Nodes
    """int64 [n]: index of a node's token in every sample that has it."""
    ends: Nodes
    """int64 [n]: end of each node's subtree. Node q attends to k if ``k <= q < ends[k]``."""
    added: Nodes
    """int64 [samples + 1]: the nodes that sample i adds are ``added[i]`` to ``added[i + 1]``."""
    repeated: int
    """Nodes that an earlier pack runs too."""


def count_run(sample: Sample) -> int:
    """Return how many of a sample's tokens are run: those before its last trained one, which is
    predicted only. 0 for a sample without trained tokens.
    """
    trained = np.flatnonzero(sample.loss_mask)
    return int(trained[-1]) if len(trained) else 0


@dataclass(frozen=True, slots=True)
class Order:
    """Samples with trained tokens, depth first; it depends on what they hold, not on their list."""

    samples: list[int]
    """Their indices in the list."""
    lengths: list[int]
    """Nodes of each one's path."""
    shared: list[int]
    """Nodes of them that are its predecessor's too; 0 for the first."""


def order_samples(samples: Sequence[Sample]) -> Order:
    """Return the order in which samples visit their prefix tree."""
    keys = make_keys(samples)
    order = sorted(
        (index for index, key in enumerate(keys) if len(key)),
        key=lambda index: _place(samples[index], keys[index]),
    )
    shared = [common_prefix_length(keys[a], keys[b]) for a, b in pairwise(order)]
    return Order(order, [len(keys[index]) for index in order], [0, *shared][: len(order)])


def pack_samples(samples: Sequence[Sample], most: int) -> Iterator[Pack]:
    """Yield the packs of at most ``most`` nodes; without trained tokens there is none."""
    order = order_samples(samples)
    starts = find_cuts(order.lengths, order.shared, most)
    for start, stop in pairwise([*starts, len(order.samples)]):
        part = slice(start, stop)
        yield _make_pack(tuple(order.samples[part]), order.lengths[part], order.shared[part])


def make_keys(samples: Sequence[Sample]) -> list[IdArray]:
    """Return a key per token that is run, int32 [``count_run``] per sample: equal at two tokens if
    and only if token and routing are equal, and ordered by them.

    Routing that is not known has no experts; equal experts in another order are another key.
    """
    parts = [sample.tokens[: count_run(sample)] for sample in samples]
    if all(sample.routing is None for sample in samples):
        return parts
    rows = [_describe(sample, len(part)) for sample, part in zip(samples, parts, strict=True)]
    names = {name: number for number, name in enumerate(sorted({n for row in rows for n in row}))}
    return [np.array([names[name] for name in row], np.int32) for row in rows]


def find_cuts(lengths: Sequence[int], shared: Sequence[int], most: int) -> list[int]:
    """Return where packs start so that they have the fewest nodes, and then the fewest packs.

    ``lengths``: nodes of each path; ``shared``: how many of them are its predecessor's, 0 for the
    first. A pack that starts at a path runs those again. A dynamic program over the order, linear
    in its length: the starts that a pack may have move forward only, and the best of them is kept
    in front of a queue.

    >>> find_cuts([4, 4, 4], [0, 3, 1], 5)
    [0, 2]
    """
    until = [0, *accumulate(np.subtract(lengths, shared).tolist())]
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    """By number of paths: repeated nodes, packs, and where the last one starts."""
    queue: deque[tuple[int, int, int]] = deque()
    first = 0
    for stop in range(1, len(lengths) + 1):
        repeated, packs, _ = best[stop - 1]
        candidate = (repeated + shared[stop - 1], packs + 1, stop - 1)
        while queue and queue[-1] > candidate:
            queue.pop()
        queue.append(candidate)
        while first < stop - 1 and lengths[first] + until[stop] - until[first + 1] > most:
            first += 1
        while queue[0][2] < first:
            queue.popleft()
        best.append(queue[0])
    starts, stop = [], len(lengths)
    while stop:
        stop = best[stop][2]
        starts.append(stop)
    return starts[::-1]


def _describe(sample: Sample, length: int) -> list[bytes]:
    """Return token and routing of a sample's first tokens, one string of bytes each."""
    tokens = sample.tokens[:length].astype(">i4").view(np.uint8).reshape(length, 4)
    routing = sample.routing
    if routing is None or not length:
        return [token.tobytes() for token in tokens]
    valid, experts = routing.valid[:length], routing.experts[:length]
    flat = np.ascontiguousarray(experts.reshape(length, -1)).view(np.uint8).reshape(length, -1)
    return [
        token.tobytes() + row.tobytes() if known else token.tobytes()
        for token, row, known in zip(tokens, flat, valid.tolist(), strict=True)
    ]


def _place(sample: Sample, key: IdArray) -> tuple[bytes, str, bytes, bytes]:
    """Return a sample's place in the order. What follows the key decides between equal paths: the
    order in which concurrent sub-agents' segments come is chance.
    """
    big_endian = key.astype(">i4").tobytes()
    return big_endian, sample.rollout_id, sample.tokens.tobytes(), sample.loss_mask.tobytes()


def _make_pack(samples: tuple[int, ...], lengths: list[int], shared: list[int]) -> Pack:
    repeated, shared = shared[0], [0, *shared[1:]]
    own = [length - common for length, common in zip(lengths, shared, strict=True)]
    added = np.concatenate([[0], np.cumsum(own)]).astype(np.int64)
    total = int(added[-1])
    depths, ends = np.zeros(total, np.int64), np.full(total, total, np.int64)
    paths: list[Nodes] = []
    path = np.zeros(0, np.int64)
    for number, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        start, stop = int(added[number]), int(added[number + 1])
        ends[path[common:]] = start  # the subtrees of the last path's own nodes end here
        path = np.concatenate([path[:common], np.arange(start, stop)])
        depths[start:stop] = np.arange(common, length)
        paths.append(path)
    return Pack(samples, tuple(paths), depths, ends, added, repeated)
