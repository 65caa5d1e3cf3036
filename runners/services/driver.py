"""Open a run and drive one execution of it in this process: state, heartbeat, signals, live view,
diagnostics.

The first SIGINT or SIGTERM drains: nothing new starts, and rollouts in flight finish and are
stored. The second stops at once. Invariants: however an execution ends, its end is in the store,
and ``--resume`` continues the run; it is not continued with other tasks than it began with, since
its rollouts count as one experiment.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from conf.absolute_paths import make_paths_absolute
from conf.errors import AgentrlError, ExitCode
from conf.schema import Config
from conf.sections.task import HeldOutEvalTaskConfig, TaskFileConfig
from conf.task_sets import list_sets
from runners.observe.adviser import DUPLICATES
from runners.observe.figures import MetricsWriter
from runners.observe.live import LiveView, Progress
from runners.records.store import RunStore, State, StoreError
from runners.services.faults.wiring import metrics_faults
from runners.services.policy import Policy, prepare_policy
from runners.services.stop_signals import (
    handlers_restored,
    in_main_thread,
    receive_signals,
)
from runners.system.diagnostics import (
    describe_attempts,
    format_section,
    install_diagnostics,
    seconds_since_turn,
    watch_stalls,
)
from runners.system.processes import ServiceError
from runners.tasks.contract import Task
from runners.tasks.sets import find_file, hash_dataset, read_dataset

HEARTBEAT_S = 5.0

Work = Callable[[], Coroutine[Any, Any, None]]

_STATES = {
    ExitCode.DONE: State.DONE,
    ExitCode.INTERRUPTED: State.INTERRUPTED,
    ExitCode.TERMINATED: State.INTERRUPTED,
}
"""The run's final state by exit code; any other code is a failure."""


class Interrupted(Exception):
    """The run was stopped by a signal, and everything that was in flight is stored."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of an execution of a run."""

    exit_code: ExitCode
    message: str
    """The reason of an early end; empty when the run is done."""
    wall_s: float
    """Duration of all executions of the run, in seconds."""
    stop_requested: bool
    """True if a signal came, even if there was nothing left to interrupt."""

    def document(self) -> dict[str, Any]:
        """Return the fields of the end in a document of ``--json``."""
        return {"exit_code": int(self.exit_code), "message": self.message}


