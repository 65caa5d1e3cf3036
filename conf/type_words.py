"""Describe the type of a key in plain words, and list the values that it can be written with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from conf.sections.plugin import PluginConfig
from conf.targets import FORM

_PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path"}
_BOUNDS = {"gt": "above {}", "ge": "at least {}", "lt": "below {}", "le": "at most {}"}


def describe_type(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return ``whole number, at least 0``, ``a, b or c``, ``list of text``, ``path, or null``."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return describe_type(inner, [*more, *metadata])
    return _describe_plain(annotation) + "".join(f", {bound}" for bound in _bounds(metadata))


def _describe_plain(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Literal:
        return _join([write_value(part) for part in parts])
    if isinstance(annotation, type) and issubclass(annotation, PluginConfig):
        return f"a plug-in ({FORM})"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"{{{', '.join(annotation.model_fields)}}}"
    if origin in (list, tuple):
        return f"list of {describe_type(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"names, each with {describe_type(parts[1])}"
    if parts:
        words = [describe_type(part) for part in parts if part is not NoneType]
        return _join(dict.fromkeys(words)) + (", or null" if NoneType in parts else "")
    return "any value"


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
        for name, words in _BOUNDS.items():
            if (bound := getattr(each, name, None)) is not None:
                yield words.format(bound)


def list_values(annotation: Any) -> tuple[str, ...]:
    """Return the words that a key takes: those of a Literal, true and false, null."""
    if annotation is bool:
        return ("true", "false")
    if annotation is NoneType:
        return ("null",)
    if get_origin(annotation) is Literal:
        return tuple(write_value(part) for part in get_args(annotation))
    if get_origin(annotation) in (list, tuple) or isinstance(annotation, type):
        return ()
    return tuple(dict.fromkeys(v for part in get_args(annotation) for v in list_values(part)))


def write_value(value: Any) -> str:
    """Return a default or a choice as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {write_value(v)}' for k, v in value.items())}}}"
    return str(value)


def _join(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
