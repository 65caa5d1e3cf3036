"""Walk the types of the schema: the sections in a type, and the fields that a key's section has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from conf.schema import Config


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type: of a union, of a list's or a mapping's entries."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def kinds_of(model: type[BaseModel]) -> tuple[str, ...]:
    """Return the values of a section's ``kind``; empty if it has none."""
    field = model.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return ()
    return get_args(field.annotation)


def find_models(section: str, tree: Mapping[str, Any]) -> list[type[BaseModel]]:
    """Return the models that a section may be: ``faults.rules[0].when``, or "" for the whole.

    ``tree`` has the values; a ``kind`` in it decides between the choices of a group.
    """
    models: list[type[BaseModel]] = [Config]
    node: Any = tree
    for part in re.findall(r"[^.\[\]]+", section):
        found = [
            inner
            for model in models
            if part in model.model_fields
            for inner in models_in(model.model_fields[part].annotation)
        ]
        models = found or models  # the name or the number of an entry, whose model was found before
        node = _enter(node, part)
        kind = node.get("kind") if isinstance(node, Mapping) else None
        if chosen := [model for model in models if kind in kinds_of(model)]:
            models = chosen
    return models


def _enter(node: Any, part: str) -> Any:
    if isinstance(node, Mapping):
        return node.get(part)
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    return None
