"""Our parsing of sampled text against a second parser's: that of ``smg`` (SGLang's
router), on well-formed and broken outputs.

``read_by_smg.json`` holds what smg 1.13.0 reads; where smg is installed, it is asked again.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.family_tokenizer import load_family
from tests.fakes.smg import running_smg

pytestmark = pytest.mark.integration

CORPUS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("read_by_smg.json").read_text("utf-8")
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "Read",
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer"}},
            },
        },
    }
]
OURS: dict[str, list[Any]] = {
    # white space is the value's
    r"\n  a\n</parameter>": [["Read", {"file_path": "  a"}]],
    # a tag is missing, and the call is whole without it
    r"\na.py\n</function>": [["Read", {"file_path": "a.py"}]],
    r"^<function=Read>": [["Read", {"file_path": "a.py"}]],
    # malformed: not what the tool takes, a key without a value, arguments that are a string
    "many": [],
    r"<arg_key>file_path</arg_key>\n?</tool_call>": [],
    '"arguments": "{': [],
}
"""Patterns of outputs that smg reads otherwise, with our reading."""

FAMILIES = {
    "qwen3": "<|im_end|>",
    "qwen3.5": "<|im_end|>",
    "glm-4.5": "<|user|>",
    "glm-5": "<|user|>",
}
"""And what ends a turn."""


@pytest.mark.parametrize("row", CORPUS, ids=lambda row: f"{row['renderer']}-{row['text'][:40]!r}")
def test_both_parsers_agree(row: dict[str, Any]) -> None:
    work, _, tokenizer = load_family(row["renderer"])
    text: str = row["text"]
    ids = tokenizer.encode(text + FAMILIES[row["renderer"]])
    parsed = work.read_output(ids, TOOLS, []).parsed
    calls = [[call.name, call.arguments] for call in parsed.tool_calls if call.status == "ok"]
    assert (parsed.reasoning_content or "").strip() == row["reasoning"]
    ours = [read for part, read in OURS.items() if re.search(part, text)]
    assert calls == (ours[0] if ours else row["calls"])


@pytest.fixture(scope="module")
def smg() -> Iterator[str]:
    with running_smg() as url:
        yield url


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def test_the_recorded_answers_are_those_of_smg(smg: str) -> None:
    for row in CORPUS:
        thinking = "glm45" if row["renderer"].startswith("glm") else "qwen3"
        parts = post(smg, "/parse/reasoning", {"text": row["text"], "reasoning_parser": thinking})
        body = {
            "text": parts["normal_text"],
            "tools": TOOLS,
            "tool_call_parser": row["parser"],
        }
        functions = [
            call["function"] for call in post(smg, "/parse/function_call", body)["tool_calls"]
        ]
        calls = [[call["name"], json.loads(call["arguments"])] for call in functions]
        found = (parts["reasoning_text"].strip(), calls)
        assert found == (row["reasoning"], row["calls"]), row["text"]
