"""A cache of the keys, values and routing of prefixes: a radix tree over token ids.

Invariants: every cached position was computed with the present weights from exactly the ids on its
path. Siblings differ in their first id. A node owns the tensors of its own tokens, and a reader
copies what matches into its row, so evicting a node never touches a running request.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runners.engines.embedded.attention import KvSpan, KvStore
from runners.engines.embedded.model import RoutingArray
from runners.records.graph import common_prefix_length
from runners.records.record import IdArray

EVICT_TO = 0.9
"""Eviction walks the whole tree, so it frees a tenth at once instead of a little at each insertion.
"""


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A run of consecutive tokens; mutated only by PrefixCache."""

    ids: IdArray
    kv: KvSpan
    routing: RoutingArray
    """int16 [len(ids), layers, top_k]"""
    parent: PrefixNode | None
    used_at: int
    children: dict[int, PrefixNode] = field(default_factory=dict)


class PrefixCache:
    """Longest-prefix look-up with least-recently-used eviction; it holds ``tokens`` tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self._roots: dict[int, PrefixNode] = {}
        self._clock = 0

    def match(self, ids: IdArray) -> int:
        """Return the length of the longest stored prefix of ``ids``, int32 [n]."""
        return sum(take for _, take in self._walk(ids))

    def restore(self, ids: IdArray, kv: KvStore, row: int, routing: RoutingArray) -> int:
        """Copy the longest stored prefix of ``ids`` into a row of ``kv`` and its ``routing``.

        Returns its length.
        """
        self._clock += 1
        position = 0
        for node, take in self._walk(ids):
            node.used_at = self._clock
            end = position + take
            kv.span(row, position, end).copy_(node.kv.part(0, take))
            routing[position:end] = node.routing[:take]
            position = end
        return position

    def insert(self, ids: IdArray, kv: KvStore, row: int, routing: RoutingArray) -> None:
        """Store the part of ``ids`` that is not stored yet, copied from a row."""
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
        children[int(added[0])] = PrefixNode(
            ids=added,
            kv=kv.span(row, position, len(ids)).clone(),
            routing=routing[position : len(ids)].copy(),
            parent=parent,
            used_at=self._clock,
        )
        self.tokens += len(added)

    def shrink(self, limit: int) -> None:
        """Evict least recently used leaves if more than ``limit`` tokens are held."""
        if self.tokens <= limit:
            return
        target = int(limit * EVICT_TO)
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

    def _walk(self, ids: IdArray) -> list[tuple[PrefixNode, int]]:
        """Return the nodes along ``ids``, each with the number of its tokens that match.

        Only the last may match in part.
        """
        path: list[tuple[PrefixNode, int]] = []
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

    def _split(self, node: PrefixNode, at: int) -> None:
        """Cut ``node`` after ``at`` tokens; the tail becomes its only child."""
        tail = PrefixNode(
            ids=node.ids[at:].copy(),
            kv=node.kv.part(at).clone(),
            routing=node.routing[at:].copy(),
            parent=node,
            used_at=node.used_at,
            children=node.children,
        )
        for child in tail.children.values():
            child.parent = tail
        node.ids, node.routing = node.ids[:at].copy(), node.routing[:at].copy()
        node.kv = node.kv.part(0, at).clone()
        node.children = {int(tail.ids[0]): tail}

    def _siblings(self, node: PrefixNode) -> dict[int, PrefixNode]:
        return self._roots if node.parent is None else node.parent.children

    def _nodes(self) -> list[PrefixNode]:
        found = list(self._roots.values())
        for node in found:  # grows while it is read: breadth first
            found.extend(node.children.values())
        return found
