"""Call functions that may block for good, without holding the process for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from conf.errors import error_text

_threads: WeakSet[threading.Thread] = WeakSet()


async def run_in_daemon(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns that is called in a daemon thread; raises what it raises.

    One that hangs neither fills a pool nor holds the end of the process: a cancelled caller leaves
    it to itself.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = function(*args)
        except StopIteration as error:  # a future cannot hold it
            failure = RuntimeError(f"StopIteration: {error_text(error)}")
            failure.__traceback__ = error.__traceback__
        except BaseException as error:
            failure = error
            if not isinstance(error, Exception):
                failure = RuntimeError(repr(error))
                failure.__traceback__ = error.__traceback__
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, failure)

    thread = threading.Thread(target=run, name=getattr(function, "__name__", "call"), daemon=True)
    _threads.add(thread)
    thread.start()
    return await done


def is_one_left() -> bool:
    """Return whether a call goes on that nobody waits for: then the process must end by
    ``os._exit``, because Python's own end aborts a thread that is in C++ code (torch).
    """
    return any(thread.is_alive() for thread in _threads)
