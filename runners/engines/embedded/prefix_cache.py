"""Keys, values and routing of finished prefixes, kept as a radix tree over token ids.

Every node owns the tensors of its own tokens, so a reader copies what it matched into its row and
needs no lock: evicting a node never touches a running request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from runners.engines.embedded.model import KvStore, RoutingArray
from runners.trajectory.prefix import common_prefix_length
from runners.trajectory.record import IdArray

SHRINK_TO = 0.9
"""Eviction walks the whole tree, so it makes room for many insertions at once."""


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens; mutated only by PrefixCache."""

    ids: IdArray
    kv: Tensor
    """[layers, 2, kv_heads, len(ids), head_dim]"""
    routing: RoutingArray
    """[len(ids), layers, top-k]"""
    parent: Node | None
    used_at: int
    children: dict[int, Node] = field(default_factory=dict)


class PrefixCache:
    """Longest-prefix look-up with least-recently-used eviction; ``tokens`` is how many it holds."""

    def __init__(self) -> None:
        self.tokens = 0
        self._roots: dict[int, Node] = {}
        self._clock = 0

    def match(self, ids: IdArray) -> int:
        """Length of the longest stored prefix of ``ids``."""
        return sum(take for _, take in self._walk(ids))

    def restore(self, ids: IdArray, kv: KvStore, row: int, routing: RoutingArray) -> int:
        """Copy the longest stored prefix of ``ids`` into a row of ``kv`` and its ``routing``;
        return its length.
        """
        self._clock += 1
        position = 0
        for node, take in self._walk(ids):
            node.used_at = self._clock
            end = position + take
            kv.span(row, position, end).copy_(node.kv[:, :, :, :take])
            routing[position:end] = node.routing[:take]
            position = end
        return position

    def insert(self, ids: IdArray, kv: KvStore, row: int, routing: RoutingArray) -> None:
        """Store the part of ``ids`` that is not yet stored, copied out of a row."""
        self._clock += 1
        position, parent, children = 0, None, self._roots
        for node, take in self._walk(ids):
            node.used_at = self._clock
            position += take
            if take < len(node.ids) and position < len(ids):
                self._split(node, take)
            parent, children = node, node.children
        if position == len(ids):
            return
        added = ids[position:].copy()
        children[int(added[0])] = Node(
            ids=added,
            kv=kv.span(row, position, len(ids)).clone(),
            routing=routing[position : len(ids)].copy(),
            parent=parent,
            used_at=self._clock,
        )
        self.tokens += len(added)

    def shrink(self, limit: int) -> None:
        """Where more than ``limit`` tokens are held, evict least recently used leaves."""
        if self.tokens <= limit:
            return
        target = int(limit * SHRINK_TO)
        while self.tokens > target:
            leaves = [node for node in self._nodes() if not node.children]
            for node in sorted(leaves, key=lambda leaf: leaf.used_at):
                if self.tokens <= target:
                    return
                self._siblings(node).pop(int(node.ids[0]))
                self.tokens -= len(node.ids)

    def clear(self) -> None:
        """Forget everything."""
        self._roots.clear()
        self.tokens = 0

    def _walk(self, ids: IdArray) -> list[tuple[Node, int]]:
        path: list[tuple[Node, int]] = []
        position, children = 0, self._roots
        while position < len(ids):
            node = children.get(int(ids[position]))
            if node is None:
                break
            take = common_prefix_length(node.ids, ids[position:])
            path.append((node, take))
            position += take
            if take < len(node.ids):
                break
            children = node.children
        return path

    def _split(self, node: Node, at: int) -> None:
        """Cut ``node`` after ``at`` tokens; the tail becomes its only child."""
        tail = Node(
            ids=node.ids[at:].copy(),
            kv=node.kv[:, :, :, at:].clone(),
            routing=node.routing[at:].copy(),
            parent=node,
            used_at=node.used_at,
            children=node.children,
        )
        for child in tail.children.values():
            child.parent = tail
        node.ids, node.routing = node.ids[:at].copy(), node.routing[:at].copy()
        node.kv = node.kv[:, :, :, :at].clone()
        node.children = {int(tail.ids[0]): tail}

    def _siblings(self, node: Node) -> dict[int, Node]:
        return self._roots if node.parent is None else node.parent.children

    def _nodes(self) -> list[Node]:
        found = list(self._roots.values())
        for node in found:  # grows while it is read: breadth first
            found.extend(node.children.values())
        return found
