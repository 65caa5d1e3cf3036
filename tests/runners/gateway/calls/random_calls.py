"""Random tools and calls of them: white space at both ends, tags in values, numbers as strings,
null, unicode.

Left out are values that no reader can tell from another call, since the family's template writes
both alike: a string that holds the end of its own argument, or ``null`` where null is allowed.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

Call = tuple[str, dict[str, Any]]

TAGS = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "</function>", "</parameter>"),
    *("<function=other>", "<parameter=other>", "</parameter1>", "</invoke>", "</arg_value>"),
    *('<invoke name="other">', '<parameter name="other">', "<arg_key>other</arg_key>"),
    *("<arg_value>", "</arg_key>", "</minimax:tool_call>", "<minimax:tool_call>", "```", "```json"),
    *("<|tool_call_end|>", "<|tool_call_begin|>", "<|tool_calls_section_end|>", "<|im_end|>"[:-1]),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "</｜DSML｜parameter>", "</｜DSML｜invoke>"),
    *("<tool_call|>", "<|tool_call>", "<|message|>", "<|call|>"[:-1], "}", '"}', "{", "\\", '"'),
    *("<channel|>", "<|channel>", "<think:opensource>", "</arg_value:opensource>", "call:other{"),
)
WORDS = (
    *("a", "def f(x):", "return 1", "1.10", "42", "true", "null", "None", "0", "-1", "1e5", "é"),
    *("日本", "😀", "\u2028", "\u00a0", "\x00", "\r", "\x0b", "&lt;", "<", ">", "=", "'", "1.0"),
)
SPACE = ("", "", " ", "\n", "\n\n", "    ", "\t", " \n", "\r\n")
CLOSES_ITSELF = re.compile(
    r"""</parameter>\s*(<parameter[ =]|</function>|</invoke>)
    |</arg_value(:opensource)?>\s*(<arg_key|</tool_call)
    |</｜DSML｜parameter>\s*(<｜DSML｜parameter|</｜DSML｜invoke>)
    |</parameter1>\s*(<parameter[ =]|</function>|</invoke>)
    |<\|(im_end|call)\|>""",  # which end a turn
    re.VERBOSE,
)
AMBIGUOUS_WORDS = ("null", "None", "True", "False")


def random_text(rng: random.Random) -> str:
    """Return a string that its own argument can hold."""
    while True:
        parts = rng.choices((*WORDS, *TAGS, *SPACE), k=rng.randint(0, 8))
        text = rng.choice(SPACE) + rng.choice(("", " ", "\n")).join(parts) + rng.choice(SPACE)
        if not CLOSES_ITSELF.search(text):
            return text


def _text_beside(rng: random.Random) -> str:
    """Return a string that reads as nothing else."""
    while True:
        text = random_text(rng)
        if text.strip() in AMBIGUOUS_WORDS:
            continue
        try:
            json.loads(text)
        except ValueError:
            return text


def random_json(rng: random.Random, depth: int = 0) -> Any:
    """Return a JSON value."""
    kind = rng.randrange(8 if depth < 3 else 6)
    match kind:
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.randint(-(2**62), 2**62)
        case 3:
            return rng.choice((0.5, -1.25e-7, 1e22, 3.0, rng.random()))
        case 6:
            return [random_json(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        case 7:
            return {random_key(rng): random_json(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return random_text(rng)


def _nested(rng: random.Random, *kinds: type) -> Any:
    while True:
        value = random_json(rng)
        if isinstance(value, kinds) and not CLOSES_ITSELF.search(json.dumps(value)):
            return value


def random_key(rng: random.Random) -> str:
    """Return a parameter's name."""
    letters = "abcXYZ_é日"
    return rng.choice(letters) + "".join(rng.choices(letters + "019-.", k=rng.randint(0, 8)))


def random_parameter(rng: random.Random) -> tuple[Any, Any]:
    """Return a schema of a parameter, and a value of it."""
    integer = {"type": "integer"}
    string: dict[str, Any] = {"type": "string"}
    match rng.randrange(14):
        case 0:
            return integer, rng.randint(-9, 2**40)
        case 1:
            return {"type": "number"}, rng.choice((1, 2.5, -1e-9, 1e300))
        case 2:
            return {"type": "boolean"}, rng.random() < 0.5
        case 3:
            return {"type": "array", "items": string}, _nested(rng, list)
        case 4:
            return {"type": "object"}, _nested(rng, dict)
        case 5:
            nullable = rng.choice(
                (
                    {"anyOf": [string, {"type": "null"}]},
                    {"type": ["string", "null"]},
                    {"anyOf": [{"type": "null"}, string], "default": None},
                    {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]},
                )
            )
            text = random_text(rng)
            return nullable, None if text.strip() in AMBIGUOUS_WORDS else text
        case 6:
            return {"anyOf": [integer, {"type": "null"}]}, rng.choice((None, 7))
        case 7:
            return {"anyOf": [string, integer]}, rng.choice((_text_beside(rng), 12))
        case 8:
            return {"enum": ["1", "2.0", "true"]}, rng.choice(("1", "2.0", "true"))
        case 9:
            return rng.choice(({}, {"description": "any"})), rng.choice(
                (_text_beside(rng), _nested(rng, int, list, dict))
            )
        case 10:
            return {"type": ["boolean", "null"]}, rng.choice((True, False, None))
        case 11:
            return {"$ref": "#/$defs/text"}, random_text(rng)
    return string, random_text(rng)


def random_tools(rng: random.Random) -> tuple[list[dict[str, Any]], list[Call]]:
    """Return tools, and calls of them."""
    tools: list[dict[str, Any]] = []
    calls: list[Call] = []
    for name in rng.sample(("Bash", "read_file", "mcp__x__y-z", "A"), k=rng.randint(1, 3)):
        drawn = {random_key(rng): random_parameter(rng) for _ in range(rng.randint(0, 4))}
        schema = {
            "type": "object",
            "properties": {key: schema for key, (schema, _) in drawn.items()},
            "$defs": {"text": {"type": "string", "minLength": 0}},
        }
        function = {"name": name, "description": "d", "parameters": schema}
        tools.append({"type": "function", "function": function})
        calls.append((name, {key: value for key, (_, value) in drawn.items()}))
    return tools, calls
