"""Flatten a row: trainers wrap the fields of a task set in layers of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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


def flatten(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of all layers, the outer layer first; empty fields are absent.

    Raises ValueError for a layer that is no object.
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

    Raises ValueError for a layer that is no object.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name in LAYERS:
        around = (row, *found.values())
        inner = next((layer[name] for layer in reversed(around) if layer.get(name)), None)
        if isinstance(inner, str) and name in ("task", "info", "instance") and inner[:1] != "{":
            continue  # a text of another meaning
        if isinstance(inner, str):
            inner = _read_json(name, inner)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise ValueError(f"{name} is not an object")
        found[name] = inner
    return found


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
