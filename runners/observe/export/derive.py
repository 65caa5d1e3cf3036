"""Derives the models of the export from the records' classes, and fills them from records.

A model declares only what a record does not have: counts, texts, parts of its own. The rest comes
from the record's declaration (``trajectory/record.py``), under the names and with the descriptions
given there, so a field that is added to a record is exported, validated and in the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from runners.records.declaration import RecordField, field_docs, record_fields


class Part(BaseModel):
    """One part of an exported document."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    if TYPE_CHECKING:  # fields that ``fields_of`` adds are not seen by a type checker

        def __getattr__(self, name: str) -> Any:
            """Return a field that came from a record."""


P = TypeVar("P", bound=Part)


def fields_of(record: type, after: Mapping[str, str | None]) -> Callable[[type[P]], type[P]]:
    """Add the exported fields of ``record`` to a model; one of the model's own of that name stays.

    ``after`` places the model's own fields: each named one, and those declared below it, follow
    that field of the record (None: at the beginning). The order is that of keys and columns.
    """

    def derive(model: type[P]) -> type[P]:
        own = {name: (info.annotation, copy(info)) for name, info in model.model_fields.items()}
        shared = {field.exported: field for field in record_fields(record) if field.exported}
        placed: dict[str | None, dict[str, Any]] = {}
        here: str | None = None
        for name in own:
            here = after.get(name, here)
            if name not in shared:
                placed.setdefault(here, {})[name] = own[name]
        docs = field_docs(record)
        definitions = placed.pop(None, {})
        for name, field in shared.items():
            definitions[name] = own.get(name) or _definition(field, docs.get(field.name))
            definitions |= placed.pop(name, {})
        assert not placed, f"{record.__name__} exports no {', '.join(map(str, placed))}"
        base: type[P] = Part  # type: ignore[assignment]  # what every model here derives from
        return create_model(
            model.__name__,
            __base__=base,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **definitions,
        )

    return derive


def fill(model: type[Part], record: Any, /, **own: Any) -> dict[str, Any]:
    """Return a model's values from a record: ``own`` ones first, then the record's.

    They are plain: neither validated nor copied, arrays as numpy. Keys are the names in JSON.
    """
    kind: type = type(record)
    return {
        key: own[name] if name in own else getattr(record, attribute)
        for key, name, attribute in _sources(model, kind)
    }


@cache
def _sources(model: type[Part], record: type) -> list[tuple[str, str, str]]:
    """Return (key in JSON, name in the model, attribute of the record) of a model's fields."""
    attributes = {field.exported: field.name for field in record_fields(record)}
    return [
        (info.alias or name, name, attributes.get(name) or name)
        for name, info in model.model_fields.items()
    ]


def _definition(field: RecordField, doc: str | None) -> tuple[Any, Any]:
    if field.nested:
        raise TypeError(f"{field.name} is a record itself: declare its part in the model")
    kind: Any = field.type
    if isinstance(field.inner, type) and issubclass(field.inner, StrEnum):
        kind = str | None if field.optional else str
    default = ... if field.required or field.default is MISSING else field.default
    return kind, Field(default, description=doc)
