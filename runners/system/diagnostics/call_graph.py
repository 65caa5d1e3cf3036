"""Formats the await chains of asyncio tasks as a tree of which task waits for which.

It reads suspended coroutines and changes nothing, so it may be called from any thread, also while
the loop is blocked or runs. It never raises: an object that changed while it was read, or that has
no usable ``repr``, is shown as such.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import linecache
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import walk_stack
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

from conf.errors import error_text

PENDING_LENGTH = 2000
_MAX_DEPTH = 50
"""Frames per task and tasks below one another; a recursion would fill the disk."""
_REPR_LENGTH = 200
_INDENT = "  "
_LINKS = (asyncio.Future, CoroutineType, GeneratorType, AsyncGeneratorType)
_ASYNCIO = str(Path(asyncio.__file__).parent)
_THREAD_POOL = str(Path(concurrent.futures.__file__).parent / "thread.py")

Task = asyncio.Task[Any]
Future = asyncio.Future[Any]


def format_await_tree(tasks: Iterable[Task], loop: asyncio.AbstractEventLoop) -> str:
    """Return what each pending task waits for; a task that others wait for stands below them."""
    return "\n".join(_Tree(loop).forest([task for task in tasks if not task.done()]))


def describe_pending(task: Task | None = None) -> str:
    """Return what a task (by default this one) waits for, in at most 2,000 characters.

    Call it before a cancellation, which unwinds the chain. Of a longer text the middle is left out.
    """
    task = asyncio.current_task() if task is None else task
    if task is None:
        return ""
    text = _to_valid_text("\n".join(_Tree(task.get_loop()).task(task)))
    if len(text) <= PENDING_LENGTH:
        return text
    cut = "\n[…]\n"
    head = PENDING_LENGTH // 4
    return text[:head] + cut + text[len(text) - (PENDING_LENGTH - head - len(cut)) :]


def format_location(code: CodeType, line: int) -> str:
    """Return a location in the source and the text there, in two lines."""
    source = linecache.getline(code.co_filename, line).strip() or "(no source)"
    return f"{_shorten(code.co_filename)}:{line} in {code.co_qualname}\n    {source}"


def safe_repr(thing: object) -> str:
    """Return the ``repr`` of any object on one line of at most 200 characters; never raises."""
    try:
        text = repr(thing)
    except Exception as error:  # a hostile __repr__ must not replace what it describes
        text = f"<{type(thing).__name__} whose repr fails: {error_text(error)}>"
    text = " ".join(_to_valid_text(text).split())
    return text if len(text) <= _REPR_LENGTH else f"{text[: _REPR_LENGTH - 1]}…"


def _to_valid_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class _Tree:
    """One look at the tasks of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._now = loop.time()
        self._timers = list(_timers(loop))
        self._shown: set[Task] = set()

    def forest(self, tasks: list[Task]) -> Iterator[str]:
        """Yield lines: first those that nobody waits for, then circles."""
        awaited = {below for task in tasks for below in _tasks_awaited(task)}
        for task in [*(t for t in tasks if t not in awaited), *tasks]:
            if task not in self._shown:
                yield from self.task(task)
                yield ""

    def task(self, task: Task, above: tuple[Task, ...] = ()) -> Iterator[str]:
        """Yield the lines of a task and of what it waits for."""
        head = f"{task.get_name()} ({self._state(task)})"
        if task in above:
            yield f"{head}: a circle, it waits for itself"
            return
        if task in self._shown:
            yield f"{head}: see above"
            return
        self._shown.add(task)
        yield head
        try:
            lines = list(self._chain(task, above))
        except Exception as error:  # it ran on while it was read
            lines = [f"(changed while it was read: {type(error).__name__})"]
        yield from (f"{_INDENT}{line}" for line in lines)

    def _state(self, task: Task) -> str:
        if task.done():
            return "done"
        states = ["being cancelled" if task.cancelling() else "pending"]
        states += [
            f"timeout in {when - self._now:.1f} s"
            for when, of in self._timers
            if isinstance(of, asyncio.Timeout) and getattr(of, "_task", None) is task
        ]
        return ", ".join(states)

    def _chain(self, task: Task, above: tuple[Task, ...]) -> Iterator[str]:
        links = list(_links(task))
        frames = [frame for link in links if (frame := _frame(link)) is not None]
        for frame in frames:
            yield from format_location(frame.f_code, frame.f_lineno).splitlines()
        below = list(_tasks_of(links))
        owner = _owner(frames[-1]) if frames else None
        if owner is not None:
            yield f"waits for {safe_repr(owner)}"  # a lock, a queue, a process, a reader
        last = links[-1] if links else None
        if isinstance(last, asyncio.Future):
            yield from self._future(last, known=owner is not None or bool(below))
        elif isinstance(last, CoroutineType):
            begun = inspect.getcoroutinestate(last) != inspect.CORO_CREATED
            yield "runs now" if begun else "has not begun"
        elif last is not None and _frame(last) is None:
            yield f"waits for {safe_repr(last)}"
        if len(above) < _MAX_DEPTH:
            for other in below:
                for line in self.task(other, (*above, task)):
                    yield f"{_INDENT}{line}" if line.startswith(" ") else f"└ {line}"

    def _future(self, future: Future, *, known: bool) -> Iterator[str]:
        """Yield what completes the future at the end of a chain, unless that is known already."""
        if future.done():
            yield "about to go on: what it waited for is there"
            return
        for when, of in self._timers:
            if of is future:
                yield f"until a timer ends, in {when - self._now:.1f} s"
                return
        for source in _behind(future):
            if isinstance(source, concurrent.futures.Future):
                yield from _thread_behind(source)
                return
        if not known:
            yield f"waits for {safe_repr(future)}"


