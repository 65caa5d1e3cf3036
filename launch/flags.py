"""Check flags of slime: those of Megatron, SGLang, its router and its own.

slime's parsers silently accept unknown flags and abbreviations, so a typo would do nothing; here it
is refused. The table of flags with arity, type and choices is generated from the real parsers by
``launch/pack_flags.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conf.suggestions import suggest
from launch.megatron_arguments import Arguments

TABLE = Path(__file__).with_name("slime_flags.json")
_SECRET = re.compile(r"(^|-)(password|secret|wandb-key|api-keys?)$")


@dataclass(frozen=True, slots=True)
class Flag:
    """The values that a parser takes after a flag."""

    arity: str
    """Number of values, or ``?``, ``*``, ``+`` as in argparse."""
    type: str
    """int, float, json, or str for any text."""
    choices: tuple[str, ...]


@cache
def load_flags() -> dict[str, Flag]:
    """Return every flag that slime's parsers know."""
    packed = json.loads(TABLE.read_text("utf-8"))
    return {name: Flag(row[0], row[1], tuple(row[2:])) for name, row in packed.items()}


def parse(words: Sequence[str]) -> tuple[Arguments, list[str]]:
    """Return the flags with their values, and the faults in the order of ``words``."""
    found: Arguments = {}
    faults: list[str] = []
    flag: str | None = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if name in found:
                faults.append(f"{name} is given twice: drop one")
            flag, found[name] = name, (value,) if equals else ()
        elif flag is None:
            faults.append(f"{word} follows no flag: write --FLAG {word}")
        else:
            found[flag] += (word,)
    return found, faults


def check(arguments: Arguments) -> list[str]:
    """Return the faults: everything that slime's parsers would refuse or silently misread."""
    return [fault for name, to_words in arguments.items() for fault in _faults(name, to_words)]


def to_words(arguments: Arguments) -> list[str]:
    """Return the arguments as the words of a command line."""
    return [word for name, values in arguments.items() for word in (name, *values)]


def _faults(name: str, values: tuple[str, ...]) -> Iterator[str]:
    flag = load_flags().get(name)
    if flag is None:
        hint = suggest(name, load_flags()) or "see slime's documentation"
        yield f"{name} is not a flag of slime, Megatron or SGLang: {hint}"
        return
    if _SECRET.search(name):
        yield f"{name} would write a secret to a file: name its variable in launch.secrets"
    wanted = _arity_fault(flag.arity, len(values))
    if wanted is not None:
        yield f"{name} takes {wanted}, and has {' '.join(values) or 'none'}"
        return
    for value in values:
        if flag.choices and value not in flag.choices:
            yield f"{name} {value} must be one of {', '.join(flag.choices)}"
        elif not _has_type(flag.type, value):
            yield f"{name} {value} must be {_KINDS[flag.type]}"


def _arity_fault(arity: str, number: int) -> str | None:
    """Return the values that ``arity`` requires, if ``number`` values do not match it."""
    match arity:
        case "0":
            return None if number == 0 else "no value"
        case "?":
            return None if number <= 1 else "one value or none"
        case "*":
            return None
        case "+":
            return None if number else "one value or more"
    return None if number == int(arity) else "one value" if arity == "1" else f"{arity} values"


_KINDS = {"int": "a whole number", "float": "a number", "json": "JSON"}


def _has_type(kind: str, value: str) -> bool:
    try:
        match kind:
            case "int":
                int(value)
            case "float":
                float(value)
            case "json":
                json.loads(value)
    except ValueError:
        return False
    return True


def merge(derived: Arguments, extra: Iterable[str]) -> tuple[Arguments, list[str]]:
    """Return the derived arguments with the user's additional ones, and the faults of both."""
    own, faults = parse(list(extra))
    faults += [
        f"{name} is set by the configuration ({' '.join(derived[name]) or 'on'}): change the key "
        "that it follows from, not launch.extra_flags"
        for name in own
        if name in derived
    ]
    whole = derived | {name: value for name, value in own.items() if name not in derived}
    return whole, faults + check(whole)
