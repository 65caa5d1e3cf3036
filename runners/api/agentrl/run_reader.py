"""Read a run from its directory: steps, groups, rollouts, and segments with their exact tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from agentrl.arguments import to_path
from conf.errors import ExitCode
from runners.observe.export import ExportedRollout, describe_run, find_decode, read_rollout
from runners.observe.figures import TaskRate, read_task_rates
from runners.records.record import RolloutRecord
from runners.records.store import EvaluationRow, RunStore, StepRow, StoreError


class RunReader:
    """A stored run, read only; it may be running. Used by the thread that opened it.

    Every method raises AgentrlError for a store that cannot be read.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._opened: RunStore | None = RunStore.open(run_dir, read_only=True)
        self._run = describe_run(self._store, find_decode(self._store))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; what needs them raises AgentrlError then."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _store(self) -> RunStore:
        if self._opened is None:
            raise StoreError(
                f"{self.run_dir} was closed: read it inside the `with` block, or open it again "
                "with agentrl.open_run",
                ExitCode.USAGE,
            )
        return self._opened

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self._run.config

    def summary(self) -> dict[str, Any]:
        """Return the document that ``agentrl run --json`` prints, as far as the run is."""
        from runners.observe.live import summarize

        return summarize(self._store, wall_s=self._store.state().spent_s)

    def steps(self) -> list[StepRow]:
        """Return the training steps, with their metrics."""
        return self._store.steps()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``, one for each finished step: rows of a table."""
        from runners.observe.live import metrics_rows

        return metrics_rows(self._store)

    def evaluations(self) -> list[EvaluationRow]:
        """Return the finished evaluations."""
        return self._store.evaluations()

    def records(self, *, step: int | None = None, split: str = "train") -> list[RolloutRecord]:
        """Return the rollouts of a step, or of all; of each the attempt that counts."""
        found = self._store.each_rollout(counts=True)
        return [each for each in found if each.split == split and step in (None, each.step)]

    def groups(self, step: int) -> list[list[RolloutRecord]]:
        """Return the rollouts of a training step by their tasks, in order."""
        groups: dict[int, list[RolloutRecord]] = {}
        for record in self.records(step=step):
            groups.setdefault(record.group, []).append(record)
        return [sorted(groups[key], key=lambda each: each.member) for key in sorted(groups)]

    def task_rates(self) -> list[TaskRate]:
        """Return the solve rate of every training task that was tried, the least solved first."""
        return read_task_rates(self._store)

    def rollout(self, record: RolloutRecord | str) -> ExportedRollout:
        """Return a rollout, by its record or its id, with turns and ``chains``: the segments, token
        by token.
        """
        if isinstance(record, str):
            found = self._store.rollout(record)
            if found is None:
                raise KeyError(f"{self.run_dir} has no rollout {record}")
            record = found
        return read_rollout(self._store, record, self._run)

    def rollouts(self, **which: Any) -> Iterator[ExportedRollout]:
        """Yield the rollouts of ``records(**which)``, one in memory at a time."""
        return (self.rollout(record) for record in self.records(**which))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special tokens kept; raises LookupError if the run's tokenizer
        is not there any more.
        """
        if self._run.decode is None:
            raise LookupError(f"the tokenizer of {self.run_dir} is not there any more")
        return self._run.decode(list(tokens))


def open_run(run_dir: str | os.PathLike[str]) -> RunReader:
    """Open a run to read it, as a context manager or until ``close``; raises AgentrlError."""
    return RunReader(to_path("run_dir", run_dir))
