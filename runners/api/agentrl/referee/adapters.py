"""Open and finish sessions of a gateway by a file of Python, its adapter."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from agentrl.referee.clients import TIMEOUT_S, ApiClient, HttpClient
from agentrl.referee.conversation import GatewayFault, RefereeError, TrainedSample

START_S = 120.0
"""So long a gateway may take until its first session can be opened."""


class Gateway(Protocol):
    """A gateway that is to be judged."""

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        """Return a client of a new session, and what ``finish`` wants. Raises GatewayFault."""

    async def finish(self, handle: Any) -> list[TrainedSample]:
        """End a session and return its samples. Raises GatewayFault."""


class FileGateway:
    """A file's functions ``open``, ``finish`` and, if it has one, ``start``; plain or async.

    ``start(engine, tokenizer)`` gets the engine's URL and the tokenizer's directory before all.
    ``open()`` returns ``(url, headers, handle)``, or raises OSError while the gateway starts;
    ``finish(handle)`` returns ``[{"tokens": […], "mask": […], "logprobs": […], "versions": […]}]``,
    of which the last two may be absent.
    """

    def __init__(self, file: Path, timeout_s: float = TIMEOUT_S) -> None:
        """Run the file; raises RefereeError."""
        spec = importlib.util.spec_from_file_location("referee_adapter", file)
        if spec is None or spec.loader is None or not file.is_file():
            raise RefereeError(f"{file}: there is no such Python file")
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(file.parent.resolve()))  # for what stands beside it
        try:
            spec.loader.exec_module(module)
            self._open, self._finish = module.open, module.finish
        except Exception as error:  # somebody's program
            raise RefereeError(f"{file}: {type(error).__name__}: {error}") from error
        self._start = getattr(module, "start", None)
        self._timeout_s = timeout_s
        self._deadline = 0.0
        """Until then a session that cannot be opened is tried again."""

    async def start(self, engine: str, tokenizer: Path) -> None:
        """Start the gateway, if its adapter does; raises RefereeError."""
        try:
            if self._start is not None:
                await self._call("start", self._start, engine, str(tokenizer))
        except GatewayFault as fault:
            raise RefereeError(str(fault)) from fault
        self._deadline = time.monotonic() + START_S

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        """See ``Gateway``."""
        while True:
            try:
                opened = await self._call("open", self._open)
                break
            except GatewayFault as fault:
                starts = isinstance(fault.__cause__, OSError)
                if not starts or time.monotonic() > self._deadline:
                    raise
                await asyncio.sleep(0.5)
        self._deadline = 0.0
        try:
            url, headers, handle = opened
            client = HttpClient(wire, url + "", {**headers}, self._timeout_s)
        except (TypeError, ValueError) as error:
            wanted = "the adapter's open() has to return (url, headers, handle)"
            raise GatewayFault(f"{wanted}, not {opened!r:.100}") from error
        return client, handle

    async def finish(self, handle: Any) -> list[TrainedSample]:
        """See ``Gateway``."""
        return read_samples(await self._call("finish", self._finish, handle))

    async def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        timeout_s = START_S if name == "start" else self._timeout_s
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                if inspect.iscoroutinefunction(function):
                    return await function(*arguments)
                return await asyncio.to_thread(function, *arguments)
        except Exception as error:  # somebody's program
            if deadline.expired():
                late = f"the adapter's {name}() did not return within {timeout_s:g} s"
                raise GatewayFault(late) from None
            text = f"the adapter's {name}() raised {type(error).__name__}: {str(error)[:300]}"
            raise GatewayFault(text) from error


def read_samples(rows: Any) -> list[TrainedSample]:
    """Return the samples of whatever an adapter gives; raises GatewayFault."""
    if not isinstance(rows, list | tuple):
        raise GatewayFault(f"samples have to be a list, not {rows!r:.100}")
    return [_read_sample(row, f"sample {number}") for number, row in enumerate(rows)]


def _read_sample(row: Any, name: str) -> TrainedSample:
    kinds: dict[str, type] = {"tokens": int, "mask": int, "logprobs": float, "versions": int}
    columns: dict[str, Any] = {}
    try:
        for key, kind in kinds.items():
            if key in ("tokens", "mask") or row.get(key) is not None:
                columns[key] = tuple(map(kind, row[key]))
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise GatewayFault(f"{name} has to be lists of numbers: {error!r:.200}") from error
    sizes = {key: len(column) for key, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise GatewayFault(f"{name}: its lists have different lengths: {sizes}")
    if not set(columns["mask"]) <= {0, 1}:
        raise GatewayFault(f"{name}: a mask has 0 and 1 alone")
    if any(map(math.isnan, columns.get("logprobs", ()))):
        raise GatewayFault(f"{name}: a logprob is no number")
    return TrainedSample(**columns)
