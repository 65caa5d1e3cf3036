"""Our parsing of sampled text against a second parser's: that of ``smg`` (SGLang's
router), on well-formed and broken outputs.

``read_by_smg.json`` holds what smg 1.13.0 reads; where smg is installed, it is asked again.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from runners.records.tokenizer import Renderer, load_renderer, load_tokenizer
from runners.services.tiny_policy.tiny_tokenizer import write_tiny_tokenizer
from tests.fakes.smg import running_smg

pytestmark = pytest.mark.integration

CORPUS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("read_by_smg.json").read_text("utf-8")
)
GLM = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
)
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_pad|>")
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
STRICTER = (
    *("<function=Nope>", "\nmany\n"),
    *("</arg_key></tool_call>", "</arg_key>\n</tool_call>", "<arg_value>many"),
)
"""Calls that smg passes on and `renderers` takes for malformed: of a tool that is not offered, with
an argument of another type than the tool's, with a key without a value.
"""

FAMILIES = {
    "qwen3": "<|im_end|>",
    "qwen3.5": "<|im_end|>",
    "glm-4.5": "<|user|>",
    "glm-5": "<|user|>",
}
"""And what ends a turn."""

Read = tuple[str, list[Any]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    backend = Backend.from_file(str(made / "tokenizer.json"))
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in VISION + GLM]
    )
    backend.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def our_parser(directory: Path) -> Callable[[str, str], Read]:
    tokenizer = load_tokenizer(directory)
    families: dict[str, Renderer] = {name: load_renderer(tokenizer, name) for name in FAMILIES}

    def read(family: str, text: str) -> Read:
        ids = tokenizer.encode(f"{text}{FAMILIES[family]}")
        parsed = families[family].parse_response(ids, tools=TOOLS, prompt_ids=[])
        calls = [
            [call.name, call.arguments]
            for call in parsed.tool_calls
            if call.status in ("ok", "unknown_tool")
        ]
        return (parsed.reasoning_content or "").strip(), calls

    return read


@pytest.mark.parametrize("row", CORPUS, ids=lambda row: f"{row['renderer']}-{row['text'][:40]!r}")
def test_both_parsers_agree(row: dict[str, Any], our_parser: Callable[[str, str], Read]) -> None:
    reasoning, calls = our_parser(row["renderer"], row["text"])
    if row["renderer"].startswith("glm") and "think>" not in row["text"]:
        # a turn of GLM begins with its thoughts, which smg does not know
        assert reasoning == row["text"].partition("<tool_call>")[0].strip()
    else:
        assert reasoning == row["reasoning"]
    if row["renderer"] != "qwen3" and any(part in row["text"] for part in STRICTER):
        assert calls == []
        assert row["calls"], "smg passes it on"
    else:
        assert calls == row["calls"]


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
