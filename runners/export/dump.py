"""Export of a run in any formats at once, from one pass over its store; ``summary.json`` beside.

Failures are in it; attempts that another replaced are not. One rollout is in memory at a time, and
nothing appears under its name before everything is complete.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.suggestions import suggest
from runners.export.build import build_trajectory
from runners.export.contract import Decode, Rollout, Run
from runners.export.formats import FORMATS
from runners.export.summary import Summary
from runners.export.trajectory import SCHEMA_VERSION
from runners.store.json_text import dumps
from runners.store.run_store import RunStore
from runners.trajectory.record import RolloutRecord

ONLY: dict[str, Callable[[RolloutRecord], bool]] = {
    "train": lambda record: record.split == "train",
    "eval": lambda record: record.split == "eval",
    "solved": lambda record: record.solved is True,
    "unsolved": lambda record: record.solved is False,
    "failed": lambda record: not record.outcome.meaning.reward_counts,
}
"""What ``--only`` can choose; "failed" are those whose reward does not count."""

SUMMARY = "summary.json"


class DumpError(AgentrlError):
    """An export was asked for that cannot be made, or its place cannot be written."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rollouts are exported: those that every part lets pass."""

    only: str | None = None
    """A key of ``ONLY``."""
    steps: range | None = None
    tasks: tuple[str, ...] = ()
    """Task ids or glob patterns, any of which matches; empty: all."""

    def keeps(self, record: RolloutRecord) -> bool:
        """Whether a rollout is chosen."""
        return (
            (self.only is None or ONLY[self.only](record))
            and (self.steps is None or record.step in self.steps)
            and (not self.tasks or any(fnmatchcase(record.task_id, task) for task in self.tasks))
        )


@dataclass(frozen=True, slots=True)
class Dumped:
    """A file that was written."""

    format: str
    """A key of ``FORMATS``, or "summary"."""
    path: Path
    place: Path
    """The file, or the directory of the format that it is in."""
    bytes: int


@dataclass(frozen=True, slots=True)
class DumpReport:
    """What was written."""

    rollouts: int
    files: tuple[Dumped, ...]

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def places(self) -> tuple[Path, ...]:
        """What to look at: files, and directories in place of what is in them."""
        return tuple(dict.fromkeys(file.place for file in self.files))


def read_choice(
    only: str | None = None, step: str | None = None, tasks: Sequence[str] = ()
) -> Choice:
    """Read the filters as they are written on a command line; raises DumpError."""
    if only is not None and only not in ONLY:
        raise DumpError(f"--only {only}: {_choices(only, ONLY)}")
    return Choice(only, None if step is None else _steps(step), tuple(tasks))


def read_formats(text: str) -> tuple[str, ...]:
    """Read a comma list of formats; raises DumpError."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in FORMATS:
            raise DumpError(f"--format {name}: {_choices(name, FORMATS)}")
    return names


def dump(
    store: RunStore,
    out_dir: Path,
    *,
    formats: Sequence[str] = ("jsonl",),
    choice: Choice | None = None,
    decode: Decode | None = None,
) -> DumpReport:
    """Write a run's rollouts and their summary to ``out_dir``; raises DumpError and StoreError.

    What an earlier export of the same formats left there is replaced.
    """
    chosen = choice or Choice()
    shape = store.routing_shape()
    run = Run(store.run_dir.resolve().name, store.config(), decode, shape)
    summary = Summary()
    for name in formats:
        _refuse_foreign(out_dir / name)
    with _staging(out_dir) as staging:
        with ExitStack() as stack:
            folders = {name: staging / name for name in formats}
            for folder in folders.values():
                folder.mkdir()
            takers = [
                stack.enter_context(FORMATS[name](folder, run)) for name, folder in folders.items()
            ]
            for record in store.each_rollout(counts=True):
                if chosen.keeps(record):
                    rollout = _rollout(store, record, run)
                    summary.add(rollout)
                    for add in takers:
                        add(rollout)
        folders["summary"] = staging / "summary"
        folders["summary"].mkdir()
        (folders["summary"] / SUMMARY).write_bytes(_summary(store, run, chosen, summary))
        files = [
            file for name, folder in folders.items() for file in _publish(name, folder, out_dir)
        ]
    return DumpReport(summary.rollouts, tuple(files))


def _rollout(store: RunStore, record: RolloutRecord, run: Run) -> Rollout:
    session = record.session_id
    routed = store.routed_turns(session) if run.routing else frozenset()
    return build_trajectory(
        record, store.turns(session), run, partial(store.routing, session), routed
    )


def dump_error(error: OSError, path: Path) -> DumpError:
    """Turn a failure to write below ``path`` into ours."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return DumpError(
            f"the export to {path} failed ({reason}): free some space, then export again",
            ExitCode.SERVICE_GONE,
        )
    return DumpError(f"{path} cannot be written ({reason}): choose another --out")


def _choices(wrong: str, known: Iterable[str]) -> str:
    hint = suggest(wrong, known, "did you mean {}? ")
    return f"{hint}choose one of {', '.join(known)}"


def _steps(text: str) -> range:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    first, last = (int(part or match[1]) for part in match.groups()) if match else (1, 0)
    if last < first:
        raise DumpError(f"--step {text}: give a step (5) or a range of them (3-7)")
    return range(first, last + 1)


def _summary(store: RunStore, run: Run, chosen: Choice, summary: Summary) -> bytes:
    document = {
        "schema_version": SCHEMA_VERSION,
        "run": run.name,
        "only": chosen.only,
        "steps": [chosen.steps[0], chosen.steps[-1]] if chosen.steps else None,
        "tasks": list(chosen.tasks) or None,
        **summary.result(),
        "evaluations": [{"step": row.step, **row.result} for row in store.evaluations()],
    }
    return dumps(document).encode() + b"\n"


@contextmanager
def _staging(out_dir: Path) -> Iterator[Path]:
    """Give a directory beside the final places, gone when the context ends."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".dump.", dir=out_dir))
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise dump_error(error, out_dir) from error


def _publish(name: str, folder: Path, out_dir: Path) -> Iterator[Dumped]:
    """Move a format's files and directories to their places, those of an earlier export away."""
    for source in sorted(folder.iterdir()):
        target, old = out_dir / source.name, folder / f".old.{source.name}"
        for path in source.rglob("*") if source.is_dir() else [source]:
            _sync(path)
        if source.is_dir() and target.is_dir():
            target.replace(old)
        source.replace(target)
        for path in sorted(target.rglob("*")) if target.is_dir() else [target]:
            yield Dumped(name, path, target, path.stat().st_size)


def _refuse_foreign(folder: Path) -> None:
    """Refuse to replace a directory that an export did not make."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.is_file() or path.suffix not in (".json", ".jsonl", ".npz"):
            raise DumpError(
                f"{folder} holds {path.name}, which no export made: choose another --out"
            )


def _sync(path: Path) -> None:
    """Make a file durable before it takes the place of another."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
