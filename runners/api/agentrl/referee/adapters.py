"""Open and finish sessions of a gateway: by two URLs, or by a file of Python."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl.referee.clients import ApiClient, HttpClient
from agentrl.referee.conversation import GatewayFault, RefereeError, TrainedSample
from agentrl.referee.http_client import post, read_json
from agentrl.referee.reference import PerfectGateway


class Gateway(Protocol):
    """A gateway that is to be judged."""

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        """Return a client of a new session, and what ``finish`` wants. Raises GatewayFault."""

    async def finish(self, handle: Any) -> list[TrainedSample]:
        """End a session and return its samples. Raises GatewayFault."""


@dataclass(frozen=True, slots=True)
class ReferenceGateway:
    """Perfect gateways, or broken ones: ``make`` makes one for each session."""

    make: Callable[[], PerfectGateway]

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        """See ``Gateway``."""
        gateway = self.make()
        return gateway, gateway

    async def finish(self, handle: Any) -> list[TrainedSample]:
        """See ``Gateway``."""
        samples: list[TrainedSample] = handle.finish()
        return samples


@dataclass(frozen=True, slots=True)
class UrlGateway:
    """``--open`` and ``--finish``: JSON is posted and comes back.

    ``open`` gets ``{"wire": …}`` and returns ``{"url": …, "headers": {…}, "handle": …}``;
    ``finish`` gets ``{"handle": …}`` and returns ``{"samples": [{"tokens": […], "mask": […],
    "logprobs": […], "versions": […]}]}``, of which the last two may be absent.
    """

    open_url: str
    finish_url: str
    timeout_s: float

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        """See ``Gateway``."""
        answer = await self._post(self.open_url, {"wire": wire})
        return read_opened(answer, wire, self.timeout_s), answer.get("handle")

    async def finish(self, handle: Any) -> list[TrainedSample]:
        """See ``Gateway``."""
        answer = await self._post(self.finish_url, {"handle": handle})
        return read_samples(answer.get("samples"))

    async def _post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        raw, _ = await post(url, json.dumps(body).encode(), {}, self.timeout_s)
        answer = read_json(raw)
        if not isinstance(answer, Mapping):
            raise GatewayFault(f"{url} answered no JSON object")
        return answer


class FileGateway:
    """``--adapter FILE``: its functions ``open`` and ``finish``, plain or async.

    ``open()`` returns ``(url, headers, handle)``; ``finish(handle)`` the rows of ``samples`` above.
    """

    def __init__(self, file: Path, timeout_s: float) -> None:
        """Run the file; raises RefereeError."""
        spec = importlib.util.spec_from_file_location("referee_adapter", file)
        if spec is None or spec.loader is None or not file.is_file():
            raise RefereeError(f"--adapter {file}: there is no such Python file")
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            self._open, self._finish = module.open, module.finish
        except Exception as error:  # somebody's program
            name = type(error).__name__
            raise RefereeError(f"--adapter {file}: {name}: {error}") from error
        self._timeout_s = timeout_s

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        """See ``Gateway``."""
        opened = await self._call("open", self._open)
        if not isinstance(opened, tuple | list) or len(opened) != 3:
            raise GatewayFault("the adapter's open() has to return (url, headers, handle)")
        url, headers, handle = opened
        return read_opened({"url": url, "headers": headers}, wire, self._timeout_s), handle

    async def finish(self, handle: Any) -> list[TrainedSample]:
        """See ``Gateway``."""
        return read_samples(await self._call("finish", self._finish, handle))

    async def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                if inspect.iscoroutinefunction(function):
                    return await function(*arguments)
                return await asyncio.to_thread(function, *arguments)
        except TimeoutError as error:
            raise GatewayFault(
                f"the adapter's {name}() did not return within {self._timeout_s:g} s"
            ) from error
        except Exception as error:  # somebody's program
            text = f"the adapter's {name}() raised {type(error).__name__}: {str(error)[:300]}"
            raise GatewayFault(text) from error


def read_opened(answer: Mapping[str, Any], wire: str, timeout_s: float) -> HttpClient:
    """Return a client of the session that was opened; raises GatewayFault."""
    url, headers = answer.get("url"), answer.get("headers") or {}
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise GatewayFault(f"open has to give the url of an API, not {url!r:.100}")
    if not isinstance(headers, Mapping) or not all(
        isinstance(part, str) for pair in headers.items() for part in pair
    ):
        raise GatewayFault("open has to give headers as an object of texts")
    return HttpClient(wire, url, dict(headers), timeout_s)


def join_calls(calls: Iterable[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
    """Return samples of prompts, outputs and logprobs (or None): a call is added to the sample that
    its prompt begins with, as gateways that record calls join them.
    """
    samples: list[dict[str, Any]] = []
    for prompt, output, logprobs in calls:
        values = [0.0] * len(output) if logprobs is None else list(logprobs)
        found = next((s for s in samples if s["tokens"] == list(prompt)[: len(s["tokens"])]), None)
        if found is None:
            samples.append(found := {"tokens": [], "mask": [], "logprobs": []})
        more = list(prompt)[len(found["tokens"]) :]
        found["tokens"] += [*more, *output]
        found["mask"] += [0] * len(more) + [1] * len(output)
        found["logprobs"] += [0.0] * len(more) + values
        if logprobs is None:
            found["unknown"] = True
    return [s if "unknown" not in s else {**s, "logprobs": None} for s in samples]


def read_samples(rows: Any) -> list[TrainedSample]:
    """Return the samples of JSON, or of whatever an adapter gives; raises GatewayFault."""
    if not isinstance(rows, list | tuple):
        raise GatewayFault(f"samples have to be a list, not {rows!r:.100}")
    return [_read_sample(row, f"sample {number}") for number, row in enumerate(rows)]


def _read_sample(row: Any, name: str) -> TrainedSample:
    if not isinstance(row, Mapping):
        raise GatewayFault(f"{name} has to be an object with tokens and mask")
    columns: dict[str, tuple[Any, ...]] = {}
    for key, kind in (("tokens", int), ("mask", int), ("logprobs", float), ("versions", int)):
        values = row.get(key)
        if values is None and key in ("logprobs", "versions"):
            continue
        try:
            columns[key] = tuple(map(kind, values))  # type: ignore[arg-type]
        except (OverflowError, TypeError, ValueError) as error:
            raise GatewayFault(f"{name}: {key} has to be a list of numbers ({error})") from error
        if len(columns[key]) != len(columns["tokens"]):
            raise GatewayFault(
                f"{name}: {len(columns['tokens'])} tokens, but {len(columns[key])} {key}"
            )
    if not set(columns["mask"]) <= {0, 1}:
        raise GatewayFault(f"{name}: a mask has 0 and 1 alone")
    if any(math.isnan(value) for value in columns.get("logprobs", ())):
        raise GatewayFault(f"{name}: a logprob is no number")
    return TrainedSample(**columns)
