"""Messages between a campaign and the processes of its trainer, over a socket of this machine.

A message is the bytes of a safetensors file: arrays, and JSON as one of them. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain, count
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
from safetensors.numpy import load, save

from runners.records.routing import Routing
from runners.training.sample import Sample

Arrays = dict[str, np.ndarray]
_MESSAGE: Final = "message"
_PLAIN: Final = ("rollout_id", "advantage")
_ROUTING: Final = ("experts", "valid")


def encode_message(message: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """Return a message as it is sent, to one process or to several."""
    text = np.frombuffer(json.dumps(message).encode(), np.uint8)
    return save({_MESSAGE: text, **(arrays or {})})


def receive_message(source: Connection) -> tuple[dict[str, Any], Arrays] | None:
    """Return the next message, None if the other side has ended."""
    try:
        arrays = load(source.recv_bytes())
    except (EOFError, OSError):  # OSError: within a message
        return None
    return json.loads(arrays.pop(_MESSAGE).tobytes()), arrays


def pack_rollouts(rollouts: Sequence[Sequence[Sample]]) -> tuple[list[Any], Arrays]:
    """Return rollouts as JSON and arrays, which ``unpack_rollouts`` turns back."""
    arrays: Arrays = {}
    for number, sample in enumerate(chain.from_iterable(rollouts)):
        values = {field.name: getattr(sample, field.name) for field in fields(sample)}
        if sample.routing is not None:
            values |= {name: getattr(sample.routing, name) for name in _ROUTING}
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                arrays[f"{number}/{name}"] = np.ascontiguousarray(value)
    plain = [[{name: getattr(s, name) for name in _PLAIN} for s in each] for each in rollouts]
    return plain, arrays


def unpack_rollouts(packed: Sequence[Any], arrays: Arrays) -> list[list[Sample]]:
    """Return the rollouts of ``pack_rollouts``."""
    by_sample: dict[int, dict[str, Any]] = {}
    for name, array in arrays.items():
        place, _, field = name.partition("/")
        by_sample.setdefault(int(place), {})[field] = array
    numbers = count()
    return [[_make_sample(plain, by_sample[next(numbers)]) for plain in each] for each in packed]


def _make_sample(plain: Mapping[str, Any], arrays: dict[str, Any]) -> Sample:
    routing = [arrays.pop(name) for name in _ROUTING if name in arrays]
    return Sample(**plain, **arrays, routing=Routing(*routing) if routing else None)
