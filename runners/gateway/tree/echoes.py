"""The rule for echoes: whether an assistant's turn in a request is the answer that was sent.

Agent programs send the policy's turns back with every request, and few send back the same bytes:
they drop thoughts, write JSON anew, add defaults. Those turns are the same. What a program does to
the form of an argument by itself is ``mechanical``: a closed list, of which each entry only removes
something, so that nothing enters the context that neither side wrote. Anything else is an ``edit``:
the program wants the policy to see another turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from runners.gateway.calls.values import allowed_types, resolve_reference
from runners.gateway.conversation import Piece

EchoKind = Literal["same", "mechanical", "edit"]

Change = Literal["trailing_space", "leading_cd", "number_text", "inner_space"]
"""A change of form that a program makes. ``trailing_space``: cuts the blanks at the ends of an
argument's lines (Claude Code's Edit and Write); ``leading_cd``: cuts ``cd PATH && `` from a
command (Claude Code's Bash); ``number_text``: sends "5" as 5 where the tool wants a number;
``inner_space``: folds the blanks in a text.
"""

COMMANDS = ("command", "cmd")
"""Arguments from which a ``cd`` is cut."""
LEADING_CD = re.compile(r"cd[ \t]+[\w./@%+=:,-]+[ \t]*&&[ \t]*")
"""With a path that the shell takes literally."""
_BLANKS = re.compile(r"(?<=\S)\s+(?=\S)")
_LINE_ENDS = re.compile(r"(\r\n|\n|\r)")
MAX_SCHEMAS = 32
"""Alternatives of a schema, and definitions that it refers to, which may lead in a circle."""

Json = Any
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Echo:
    """The class of a turn that came back."""

    kind: EchoKind
    changes: frozenset[Change] = frozenset()
    """Those of a mechanical one."""


SAME, EDIT = Echo("same"), Echo("edit")


def compare_echo(
    sent: Sequence[Piece], came: Sequence[Piece], tools: Sequence[Mapping[str, Any]]
) -> Echo:
    """Compare the pieces of an answer as they were sent with those that came back.

    ``tools``: those of the request that sampled the answer; their schemas say which defaults and
    numbers a program may write otherwise. Ids are looked at only to tell two calls apart: which
    call of the session each is, the history around it tells (``prefix_matching.py``).
    """
    changes: set[Change] = set()
    calls, came_calls = _calls(sent), _calls(came)
    if len(calls) != len(came_calls) or _count_ids(came_calls) < _count_ids(calls):
        return EDIT
    texts, came_texts = _texts(sent), _texts(came)
    if texts != came_texts and not _is_same_text(texts, came_texts):
        if not _is_folded(" ".join(texts), " ".join(came_texts)):
            return EDIT
        changes.add("inner_space")
    for call, echo in zip(calls, came_calls, strict=True):
        if call.name != echo.name:
            return EDIT
        if call.arguments == echo.arguments and _has_same_types(call.arguments, echo.arguments):
            continue
        found = _Arguments(_parameters(call.name, tools)).compare(call.arguments, echo.arguments)
        if found is None:
            return EDIT
        changes |= found
    return Echo("mechanical", frozenset(changes)) if changes else SAME


def is_blank(turn: Iterable[Piece]) -> bool:
    """Return whether a turn has neither text nor calls, so that programs leave it out."""
    return not any(
        piece.kind == "tool_call" or (piece.kind == "text" and piece.text.strip()) for piece in turn
    )


def _count_ids(calls: Iterable[Piece]) -> int:
    return len({call.tool_id for call in calls})


def _calls(turn: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in turn if piece.kind == "tool_call"]


def _texts(turn: Sequence[Piece]) -> list[str]:
    """Return the texts without blanks at their ends, those of blanks left out."""
    texts = (piece.text.strip() for piece in turn if piece.kind == "text")
    return [text for text in texts if text]


# --- texts -------------------------------------------------------------------------------------


def _is_same_text(sent: Sequence[str], came: Sequence[str]) -> bool:
    """Return whether texts are equal but for blanks at the ends of lines and of blocks."""
    ours, theirs = (iter([_trim_lines(text) for text in texts]) for texts in (sent, came))
    one, other, at, there = "", "", 0, 0
    while True:
        if at == len(one):
            one, at = next(ours, ""), 0
            there = _skip_blanks(other, there)
        if there == len(other):
            other, there = next(theirs, ""), 0
            at = _skip_blanks(one, at)
        length = min(len(one) - at, len(other) - there)
        if not length:
            return at == len(one) and there == len(other)
        if one[at : at + length] != other[there : there + length]:
            return False
        at, there = at + length, there + length


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _trim_lines(text: str) -> str:
    """Return a text without the blanks at the ends of its lines."""
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _is_folded(sent: str, came: str) -> bool:
    """Return whether a text came back with some of its runs of blanks shortened."""
    if sent.split() != came.split():
        return False
    runs = zip(_BLANKS.findall(sent), _BLANKS.findall(came), strict=True)
    return all(run == " " or _is_part(run, was) for was, run in runs)


def _is_part(run: str, whole: str) -> bool:
    """Return whether a run is another one with some characters left out."""
    left = iter(whole)
    return all(character in left for character in run)


# --- arguments ---------------------------------------------------------------------------------


def _parameters(name: str, tools: Sequence[Mapping[str, Any]]) -> Schema:
    """Return the schema of a tool's arguments, an empty one if there is no such tool."""
    for tool in tools:
        function = tool["function"]
        if function["name"] == name:
            return _object(function.get("parameters"))
    return {}


def _object(schema: object) -> Schema:
    return schema if isinstance(schema, dict) else {}


def _has_same_types(one: Json, other: Json) -> bool:
    """Return whether equal values are equal as JSON: Python takes True for 1."""
    left = [(one, other)]
    while left:
        one, other = left.pop()
        if isinstance(one, bool) != isinstance(other, bool):
            return False
        if isinstance(one, dict):
            left += [(value, other[key]) for key, value in one.items()]
        elif isinstance(one, list):
            left += zip(one, other, strict=True)
    return True


class _Arguments:
    """Compares the arguments of one call by the schema of its tool."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema

    def compare(self, sent: Mapping[str, Json], came: Mapping[str, Json]) -> set[Change] | None:
        """Return what a program has done to the arguments, None if it has changed them, or if they
        are nested too deep to tell: a program can send any.
        """
        try:
            return self._compare_objects(sent, came, self._root, COMMANDS)
        except RecursionError:
            return None

    def _compare(
        self, sent: Json, came: Json, schema: Schema, *, is_command: bool = False
    ) -> set[Change] | None:
        match sent, came:
            case (bool(), _) | (_, bool()):
                return set() if sent is came else None
            case (dict(), dict()):
                return self._compare_objects(sent, came, schema)
            case (list(), list()) if len(sent) == len(came):
                items = self._find_items(schema)
                pairs = zip(sent, came, strict=True)
                return _join(self._compare(one, other, items) for one, other in pairs)
            case (str(), str()):
                return _compare_strings(sent, came, is_command=is_command)
            case (int() | float(), int() | float() | None):
                return set() if _is_same_number(sent, came) else None
            case (str(), int() | float()) if self._wants_number(schema):
                return {"number_text"} if _reads_as(sent, came) else None
        return set() if sent is None and came is None else None

    def _compare_objects(
        self,
        sent: Mapping[str, Json],
        came: Mapping[str, Json],
        schema: Schema,
        commands: Sequence[str] = (),
    ) -> set[Change] | None:

        def compare(name: str) -> set[Change] | None:
            one, other, member = sent.get(name), came.get(name), self._find_member(schema, name)
            found = self._compare(one, other, member, is_command=name in commands)
            if found is not None:
                return found
            default = member.get("default")
            is_left_out = [each is None or _equals(each, default) for each in (one, other)]
            return set() if all(is_left_out) else None

        return _join(compare(name) for name in {**sent, **came})

    # --- schemas -------------------------------------------------------------------------------

    def _find_member(self, schema: Schema, name: str) -> Schema:
        """Return the schema of an object's member."""
        for each in self._walk(schema):
            properties = _object(each.get("properties"))
            if name in properties:
                return _object(properties[name])
        return {}

    def _find_items(self, schema: Schema) -> Schema:
        found = (_object(each["items"]) for each in self._walk(schema) if "items" in each)
        return next(found, {})

    def _wants_number(self, schema: Schema) -> bool:
        allowed = allowed_types(schema, self._root)
        return "string" not in allowed and not allowed.isdisjoint(("integer", "number"))

    def _walk(self, schema: Schema) -> Iterator[Schema]:
        """Yield a schema, what it refers to, and its alternatives."""
        left = [schema]
        for each in islice(left, MAX_SCHEMAS):
            yield each
            for key in ("anyOf", "oneOf", "allOf"):
                options = each.get(key)
                if isinstance(options, list):
                    left += map(_object, options[:MAX_SCHEMAS])
            place = each.get("$ref")
            if isinstance(place, str) and place.startswith("#/"):
                left.append(_object(resolve_reference(place, self._root)))


def _join(parts: Iterable[set[Change] | None]) -> set[Change] | None:
    changes: set[Change] = set()
    for part in parts:
        if part is None:
            return None
        changes |= part
    return changes


def _equals(value: Json, default: Json) -> bool:
    """Return whether a value is a schema's own default."""
    return bool(_Arguments({})._compare(value, default, {}) == set())


def _compare_strings(sent: str, came: str, *, is_command: bool) -> set[Change] | None:
    if sent == came:
        return set()
    if _is_trimmed(sent, came):
        return {"trailing_space"}
    if is_command and (cut := LEADING_CD.match(sent)):
        rest = _compare_strings(sent[cut.end() :], came, is_command=False)
        return None if rest is None else {"leading_cd", *rest}
    return None


def _is_trimmed(sent: str, came: str) -> bool:
    """Return whether a string came back without blanks at the ends of some lines."""
    lines, came_lines = _LINE_ENDS.split(sent), _LINE_ENDS.split(came)
    return lines[1::2] == came_lines[1::2] and all(
        line.startswith(echo) and not line[len(echo) :].strip()
        for line, echo in zip(lines[::2], came_lines[::2], strict=True)
    )


def _is_same_number(sent: float, came: float | None) -> bool:
    """Return whether numbers are equal as programs read them: one of none is sent as null."""
    if came is None:
        return isinstance(sent, float) and not abs(sent) < float("inf")
    if sent == came:
        return True
    try:
        return float(sent) == float(came)  # programs in JavaScript round integers beyond 2**53
    except OverflowError:
        return False


def _reads_as(text: str, number: float) -> bool:
    """Return whether a text is that number, as JSON writes it."""
    if not re.fullmatch(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", text):
        return False
    return _is_same_number(float(text) if not text.lstrip("-").isdigit() else int(text), number)
