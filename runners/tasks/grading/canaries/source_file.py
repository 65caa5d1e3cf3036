"""A Python file whose text is changed at positions of its syntax tree.

Nothing is ever printed from a tree: a file without its comments and quotes would be recognised as
generated, and code under test could behave well for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_DEF = re.compile(rb"(?:async\s+)?def\s+")


@dataclass(frozen=True, slots=True)
class Splice:
    """Replacement of the bytes ``start`` to ``end`` of a file."""

    start: int
    end: int
    text: str


class SourceFile:
    """The bytes of a file, its syntax tree, and the position of each node in the bytes."""

    def __init__(self, source: bytes, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self._starts = [0]
        for line in source.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @classmethod
    def parse(cls, source: bytes) -> Self | None:
        """Return the file; None if it is not Python, or has lines that this class cannot count."""
        if source.startswith(b"\xef\xbb\xbf") or b"\r" in source or b"\f" in source:
            return None
        try:
            source.decode("utf-8")
            return cls(source, ast.parse(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def start(self, node: ast.AST) -> int:
        """Return the offset of a node's first byte."""
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def end(self, node: ast.AST) -> int:
        """Return the offset after a node's last byte."""
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]

    def first_line(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        """Return the offset of the line in which a function, or its first decorator, begins."""
        return self._starts[min(node.lineno for node in (function, *function.decorator_list)) - 1]

    def name(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        """Return the offset of a function's name."""
        found = _DEF.match(self.source, self.start(function))
        assert found is not None
        return found.end()

    def end_of_line(self, node: ast.AST) -> int:
        """Return the offset of the line feed (or the file's end) after a node."""
        return min(self._starts[node.end_lineno] - 1, len(self.source))  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        """Return a node as it is written."""
        return self.source[self.start(node) : self.end(node)].decode()

    def replace(self, node: ast.AST, text: str) -> Splice:
        """Return the splice that writes ``text`` in place of a node."""
        return Splice(self.start(node), self.end(node), text)

    def apply(self, splices: Iterable[Splice]) -> bytes | None:
        """Return the changed file; None if two splices overlap or the result is not Python."""
        try:
            result = self.rewrite(0, len(self.source), splices).encode()
            ast.parse(result)
        except (SyntaxError, ValueError):
            return None
        return result

    def rewrite(self, start: int, end: int, splices: Iterable[Splice]) -> str:
        """Return the text between two offsets with splices; raises ValueError if two overlap."""
        parts, at = [], start
        for splice in sorted(splices, key=lambda one: (one.start, one.end)):
            if splice.start < at:
                raise ValueError("two changes of a file overlap")
            parts += [self.source[at : splice.start].decode(), splice.text]
            at = splice.end
        return "".join([*parts, self.source[at:end].decode()])
