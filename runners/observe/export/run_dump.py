"""Exports a run in several formats in one pass over its store, and writes ``summary.json``.

Failed rollouts are exported; attempts that were retried are not. One rollout is in memory at a
time, and no file appears under its name before all files are complete.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from conf.errors import AgentrlError, ExitCode
from conf.exact_tokens import describe_inexactness
from conf.targets import FORM
from runners.observe.export.build import build_trajectory
from runners.observe.export.contract import AddRollout, Decode, ExportedRollout, ExportedRun
from runners.observe.export.filter_texts import (
    check_min_reward,
    choose,
    describe_choices,
    parse_steps,
)
from runners.observe.export.formats import FORMATS, VALIDATORS, find_exporter, name_folder
from runners.observe.export.summary import ExportSummary
from runners.observe.export.trajectory import SCHEMA_VERSION
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.records.text import dumps
from runners.system.plugins import describe_failure

ONLY: dict[str, Callable[[RolloutRecord], bool]] = {
    "train": lambda record: record.split == "train",
    "eval": lambda record: record.split == "eval",
    "solved": lambda record: record.solved is True,
    "unsolved": lambda record: record.solved is False,
    "failed": lambda record: not record.outcome.meaning.reward_counts,
}
"""Choices of ``--only``; "failed" selects rollouts whose reward does not count."""

SUMMARY = "summary.json"

_REMOVED = {"png": "--format html draws the same, and `agentrl report` the curves of the run"}
"""Formats of earlier versions, and what replaces each."""

Given = TypeVar("Given")
Parsed = TypeVar("Parsed")


class DumpError(AgentrlError):
    """The requested export is impossible, or its directory cannot be written."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Selects the rollouts to export: those that fulfil every condition."""

    only: str | None = None
    """A key of ``ONLY``."""
    steps: range | None = None
    min_reward: float | None = None
    """Least reward; a rollout without a grade has none."""
    tasks: tuple[str, ...] = ()
    """Task ids or glob patterns, any of which matches; empty: all."""

    def matches(self, record: RolloutRecord) -> bool:
        """Return whether a rollout is selected."""
        return (
            (self.only is None or ONLY[self.only](record))
            and (self.steps is None or record.step in self.steps)
            and (self.min_reward is None or _reward(record) >= self.min_reward)
            and (not self.tasks or any(fnmatchcase(record.task_id, task) for task in self.tasks))
        )


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file that was written."""

    format: str
    """A key of ``FORMATS``, or "summary"."""
    path: Path
    listed: Path
    """Path to show to a user: the file, or the directory that the format writes."""
    bytes: int


@dataclass(frozen=True, slots=True)
class DumpReport:
    """The files that an export has written."""

    rollouts: int
    files: tuple[ExportedFile, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Paths to show to a user: files, and directories instead of the files in them."""
        return tuple(dict.fromkeys(file.listed for file in self.files))

    def find_faults(self) -> list[str]:
        """Read the files of ``VALIDATORS`` again, and return every fault with its file and line;
        raises OSError.
        """
        return [
            f"{file.path}: {fault}"
            for file in self.files
            if file.format in VALIDATORS
            for fault in VALIDATORS[file.format](file.path)
        ]


def parse_filter(
    only: str | None = None,
    step: str | None = None,
    tasks: Sequence[str] = (),
    min_reward: float | None = None,
) -> RolloutFilter:
    """Parse the filters of the command line; raises DumpError."""
    return RolloutFilter(
        None if only is None else _parse("--only", only, lambda text: choose(text, ONLY)),
        None if step is None else _parse("--step", step, parse_steps),
        None if min_reward is None else _parse("--min-reward", min_reward, check_min_reward),
        tuple(tasks),
    )


def _parse(name: str, given: Given, parse: Callable[[Given], Parsed]) -> Parsed:
    """Return an option's value; raises DumpError that names the option."""
    try:
        return parse(given)
    except ValueError as error:
        raise DumpError(f"{name} {given}: {error}") from None


def _reward(record: RolloutRecord) -> float:
    return -math.inf if record.reward is None else record.reward


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of formats; raises DumpError."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        try:
            find_exporter(name)
        except KeyError:
            if name in _REMOVED:
                raise DumpError(f"--format {name} is gone: {_REMOVED[name]}") from None
            raise DumpError(
                f"--format {name}: {describe_choices(name, FORMATS)}; your own: {FORM}"
            ) from None
        except ValueError as error:
            raise DumpError(f"--format {name} {error}") from error
    return names


