"""The contract of exporters: a context manager that opens files and yields a function that adds a
rollout.

An exporter keeps nothing of a rollout that was added, save counts per step, so an export of any
length needs the memory of its largest rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runners.records.record import RolloutRecord, Segment, Turn
from runners.records.routing import RoutingShape, TurnRouting

Decode = Callable[[Sequence[int]], str]
"""A tokenizer's ``decode``, special tokens kept."""


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """The run that is exported."""

    name: str
    config: dict[str, Any]
    decode: Decode | None
    """None: no tokenizer is at hand, and tokens stay numbers."""
    routing: RoutingShape | None = None
    """Shape of its turns' routing; None: no turn has any."""
    report: Callable[[], Mapping[str, Any]] | None = None
    """Reads the run's report, for the page; None: the page has none."""
    unique: bool = False
    """Leave out examples of ``sft`` that are the same as an earlier one."""

    def kind(self, group: str, unknown: str) -> str:
        """Return the kind chosen in a configuration group."""
        section = self.config.get(group)
        return str(section.get("kind", unknown)) if isinstance(section, dict) else unknown


@dataclass(frozen=True, slots=True)
class ExportedRollout:
    """One rollout: its attempt that counts."""

    record: RolloutRecord
    turns: list[Turn]
    chains: list[Segment]
    trajectory: dict[str, Any]
    """In the form of ``Trajectory``, arrays as numpy."""
    routing: Callable[[], Mapping[int, TurnRouting]] = dict
    """Reads the routing of its turns, by turn. It is large, so only an exporter that writes it
    calls this.
    """


class ExporterPlugin(Protocol):
    """A format of the user's own (``--format FILE.py:Name``), as ``Exporter``."""

    def __call__(
        self, directory: Path, run: ExportedRun
    ) -> AbstractContextManager[Callable[[ExportedRollout], None]]:
        """Return a context that yields a function, which writes one rollout into files of
        ``directory``. They are complete when the context ends.
        """
        ...


AddRollout = Callable[[ExportedRollout], None]
Exporter = Callable[[Path, ExportedRun], AbstractContextManager[AddRollout]]
"""Writes files into an empty directory; they are complete when the context ends. Raises OSError."""
