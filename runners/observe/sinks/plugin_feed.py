"""Metrics of a run as they are made, to plug-ins: a tracker, a database, a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from conf.sections.plugin import PluginConfig
from runners.system.plugins import PluginFailedError, call_plugin, load_plugin

SEND_S = 60.0
"""Time of one call."""
CLOSE_S = 30.0
"""Time for what is still to be sent when the run has ended."""


class MetricsSink(Protocol):
    """Receives the metrics of each step; ``def`` or ``async def``.

    Calls come one after another, in order, beside the training: a slow sink delays nothing. One
    that raises misses that step only.
    """

    def __call__(self, metrics: Mapping[str, Any]) -> Awaitable[None] | None:
        """Take the metrics of a step: ``step`` and numbers by the names in ``metrics.jsonl``.

        A step that is evaluated comes twice, the second time with ``eval/…``; a step whose record
        was lost in a crash comes again.
        """
        ...


class SinkFeed:
    """Sends each step's metrics to all sinks of a run."""

    def __init__(
        self, plugins: Sequence[PluginConfig], report: Callable[[PluginFailedError], None]
    ) -> None:
        """Load the sinks; raises PluginError. ``report`` is told of each call that failed."""
        self._report = report
        self._sinks: list[tuple[str, MetricsSink]] = [
            (plugin.target, load_plugin(plugin, MetricsSink, f"observe.sinks[{number}]"))
            for number, plugin in enumerate(plugins)
        ]
        self._last: list[asyncio.Task[None] | None] = [None] * len(self._sinks)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Send the metrics of a step, after those before it."""
        for number, (target, sink) in enumerate(self._sinks):
            send = self._send(self._last[number], target, sink, dict(metrics))
            self._last[number] = asyncio.create_task(send, name=f"sink {target}")

    async def close(self) -> None:
        """Wait until everything is sent, for a while."""
        if left := [task for task in self._last if task is not None]:
            _, late = await asyncio.wait(left, timeout=CLOSE_S)
            for task in late:
                task.cancel()

    async def _send(
        self,
        before: asyncio.Task[None] | None,
        target: str,
        sink: MetricsSink,
        metrics: Mapping[str, Any],
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            await call_plugin(f"observe.sinks: {target}", sink, metrics, deadline_s=SEND_S)
        except PluginFailedError as error:
            self._report(error)
