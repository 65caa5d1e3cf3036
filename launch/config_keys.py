"""Read single keys of a checkpoint's ``config.json``: their types, and values that Megatron has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_LARGEST = 1 << 30
"""A bound of numbers, since anybody may have written the file."""


class ConfigKeys:
    """The keys of a text model, each read once; ``faults`` is filled on the way."""

    def __init__(self, text: Mapping[str, Any]) -> None:
        self.text = text
        self.rope: Mapping[str, Any] = text.get("rope_parameters") or text.get("rope_scaling") or {}
        self.faults: list[str] = []

    def first(self, *names: str, default: Any = None) -> Any:
        """Return the first of ``names`` that the file has; raises KeyError if it has none and there
        is no default.
        """
        for name in names:
            for place in (self.rope, self.text):
                if place.get(name) is not None:
                    return place[name]
        if default is None:
            raise KeyError(names[0])
        return default

    def count(self, *names: str, default: Any = None) -> int:
        """Return ``first`` as a whole number; raises ValueError for another value."""
        value = self.first(*names, default=default)
        if isinstance(value, bool | str) or int(value) != value:
            raise ValueError(f"{'/'.join(names)}={value!r} is not a whole number")
        if int(value) > _LARGEST:
            raise ValueError(f"{'/'.join(names)}={value} is too large")
        return int(value)

    def number(self, name: str, *, default: Any = None) -> float:
        """Return ``first`` as a number; raises ValueError for text, true, false or infinity."""
        value = self.first(name, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}={value!r} is not a number")
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} is not finite")
        return float(value)

    def flag(self, name: str, value: Any) -> bool:
        """Return a value that must be true or false; raises ValueError."""
        if not isinstance(value, bool):
            raise ValueError(f"{name}={value} is neither true nor false")
        return value

    def check(self, *, fails: bool, fault: str) -> None:
        """Note a fault of keys that contradict each other."""
        if fails:
            self.faults.append(f"{fault}: is it the file of a model?")

    def require(self, name: str, *allowed: object) -> None:
        """Note a fault unless the file lacks ``name`` or has one of the values for it."""
        for place in (self.rope, self.text):
            value = place.get(name)
            if value is not None and value not in allowed:
                only = " or ".join(map(str, allowed))
                self.faults.append(
                    f"{name}={value}, but Megatron supports only {only}: this checkpoint cannot "
                    "be trained"
                )
                return
