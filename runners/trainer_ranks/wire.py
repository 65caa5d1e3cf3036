"""Messages between a campaign and the processes of its trainer, over a socket of this machine.

A message is two lengths (8 bytes each, little-endian), a JSON object, and tensors in the format of
safetensors. Nothing is pickled.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np
from safetensors.numpy import load, save

from runners.training.sample import Sample
from runners.trajectory.routing import Routing

Arrays = dict[str, np.ndarray]
_LENGTHS = struct.Struct("<QQ")
_PLAIN: Final = ("rollout_id", "advantage")
_ROUTING: Final = ("experts", "valid")


def encode_message(message: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """Return a message as it is sent, to one process or to several."""
    text = json.dumps(message).encode()
    tensors = save(arrays) if arrays else b""
    return b"".join((_LENGTHS.pack(len(text), len(tensors)), text, tensors))


def receive_message(source: socket.socket) -> tuple[dict[str, Any], Arrays] | None:
    """Return the next message, None if the other side has ended; raises OSError."""
    head = _receive(source, _LENGTHS.size)
    if head is None:
        return None
    text, tensors = (_receive(source, length) for length in _LENGTHS.unpack(head))
    if text is None or tensors is None:
        return None
    return json.loads(text), load(tensors) if tensors else {}


def pack_rollouts(rollouts: Sequence[Sequence[Sample]]) -> tuple[list[Any], Arrays]:
    """Return rollouts as JSON and arrays, which ``unpack_rollouts`` turns back."""
    arrays: Arrays = {}
    packed: list[list[dict[str, Any]]] = []
    number = 0
    for rollout in rollouts:
        packed.append([])
        for sample in rollout:
            packed[-1].append({name: getattr(sample, name) for name in _PLAIN})
            for field in fields(sample):
                value = getattr(sample, field.name)
                if isinstance(value, np.ndarray):
                    arrays[f"{number}/{field.name}"] = np.ascontiguousarray(value)
            for name in _ROUTING if sample.routing is not None else ():
                arrays[f"{number}/{name}"] = np.ascontiguousarray(getattr(sample.routing, name))
            number += 1
    return packed, arrays


def unpack_rollouts(packed: Sequence[Any], arrays: Arrays) -> list[list[Sample]]:
    """Return the rollouts of ``pack_rollouts``."""
    by_sample: dict[int, dict[str, Any]] = {}
    for name, array in arrays.items():
        place, _, field = name.partition("/")
        by_sample.setdefault(int(place), {})[field] = array
    rollouts: list[list[Sample]] = []
    number = 0
    for rollout in packed:
        rollouts.append([])
        for plain in rollout:
            found = by_sample[number]
            routing = [found.pop(name) for name in _ROUTING if name in found]
            known = Routing(*routing) if routing else None
            rollouts[-1].append(Sample(**plain, **found, routing=known))
            number += 1
    return rollouts


def _receive(source: socket.socket, length: int) -> bytes | None:
    """Return exactly so many bytes, None if the other side ends before."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        got = source.recv_into(view)
        if not got:
            return None
        view = view[got:]
    return bytes(data)