def dump(
    store: RunStore,
    out_dir: Path,
    *,
    formats: Sequence[str] = ("jsonl",),
    selection: RolloutFilter | None = None,
    decode: Decode | None = None,
    unique: bool = False,
    report: Callable[[], Mapping[str, Any]] | None = None,
) -> DumpReport:
    """Write a run's rollouts and their summary to ``out_dir``; raises DumpError and StoreError.

    Files of an earlier export of the same formats are replaced. ``unique``: examples of ``sft``
    that are the same as an earlier one are left out. ``report``: reads the run's report, which the
    page of ``html`` shows, too.
    """
    selection = selection or RolloutFilter()
    run = replace(describe_run(store, decode), unique=unique, report=report)
    if unique and "sft" not in formats:
        raise DumpError("--unique is of the examples of --format sft: add it, or drop --unique")
    summary = ExportSummary()
    if "slime" in formats and (inexact := describe_inexactness(run.config)) is not None:
        raise DumpError(
            f"--format slime needs token ids, and {inexact}: choose jsonl, atif, parquet, sft, "
            "or html, or evaluate with engine=sglang or vllm"
        )
    for name in formats:
        _refuse_foreign(out_dir / name_folder(name))
    with _staging(out_dir) as staging:
        with ExitStack() as stack:
            folders = {name: staging / name_folder(name) for name in formats}
            for folder in folders.values():
                folder.mkdir()
            exporters = [
                stack.enter_context(_open(name, folder, run)) for name, folder in folders.items()
            ]
            for record in store.each_rollout(counts=True):
                if selection.matches(record):
                    rollout = read_rollout(store, record, run)
                    summary.add(rollout)
                    for add in exporters:
                        add(rollout)
        folders["summary"] = staging / "summary"
        folders["summary"].mkdir()
        (folders["summary"] / SUMMARY).write_bytes(_summary(store, run, selection, summary))
        files = [
            file
            for name, folder in folders.items()
            for file in _move_into_place(name, folder, out_dir)
        ]
    return DumpReport(summary.rollouts, tuple(files))


@contextmanager
def _open(name: str, folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Open a format's files; what a plug-in raises is a DumpError."""
    try:
        with find_exporter(name)(folder, run) as add:
            yield add
    except (OSError, AgentrlError):
        raise
    except Exception as error:
        if name in FORMATS:
            raise
        raise DumpError(str(describe_failure(f"--format {name}", error))) from error


def describe_run(store: RunStore, decode: Decode | None) -> ExportedRun:
    """Return the run of a store as exporters take it."""
    return ExportedRun(store.run_dir.resolve().name, store.config(), decode, store.routing_shape())


def read_rollout(store: RunStore, record: RolloutRecord, run: ExportedRun) -> ExportedRollout:
    """Return a rollout with its turns and chains, token by token."""
    session = record.session_id
    routed = store.routed_turns(session) if run.routing else frozenset()
    return build_trajectory(
        record, store.turns(session), run, partial(store.routing, session), routed
    )


def to_dump_error(error: OSError, path: Path) -> DumpError:
    """Turn a failure to write below ``path`` into a DumpError."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return DumpError(
            f"the export to {path} failed ({reason}): free some space, then export again",
            ExitCode.SERVICE_GONE,
        )
    return DumpError(f"{path} cannot be written ({reason}): choose another --out")


def _summary(
    store: RunStore, run: ExportedRun, selection: RolloutFilter, summary: ExportSummary
) -> bytes:
    document = {
        "schema_version": SCHEMA_VERSION,
        "run": run.name,
        "only": selection.only,
        "steps": [selection.steps[0], selection.steps[-1]] if selection.steps else None,
        "min_reward": selection.min_reward,
        "tasks": list(selection.tasks) or None,
        **summary.result(),
        "evaluations": [{"step": row.step, **row.result} for row in store.evaluations()],
    }
    return dumps(document).encode() + b"\n"


@contextmanager
def _staging(out_dir: Path) -> Iterator[Path]:
    """Yield a directory beside the final files; it is removed when the context ends."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".dump.", dir=out_dir))
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise to_dump_error(error, out_dir) from error


def _move_into_place(name: str, folder: Path, out_dir: Path) -> Iterator[ExportedFile]:
    """Move a format's files and directories into ``out_dir``, over those of an earlier export."""
    for source in sorted(folder.iterdir()):
        target, old = out_dir / source.name, folder / f".old.{source.name}"
        for path in source.rglob("*") if source.is_dir() else [source]:
            _sync(path)
        if source.is_dir() and target.is_dir():
            target.replace(old)
        source.replace(target)
        for path in sorted(target.rglob("*")) if target.is_dir() else [target]:
            yield ExportedFile(name, path, target, path.stat().st_size)


def _refuse_foreign(folder: Path) -> None:
    """Raise DumpError rather than replace a directory that no export made."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.is_file() or path.suffix not in (".json", ".jsonl", ".npz"):
            raise DumpError(
                f"{folder} holds {path.name}, which no export made: choose another --out"
            )


def _sync(path: Path) -> None:
    """Make a file durable before it replaces another."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