class RunDriver:
    """Drives one execution of the run in ``store``; used once."""

    def __init__(self, config: Config, store: RunStore, progress: Progress, **info: Any) -> None:
        """Prepare an execution; ``info`` is stored with the run's state."""
        self.draining = asyncio.Event()
        self._config = config
        self._store = store
        self._progress = progress
        self._info = info
        self._started = time.monotonic()
        self._before_s = store.state().spent_s
        self._stop_code = ExitCode.INTERRUPTED
        self._cancel: Callable[[], object] = lambda: None
        self._service_error: ServiceError | None = None

    @property
    def wall_s(self) -> float:
        """Seconds that all executions of the run have taken so far."""
        return self._before_s + time.monotonic() - self._started

    def run(self, work: Work, close: Callable[[], object] = lambda: None) -> RunEnd:
        """Run ``work``, then ``close``, which writes the results of every end; store the end.

        Raises AgentrlError only for what makes a start impossible; later failures are in the
        result.
        """
        self._store.set_state(State.RUNNING, wall_s=self._before_s, **self._info)
        # it may be resumed, regraded and replayed from another directory
        self._store.replace_config(make_paths_absolute(self._config).model_dump(mode="json"))
        if sys.version_info < (3, 12):
            # The default watcher of 3.11 starts a thread per child; 3.12's does not. The other one
            # knows the main thread's loop only.
            watcher = (
                asyncio.PidfdChildWatcher if in_main_thread() else asyncio.ThreadedChildWatcher
            )
            asyncio.get_event_loop_policy().set_child_watcher(watcher())
        with handlers_restored():
            code, message = asyncio.run(self._main(work))
            try:
                close()
            except AgentrlError as error:  # a full disk, say; what ended the run comes first
                code, message = (code, message) if code else (error.exit_code, str(error))
            try:
                self._store_end(code, message)
            except AgentrlError as error:
                code, message = (code, message) if code else (error.exit_code, str(error))
        return RunEnd(code, message, self.wall_s, self.draining.is_set())

    async def _main(self, work: Work) -> tuple[ExitCode, str]:
        code, message = ExitCode.DONE, ""
        task = asyncio.create_task(self._run_observed(work), name="run")
        with self._handle_signals(task):
            try:
                await task
            except Interrupted:
                code, message = self._stop_code, "interrupted; everything finished is kept"
            except asyncio.CancelledError:
                code, message = self._stop_code, "interrupted at once; finished rollouts are kept"
            except AgentrlError as error:
                code, message = error.exit_code, str(error)
        if self._service_error is not None:
            code, message = self._service_error.exit_code, str(self._service_error)
        return code, message

    async def _run_observed(self, work: Work) -> None:
        view = LiveView(self._progress, self._config.observe.dashboard)
        with view:
            async with self._diagnose():
                heartbeat = asyncio.create_task(self._send_heartbeats(), name="heartbeat")
                try:
                    await work()
                finally:
                    heartbeat.cancel()
                    self._progress.begin_phase("ended")

    @asynccontextmanager
    async def _diagnose(self) -> AsyncIterator[None]:
        """Write files that describe a blocked event loop and attempts without progress."""
        observe, progress, run_dir = self._config.observe, self._progress, self._store.run_dir

        def in_flight() -> str:
            return format_section("attempts in flight", lambda: describe_attempts(progress.watch))

        with install_diagnostics(
            run_dir, watchdog_s=observe.watchdog_s, report=progress.add_note, more=in_flight
        ):
            async with watch_stalls(
                progress.watch,
                run_dir,
                observe.stuck_s,
                last_turn_s=partial(seconds_since_turn, self._store),
                report=progress.add_note,
            ):
                yield

    def policy(self) -> Policy:
        """Return the policy that the run starts from, or started from; raises AgentrlError."""
        began = bool(self._store.query("SELECT 1 FROM rollout LIMIT 1"))
        return prepare_policy(self._config, self._store.run_dir, began=began)

    def note_service_exit(self, error: ServiceError) -> None:
        """End the run, since a service has exited: rollouts in flight are lost, the rest
        resumes.
        """
        if self._service_error is None:
            self._service_error = error
            self._store.event("service_gone", {"message": str(error)})
            self._cancel()

    async def _send_heartbeats(self) -> None:
        while True:
            self._store.heartbeat()
            await asyncio.sleep(HEARTBEAT_S)

    def _store_end(self, code: ExitCode, message: str) -> None:
        self._store.set_state(
            _STATES.get(code, State.FAILED),
            exit_code=int(code),
            message=message,
            wall_s=self.wall_s,
            **self._info,
        )

    @contextmanager
    def _handle_signals(self, work: asyncio.Task[None]) -> Iterator[None]:
        def stop_now() -> None:
            # Before the cancellation, which unwinds the stacks that show what attempts wait for.
            self._progress.watch.record_pending()
            work.cancel()

        self._cancel = stop_now

        def on_signal(number: signal.Signals) -> None:
            self._stop_code = (
                ExitCode.INTERRUPTED if number is signal.SIGINT else ExitCode.TERMINATED
            )
            if self.draining.is_set():
                stop_now()
            else:
                self.draining.set()
                self._progress.add_note(
                    "stopping: rollouts in flight finish first; a second signal stops at once"
                )

        with receive_signals(on_signal):
            yield


@contextmanager
def open_metrics(config: Config, store: RunStore) -> Iterator[MetricsWriter]:
    """Open the writer of a run's metrics; a fault plan may make it fail."""
    writer = MetricsWriter(store.run_dir, tensorboard=config.observe.tensorboard)
    try:
        yield metrics_faults(config.faults, store, writer)
    finally:
        writer.close()


def open_run(config: Config, run_dir: Path, *, resume: bool) -> RunStore:
    """Open the store of the run to resume, or create that of a new one; raises StoreError."""
    if resume:
        return RunStore.open(run_dir)
    store = RunStore.create(run_dir, make_paths_absolute(config).model_dump(mode="json"))
    note_datasets(store, config)
    return store


