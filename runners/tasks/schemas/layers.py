"""Flatten a row: trainers wrap the fields of a task set in layers of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

ID_LIMIT = 256
"""Characters; a longer label is not an id."""
LAYERS = (
    "responses_create_params",
    "extra_info",
    "tools_kwargs",
    "task",
    "info",
    "metadata",
    "instance_dict",
    "instance",
    "remote_env_info",
    "swepro",
)
"""Fields that hold the fields of a set, outermost first: of NeMo Gym, uni-agent and verl,
verifiers, slime and Miles, SkyRL.
"""
IMAGES = ("image", "image_name", "docker_image", "image_url")
"""Names of the image, the first one counts."""


class Layer(NamedTuple):
    """An object inside a row."""

    path: tuple[str, ...]
    """Names of the layers down to it."""
    fields: Mapping[str, Any]


def flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of all layers, the outer layer first; empty fields are absent.

    Raises ValueError for a layer that is no object, and if two hold different tasks.
    """
    fields: dict[str, Any] = {}
    for layer in (row, *list_layers(row).values()):
        for name, value in layer.items():
            if value is not None and value != "":
                fields.setdefault(name, value)
    label = row.get("label")
    if isinstance(label, str) and 0 < len(label) < ID_LIMIT:
        fields.setdefault("instance_id", label)
    if "problem_statement" not in fields and (text := _prompt_text(row.get("prompt"))):
        fields["problem_statement"] = text
    sandbox = fields.get("sandbox")
    if isinstance(sandbox, Mapping) and sandbox.get("image"):
        fields.setdefault("image", sandbox["image"])
    fields.setdefault("image", next((fields[n] for n in IMAGES if fields.get(n)), ""))
    return fields


def list_layers(row: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the layers inside a row by name, outermost first.

    Raises ValueError for a layer that is no object, and if two hold different tasks.
    """
    found: dict[str, Layer] = {}
    rivals: list[Layer] = []
    for name in LAYERS:
        around = (Layer((), row), *found.values())
        inside = [
            Layer((*layer.path, name), value)
            for layer in around
            if (value := _read_layer(name, layer.fields.get(name)))
        ]
        if inside:
            found[name] = inside[-1]
            rivals += inside
    for one, other in combinations(rivals, 2):
        _refuse_rivals(one, other)
    return {name: layer.fields for name, layer in found.items()}


def _read_layer(name: str, value: object) -> Mapping[str, Any] | None:
    if not value or (
        isinstance(value, str) and name in ("task", "info", "instance") and value[:1] != "{"
    ):
        return None  # absent, or a text of another meaning
    if isinstance(value, str):
        value = _read_json(name, value)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} is not an object")
    return value


def _refuse_rivals(one: Layer, other: Layer) -> None:
    """Raise ValueError for two layers beside one another that hold different tasks."""
    if other.path[: len(one.path)] == one.path or one.path[: len(other.path)] == other.path:
        return  # one is around the other
    for name in ("instance_id", "problem_statement"):
        first, second = one.fields.get(name), other.fields.get(name)
        if first and second and first != second:
            places = " and ".join(".".join(layer.path) for layer in (one, other))
            raise ValueError(f"{places} hold two tasks (another {name}): leave one out")


def _read_json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is neither an object nor the JSON text of one") from error


def _prompt_text(prompt: object) -> str:
    """Return the text of a prompt: the string itself, or the first user message of a list."""
    if isinstance(prompt, str):
        return prompt
    for message in prompt if isinstance(prompt, list) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""