def _owner(frame: FrameType) -> object | None:
    """Return the asyncio object (lock, queue, reader) in whose method a task waits."""
    if not frame.f_code.co_filename.startswith(_ASYNCIO):
        return None
    owner: object | None = frame.f_locals.get("self")
    return owner


def _timers(loop: asyncio.AbstractEventLoop) -> Iterator[tuple[float, object]]:
    """Yield the loop's timers as (when, the timeout or future that it ends); uvloop shows none."""
    for handle in list(getattr(loop, "_scheduled", ())):
        if not handle.cancelled():
            owner = getattr(getattr(handle, "_callback", None), "__self__", None)
            arguments = getattr(handle, "_args", None) or (None,)
            yield handle.when(), arguments[0] if owner is None else owner


def _links(task: Task) -> Iterator[Any]:
    """Yield what a task consists of, outermost first: coroutines and generators, then a future."""
    link: Any = task.get_coro()
    for _ in range(_MAX_DEPTH):
        if link is None:
            return
        yield link
        link = _next(link)


def _next(link: Any) -> Any:
    if isinstance(link, asyncio.Future):
        return None
    names = ("cr_await", "gi_yieldfrom", "ag_await")
    inner = next((getattr(link, name) for name in names if hasattr(link, name)), None)
    if inner is None or isinstance(inner, _LINKS):
        return inner
    # The iterator of a future, or of a step of an asynchronous generator, has no attribute that
    # names it; the garbage collector knows what it refers to.
    hidden = [thing for thing in gc.get_referents(inner) if isinstance(thing, _LINKS)]
    return hidden[0] if hidden else inner


def _frame(link: Any) -> FrameType | None:
    frames = (getattr(link, name, None) for name in ("cr_frame", "gi_frame", "ag_frame"))
    return next((frame for frame in frames if frame is not None), None)


def _tasks_awaited(task: Task) -> list[Task]:
    try:
        return list(_tasks_of(list(_links(task))))
    except Exception:  # it ran on while it was read; its own lines say so
        return []


def _tasks_of(links: list[Any]) -> Iterator[Task]:
    """Yield the pending tasks that a chain waits for: by itself, or through ``gather``, ``shield``,
    ``wait``, ``wait_for`` or a task group.
    """
    found: dict[Task, None] = {}
    for link in links:
        if isinstance(link, asyncio.Future):
            candidates = _within(link)
        else:
            candidates = _in_asyncio(_frame(link))
        for candidate in candidates:
            if isinstance(candidate, asyncio.Task) and not candidate.done():
                found[candidate] = None
    yield from found


def _within(future: Future) -> list[Any]:
    found = [future, *getattr(future, "_children", ())]  # the latter: gather's
    return [*found, *(inner for outer in found for inner in _behind(outer))]


def _in_asyncio(frame: FrameType | None) -> list[Any]:
    if frame is None or not frame.f_code.co_filename.startswith(_ASYNCIO):
        return []
    held = frame.f_locals
    if isinstance(held.get("self"), asyncio.TaskGroup):
        return list(getattr(held["self"], "_tasks", ()))
    waited = [held.get("fut"), *(held.get("fs") or ())]  # of wait_for; of wait
    return [inner for each in waited if isinstance(each, asyncio.Future) for inner in _within(each)]


def _behind(future: Future) -> Iterator[Any]:
    """Yield the future that an asyncio future mirrors: a shielded one, or one of another thread.

    Only the closure of the callback that connects them refers to it.
    """
    for callback, _ in getattr(future, "_callbacks", None) or ():
        if str(getattr(callback, "__module__", "")).startswith("asyncio."):
            for cell in getattr(callback, "__closure__", None) or ():
                inner = cell.cell_contents
                if inner is not future and isinstance(
                    inner, asyncio.Future | concurrent.futures.Future
                ):
                    yield inner


def _thread_behind(source: concurrent.futures.Future[Any]) -> Iterator[str]:
    """Yield the stack of the pool's thread that computes a future."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        inward: list[FrameType] = []
        for outer, _ in walk_stack(frame):
            if outer.f_code.co_filename == _THREAD_POOL and outer.f_code.co_name == "run":
                if outer.f_locals["self"].future is source:
                    yield f"waits for thread {names.get(ident, ident)}"
                    for inner in reversed(inward[:_MAX_DEPTH]):
                        yield from format_location(inner.f_code, inner.f_lineno).splitlines()
                    return
                break
            inward.append(outer)
    yield f"waits for {safe_repr(source)}, which no thread has begun"


def _shorten(filename: str) -> str:
    """Return a file's name below the entry of ``sys.path`` that holds it."""
    holders = [entry for entry in sys.path if entry and filename.startswith(f"{entry}/")]
    return filename[len(max(holders, key=len)) + 1 :] if holders else filename