SPLIT = "by id"
"""Name of the way in which tasks are held out (``tasks/splits.py``)."""
DATASET = "dataset"
"""Kind of the events that have key, path, split and SHA-256 (hex) of a set of tasks, and the number
of its tasks that are set aside.
"""


def note_datasets(store: RunStore, config: Config) -> None:
    """Keep how a new run splits its sets, and the digests of its task files; other datasets have
    none.
    """
    for each in list_sets(config):
        found = {"path": each.config.path, "sha256": _hash_set(each.config)}
        data = {"key": each.key, **found, "split": SPLIT, "set_aside": _count_aside(each.config)}
        store.event(DATASET, data)


def note_duplicates(store: RunStore, tasks: Iterable[Task]) -> None:
    """Keep, once, how many tasks ask the same of the same repository as a task before them:
    ``train`` within the training tasks, ``held_out`` of those that are measured and trained.
    """
    tasks = list(tasks)
    train = [task for task in tasks if task.split == "train"]
    first: dict[tuple[str, ...], str] = {}
    twice: list[tuple[str, str]] = []
    for task in train:
        if (before := first.setdefault(_identify(task), task.id)) != task.id:
            twice.append((before, task.id))
    measured = [
        (first[_identify(task)], task.id)
        for task in tasks
        if task.split == "held_out" and _identify(task) in first
    ]
    if (twice or measured) and not store.events(DUPLICATES):
        counts = {"tasks": len(train), "train": len(twice), "held_out": len(measured)}
        store.event(DUPLICATES, {**counts, "example": [*measured, *twice][0]})


def _identify(task: Task) -> tuple[str, ...]:
    """Return what makes a task the same problem, whatever its id."""
    source = str(task.repo) if task.origin is None else str(task.origin.source)
    commit = task.base_commit or (task.origin.base_commit if task.origin is not None else "")
    return (
        source,
        task.image or "",
        commit,
        task.problem_statement.strip(),
        *sorted(task.fail_to_pass),
    )


def _count_aside(config: TaskFileConfig) -> int:
    """Return the number of tasks that ``exclude`` sets aside; 0 if that cannot be read, which is an
    error when the tasks are loaded.
    """
    if config.exclude is None or config.path is None:
        return 0
    try:
        return len(read_dataset(config, config.path).aside)
    except AgentrlError:
        return 0


def check_datasets(store: RunStore, config: Config) -> None:
    """Raise StoreError (exit code 5) if a task file is not what it was when the run began, or if
    its tasks were split in the way of earlier versions.
    """
    _check_split(store, config)
    sets = {each.key: each.config for each in list_sets(config)}
    for noted in store.events(DATASET):
        key = noted.data.get("key", "task")  # runs of earlier versions have one file
        if noted.data["sha256"] != _hash_set(sets.get(key)):
            raise StoreError(
                f"{key}.path={noted.data['path']} has changed or is missing since the run in "
                f"{store.run_dir} began, or its exclude: restore it, since rollouts would be at "
                "other tasks, or start a new run",
                ExitCode.DATA_REFUSED,
            )


def _check_split(store: RunStore, config: Config) -> None:
    """Refuse a run that has trained tasks which are held out now: it held out the last rows."""
    held_out = config.task.kind == "jsonl" and config.task.held_out_tasks
    separate = not isinstance(config.eval_task, HeldOutEvalTaskConfig)
    if separate or not held_out or any(e.data.get("split") for e in store.events(DATASET)):
        return
    raise StoreError(
        f"the run in {store.run_dir} was begun by a version that held out the last "
        f"{held_out} rows of task.path, and this one chooses them by their ids: continue it with "
        "the version that began it, or start a new run with model.path=one of its checkpoints",
        ExitCode.DATA_REFUSED,
    )


def _hash_set(config: TaskFileConfig | None) -> str | None:
    """Return a digest of a set and of the file of the tasks that are set aside."""
    digest = None if config is None else hash_dataset(config.path)
    if config is None or config.exclude is None:
        return digest
    file = find_file(config.exclude)
    names = file.read_bytes() if file.is_file() else b""
    return hashlib.sha256(f"{digest} ".encode() + names).hexdigest()
