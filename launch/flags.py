"""slime's flags: those of Megatron, SGLang, its router and its own, with arity, type and choices.

slime's parsers take unknown flags and abbreviations without a word; this table does not. It is
taken from the real parsers by ``launch/pack_flags.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from conf.suggestions import suggest
from launch.architecture import Arguments

TABLE = Path(__file__).with_name("slime_flags.json")
_SECRET = re.compile(r"(^|-)(password|secret|wandb-key|api-keys?)$")


@dataclass(frozen=True, slots=True)
class Flag:
    """What a parser takes after a flag."""

    arity: str
    """0: nothing; 1: one word; ?, *, +: as argparse has it; another number: so many words."""
    type: str
    """int, float, json or str (anything)."""
    choices: tuple[str, ...]


@cache
def table() -> dict[str, Flag]:
    """Return every flag that slime's parsers know."""
    packed = json.loads(TABLE.read_text("utf-8"))
    return {name: Flag(row[0], row[1], tuple(row[2:])) for name, row in packed.items()}


def parse(words: Sequence[str]) -> tuple[Arguments, list[str]]:
    """Return the flags in ``words``, and what is wrong about their order."""
    found: Arguments = {}
    faults: list[str] = []
    flag: str | None = None
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if name in found:
                faults.append(f"{name} stands there twice: drop one")
            flag, found[name] = name, (value,) if equals else ()
        elif flag is None:
            faults.append(f"{word} follows no flag: write --FLAG {word}")
        else:
            found[flag] += (word,)
    return found, faults


def check(arguments: Arguments) -> list[str]:
    """Return what slime's parsers would refuse, or take in another sense than meant."""
    return [fault for name, words in arguments.items() for fault in _faults(name, words)]


def words(arguments: Arguments) -> list[str]:
    """Return the arguments as words of a command line."""
    return [word for name, values in arguments.items() for word in (name, *values)]


def _faults(name: str, values: tuple[str, ...]) -> Iterator[str]:
    flag = table().get(name)
    if flag is None:
        hint = suggest(name, table()) or "see slime's documentation"
        yield f"{name} is not a flag of slime, Megatron or SGLang: {hint}"
        return
    if _SECRET.search(name):
        yield f"{name} would put a secret into a file: put its variable into launch.secrets"
    wanted = _wanted(flag.arity, len(values))
    if wanted is not None:
        yield f"{name} takes {wanted}, and has {' '.join(values) or 'none'}"
        return
    for value in values:
        if flag.choices and value not in flag.choices:
            yield f"{name} {value} must be one of {', '.join(flag.choices)}"
        elif not _is(flag.type, value):
            yield f"{name} {value} must be {_KINDS[flag.type]}"


def _wanted(arity: str, number: int) -> str | None:
    """Return what the arity wants, if ``number`` words are not that."""
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


def _is(kind: str, value: str) -> bool:
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


def merged(derived: Arguments, extra: Iterable[str]) -> tuple[Arguments, list[str]]:
    """Return the derived arguments and the user's further words, and every fault of both."""
    own, faults = parse(list(extra))
    faults += [
        f"{name} is set by the configuration ({' '.join(derived[name]) or 'on'}): change the key "
        "that it follows from, not launch.extra_flags"
        for name in own
        if name in derived
    ]
    whole = derived | {name: value for name, value in own.items() if name not in derived}
    return whole, faults + check(whole)
