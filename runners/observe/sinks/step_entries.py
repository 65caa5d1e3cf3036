"""Split the metrics of steps into the entries that trackers get, each of them once.

A line of ``metrics.jsonl`` has the figures of a step and those of the last evaluation made during
it. A tracker gets them apart: an evaluation at the step whose weights it measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from runners.observe.figures.metrics import finite_numbers
from runners.records.json_text import dumps, loads
from runners.system.processes import atomic_file

EVAL = "eval/"
Part = Literal["train", "eval"]
REFUSED_MOST = 1000
"""Refused entries that are remembered: the file is written anew with each."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """Figures of a step, or of an evaluation after it."""

    part: Part
    step: int
    """Steps that the policy was trained for, this one included."""
    at: float
    """Unix seconds at which it was finished: the same whenever it is sent."""
    values: dict[str, float]
    """Finite numbers, by the names of ``metrics.jsonl``."""
    names: frozenset[str]
    """All names, also of figures of nothing."""

    @property
    def name(self) -> str:
        """Name among all entries of a run: ``train 3``."""
        return f"{self.part} {self.step}"

    @property
    def place(self) -> int:
        """Place among all entries of a run: an evaluation follows its step."""
        return 2 * self.step + (self.part == "eval")


def split_row(
    row: Mapping[str, Any], finished: Mapping[tuple[Part, int], float]
) -> list[StepEntry]:
    """Return the entries of a line of ``metrics.jsonl``, in order of their places.

    ``finished``: Unix seconds of steps and evaluations.
    """
    train = {name: value for name, value in row.items() if not name.startswith(EVAL)}
    entries = [_make("train", int(row["step"]), train, finished)]
    if (measured := row.get(f"{EVAL}step")) is not None:
        values = {name: value for name, value in row.items() if name.startswith(EVAL)}
        entries.append(_make("eval", int(measured), values, finished))
    return sorted(entries, key=lambda entry: entry.place)


def _make(
    part: Part, step: int, row: Mapping[str, Any], finished: Mapping[tuple[Part, int], float]
) -> StepEntry:
    axes = ("step", f"{EVAL}step")
    values = {name: value for name, value in finite_numbers(row).items() if name not in axes}
    return StepEntry(part, step, finished.get((part, step), 0.0), values, frozenset(row))


@dataclass(slots=True)
class Sent:
    """The entries that a tracker has of a run, kept in the run directory: changed by its thread."""

    run: str
    """Id of the tracker's own run."""
    train: int = 0
    """The last step that was sent."""
    eval: int = -1
    """The last evaluation, by the steps of its policy."""

    refused: list[str] = field(default_factory=list)
    """The newest entries that it refused, before the last ones: a resumed run sends them again, to
    a tracker that takes more names, or by a newer agentrl.
    """

    def has(self, entry: StepEntry) -> bool:
        """Return whether an entry was sent, and not refused."""
        last = self.train if entry.part == "train" else self.eval
        return entry.step <= last and entry.name not in self.refused

    def add(self, entry: StepEntry) -> None:
        """Note that an entry was sent."""
        if entry.part == "train":
            self.train = max(self.train, entry.step)
        else:
            self.eval = max(self.eval, entry.step)
        if entry.name in self.refused:
            self.refused.remove(entry.name)

    def refuse(self, entry: StepEntry) -> None:
        """Note that an entry was refused."""
        self.add(entry)
        self.refused = [*self.refused, entry.name][-REFUSED_MOST:]


def read_sent(path: Path) -> Sent | None:
    """Return what is noted in a file, None if it is not there; raises OSError and ValueError."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return Sent(**loads(text))
    except TypeError as error:
        raise ValueError(f"{path} was not written by agentrl: {error}") from error


def write_sent(path: Path, sent: Sent) -> None:
    """Replace the file; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        partial.write_text(dumps(asdict(sent)), "utf-8")
