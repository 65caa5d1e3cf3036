"""Reads examples of a file: conversations, or tokens with the mask of those to train.

A line has ``messages`` (and ``tools``), or ``input_ids`` and ``assistant_masks``, as
``dump-trajectories --format sft`` writes them; other keys are ignored. Invariant: of the file only
the places of its lines are in memory; which of them a step trains is a function of seed and step.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from conf.errors import AgentrlError, ExitCode
from runners.records.record import IdArray
from runners.records.text import dumps, loads
from runners.records.tokenizer import Renderer, render_example
from runners.training.sample import Sample

MAX_LINE_BYTES = 64 << 20
ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of a message in OpenAI's chat form."""
_SHOWN = 40
"""Characters of a wrong value in a message."""
_MAX_FAULTS = 20
"""A file with more faults is broken as a whole; further ones add nothing."""


class ExamplesError(AgentrlError):
    """A file of examples cannot be read, or is not the one that the run began with."""

    exit_code = ExitCode.DATA_REFUSED


class ExamplesMissingError(ExamplesError):
    """The file is not there, or may not be read."""

    exit_code = ExitCode.PREFLIGHT


@dataclass(frozen=True, slots=True)
class ExampleReader:
    """Makes samples of lines."""

    longest: int
    """Most tokens of an example."""
    vocabulary: int | None = None
    """Number of ids; None: not known yet."""
    renderer: Renderer | None = None
    """None: there is no tokenizer yet, and conversations are taken as they are."""
    guard: Callable[[list[dict[str, Any]], Any], tuple[list[dict[str, Any]], Any]] | None = None
    """Keeps control tokens plain that messages and tools spell."""

    def read(self, line: bytes) -> tuple[IdArray, NDArray[np.bool_]]:
        """Return an example's ids, int32 [T], and the mask of those to train, bool [T]; raises
        ValueError. Of a conversation that cannot be rendered yet both are empty.
        """
        if not line.strip():
            raise ValueError("an empty line; leave it out")
        example = _read_json("the line", line)
        if not isinstance(example, dict):
            raise ValueError("no JSON object")
        if "input_ids" in example:
            ids, mask = _read_tokens(example)
        elif "messages" in example:
            ids, mask = self._render(example)
        else:
            named = ", ".join(map(str, list(example)[:8])) or "none"
            raise ValueError(f"neither input_ids nor messages (its keys: {named})")
        if len(ids) > self.longest:
            raise ValueError(
                f"{len(ids):,} tokens, more than model.max_context_tokens={self.longest}"
            )
        if self.vocabulary is not None and len(ids) and max(ids) >= self.vocabulary:
            raise ValueError(
                f"input_ids: id {max(ids)} is not among the policy's {self.vocabulary:,} (0 to "
                f"{self.vocabulary - 1})"
            )
        return np.array(ids, np.int32), np.array(mask, bool)

    def _render(self, example: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
        messages = [_read_message(message) for message in _read_list(example, "messages")]
        if not any(message["weight"] for message in messages):
            raise ValueError("messages: no assistant's message to train")
        tools = example.get("tools")
        tools = _read_json("tools", tools) if isinstance(tools, str) else tools
        if self.renderer is None:
            return [], []
        marks = [bool(message.pop("weight")) for message in messages]
        if self.guard is not None:
            messages, tools = self.guard(messages, tools)
        ids, mask = render_example(self.renderer, messages, tools or None, marks)
        _check_mask(mask)
        return ids, mask


def _read_tokens(example: Mapping[str, Any]) -> tuple[list[int], list[bool]]:
    ids, masks = _read_list(example, "input_ids"), _read_list(example, "assistant_masks")
    for place, each in enumerate(ids):
        if type(each) is not int or not 0 <= each < 2**31:
            raise ValueError(f"input_ids[{place}]: {_show(each)} is no token id")
    if len(masks) != len(ids):
        raise ValueError(f"assistant_masks: {len(masks):,} of them for {len(ids):,} input_ids")
    for place, each in enumerate(masks):
        if type(each) is not int or each not in (0, 1):
            raise ValueError(f"assistant_masks[{place}]: {_show(each)} is neither 0 nor 1")
    mask = [bool(each) for each in masks]
    _check_mask(mask)
    return ids, mask


def _check_mask(mask: Sequence[bool]) -> None:
    if not any(mask):
        raise ValueError(
            "no token to train: assistant_masks is 1 on those to train, messages have "
            "an assistant's without weight 0"
        )
    if mask[0]:
        raise ValueError("the first token is to be trained, and nothing predicts it")


def _read_list(example: Mapping[str, Any], key: str) -> list[Any]:
    found = example.get(key)
    if not isinstance(found, list):
        raise ValueError(f"{key}: {_show(found)} is no list")
    return found


def _read_message(message: Any) -> dict[str, Any]:
    """Return a message with its ``weight``, and with calls whose arguments are objects."""
    if not isinstance(message, dict):
        raise ValueError(f"messages: {_show(message)} is no object with role and content")
    role, weight = message.get("role"), message.get("weight")
    if role not in ROLES:
        raise ValueError(f"messages: role {_show(role)} is none of {', '.join(ROLES)}")
    if weight is not None and (type(weight) is not int or weight not in (0, 1)):
        raise ValueError(f"messages: weight {_show(weight)} is neither 0 nor 1")
    trained = role == "assistant" and weight != 0
    read = {**message, "weight": trained, "content": message.get("content") or ""}
    calls = message.get("tool_calls")
    read.pop("tool_calls", None)
    if calls:
        read["tool_calls"] = [_read_call(call) for call in calls]
    return read


def _read_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        raise ValueError("messages: a tool call without a function (its name and arguments)")
    arguments = function.get("arguments")
    if isinstance(arguments, str):  # OpenAI's own form
        arguments = _read_json("messages: the arguments of a tool call", arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _read_json(what: str, text: str | bytes) -> Any:
    try:
        return loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(
            f"{what} is not JSON ({error.msg}, at its character {error.pos + 1})"
        ) from error


def _show(value: Any) -> str:
    """Return a value as JSON has it, shortened."""
    text = dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@dataclass(frozen=True, slots=True)
class Examples:
    """The examples of a file, in the order in which steps take them."""

    path: Path
    reader: ExampleReader
    seed: int
    places: Sequence[int] = field(repr=False)
    """Byte at which each begins."""
    tokens: int
    trained: int
    """Tokens to train."""
    digest: str
    """SHA-256 of the file."""

    def batch(self, step: int, size: int) -> list[Sample]:
        """Return the examples of training step ``step`` (1, 2, …), each with advantage 1.

        Every epoch has each of them once, in an order of its own. Raises ExamplesError.
        """
        first, number = (step - 1) * size, len(self.places)
        orders = {
            epoch: np.random.default_rng([self.seed, epoch]).permutation(number)
            for epoch in range(first // number, (first + size - 1) // number + 1)
        }
        chosen = [
            int(orders[taken // number][taken % number]) for taken in range(first, first + size)
        ]
        try:
            with self.path.open("rb") as file:
                return [self._read(file, place) for place in chosen]
        except (OSError, ValueError) as error:
            raise ExamplesError(f"{self.path} has changed since it was read: {error}") from error

    def _read(self, file: BinaryIO, place: int) -> Sample:
        file.seek(self.places[place])
        ids, mask = self.reader.read(file.readline())
        nothing = np.zeros(len(ids), np.float32)
        return Sample(f"example-{place}", ids, mask, nothing, advantage=1.0)


EXPECTED = (
    "leave out or correct these lines, each of which should be a JSON object with messages, or "
    "with input_ids and assistant_masks"
)


def load_examples(path: Path, reader: ExampleReader, seed: int) -> Examples:
    """Read and check every line of a file; raises ExamplesError that names each wrong one."""
    places, faults, digest = array("q"), list[str](), hashlib.sha256()
    tokens = trained = begin = 0
    try:
        for number, line in enumerate(_lines(path), 1):
            digest.update(line)
            try:
                ids, mask = reader.read(line)
                tokens, trained = tokens + len(ids), trained + int(mask.sum())
            except ValueError as error:
                faults.append(f"line {number}: {error}")
            places.append(begin)
            begin += len(line)
            if len(faults) == _MAX_FAULTS:
                break
    except OSError as error:
        raise ExamplesMissingError(
            f"trainer.sft.path={path} cannot be read ({error.strerror}): name a file of examples, "
            "such as dump-trajectories --format sft writes"
        ) from error
    if not places:
        raise ExamplesError(f"trainer.sft.path={path} has no line: name a file of examples")
    if faults:
        more = "" if len(faults) < _MAX_FAULTS else ", of which these are the first"
        raise ExamplesError(f"trainer.sft.path={path}: {EXPECTED}{more}:\n" + "\n".join(faults))
    return Examples(path, reader, seed, places, tokens, trained, digest.hexdigest())


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise ExamplesError(f"trainer.sft.path={path}: a line is longer than 64 MiB")
            yield line
