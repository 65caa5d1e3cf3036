"""Marks in the annotations of a record's fields, and the fields as read from its class.

A record (``record.py``) declares each field once: its name, its type, its meaning, and where the
defaults below do not fit, a mark. The store's table, the rows, the export and its schema are
derived from the declaration, so a new field is added in one line. It needs a default: the rows of
older runs do not have it.

    @dataclass(frozen=True, slots=True)
    class Turn:
        index: Annotated[int, Column("turn_index", key=True)]
        \"\"\"0, 1, … within the session.\"\"\"
        prompt_new: Annotated[IdArray, IN_ARRAYS, NOT_EXPORTED]
        thread: str  # a column and a field of the export, both called "thread"
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Column:
    """Names the column of a field whose own name SQL reserves, or marks one of the key."""

    name: str = ""
    """Empty: the field's name."""
    key: bool = False


@dataclass(frozen=True, slots=True)
class Exported:
    """Gives a field another name in the export."""

    name: str


class Mark(Enum):
    """Says where a field is, besides in the table and in the export under its own name."""

    IN_ARRAYS = "in arrays"
    """It lies in an array file; the row says where (``store/arrays.py``)."""
    NOT_EXPORTED = "not exported"
    """The export has it in another form, or not at all."""
    REQUIRED = "required"
    """Every export has it, although the class has a default: no file without it is valid."""


IN_ARRAYS, NOT_EXPORTED, REQUIRED = Mark.IN_ARRAYS, Mark.NOT_EXPORTED, Mark.REQUIRED


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of a record, with what follows from its annotation."""

    name: str
    type: Any
    """The annotation without its marks: ``int | None``, ``dict[str, Any]``, ``IdArray``."""
    inner: Any
    """The type without ``| None``."""
    optional: bool
    nested: bool
    """It is a dataclass itself, as ``Outcome``: its fields stand in its place in the table."""
    column: str | None
    """Its column; None: it has none."""
    key: bool
    exported: str | None
    """Its name in the export; None: it has none."""
    required: bool
    """No exported file lacks it, whatever its default."""
    default: Any
    """``dataclasses.MISSING`` without one."""


@cache
def record_fields(record: type) -> tuple[RecordField, ...]:
    """Return the fields of a record's class, in the order of their declaration."""
    hints = get_type_hints(record, include_extras=True)
    return tuple(_read_field(each, hints[each.name]) for each in fields(record))


def _read_field(each: Any, hint: Any) -> RecordField:
    marks: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *found = get_args(hint)
        marks = tuple(found)
    inner, optional = split_optional(hint)
    column = next((mark for mark in marks if isinstance(mark, Column)), Column())
    renamed = next((mark.name for mark in marks if isinstance(mark, Exported)), each.name)
    default = each.default if each.default_factory is MISSING else each.default_factory()
    nested = is_dataclass(inner)
    has_column = IN_ARRAYS not in marks and not nested
    return RecordField(
        name=each.name,
        type=hint,
        inner=inner,
        optional=optional,
        nested=nested,
        column=(column.name or each.name) if has_column else None,
        key=column.key,
        exported=None if NOT_EXPORTED in marks else renamed,
        required=REQUIRED in marks,
        default=default,
    )


def split_optional(hint: Any) -> tuple[Any, bool]:
    """Return a type without ``| None``, and whether it had that."""
    if get_origin(hint) in (Union, UnionType):
        rest = [part for part in get_args(hint) if part is not NoneType]
        if len(rest) == 1:
            return rest[0], True
    return hint, False


@cache
def field_docs(record: type) -> dict[str, str]:
    """Return the string under each field of a class and of its bases, read from their source."""
    docs: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        if is_dataclass(cls):
            docs |= _docs_of(cls)
    return docs


def _docs_of(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # a class made at run time, or an installation without source
        return {}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    pairs = zip(definition.body, definition.body[1:], strict=False)
    for field, after in pairs:
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(after.value.value).strip()
    return docs
