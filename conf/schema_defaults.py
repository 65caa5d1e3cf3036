"""Defaults of the schema's fields, as the tree of keys on which the YAML files are laid."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from conf.schema_walk import find_models
from conf.sections.section import Follows

MISSING = "???"
"""OmegaConf's word for a key without a value."""
DATA = (
    *("options", "part_weights", "env", "agents", "mcp_servers"),
    *("resources", "node_selector", "overlay", "architecture"),
)
"""Keys whose value is data: a mapping of names that the user chooses, or what a checkpoint is."""


def fill(section: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section of the top level with the defaults of the keys that ``content`` lacks.

    A ``kind`` that no section has is left for pydantic to refuse.
    """
    models = find_models(section, {section: content})
    return _lay_over(_read_defaults(models[0]), content) if len(models) == 1 else dict(content)


@cache
def _read_defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Return a section's keys, except for ``kind``, with their defaults."""
    return {
        name: _read_defaults(inner) if (inner := find_section(name, field)) else read_default(field)
        for name, field in model.model_fields.items()
        if name != "kind"
    }


def find_section(name: str, field: FieldInfo) -> type[BaseModel] | None:
    """Return the section whose keys a field stands for; None for a key with a value."""
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel) and name not in DATA:
        return kind
    return None


def read_default(field: FieldInfo) -> Any:
    """Return a key's default as YAML has it; ``???`` if it must be given."""
    for mark in field.metadata:
        if isinstance(mark, Follows):
            return mark.expression
    if field.is_required():
        return MISSING
    return to_jsonable_python(field.get_default(call_default_factory=True))


def _lay_over(defaults: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``defaults`` with the values of ``content``; data is replaced as a whole."""
    merged = {name: value for name, value in content.items() if name == "kind"} | dict(defaults)
    for name, value in content.items():
        below = merged.get(name)
        sections = isinstance(below, Mapping) and isinstance(value, Mapping) and name not in DATA
        merged[name] = _lay_over(below, value) if sections else value  # type: ignore[arg-type]
    return merged
