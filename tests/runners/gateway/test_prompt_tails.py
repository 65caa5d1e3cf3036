"""A turn goes on, and is read, by the tail of its prompt as by the whole of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from runners.gateway.conversation import Piece, TurnRequest, group_messages
from runners.gateway.texts.text_work import TextWork
from runners.gateway.texts.texts import SHORT_TAIL, Texts
from runners.records.tokenizer import load_renderer, load_tokenizer, write_tiny_tokenizer
from tests.fakes.running_gateway import make_limits

FAMILIES = {
    "qwen3": "<|im_end|>",
    "qwen3.5": "<|im_end|>",
    "glm-4.5": "<|user|>",
    "glm-5": "<|user|>",
}
"""What ends a turn of each."""
SPECIAL = (
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_pad|>"),
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|image|>"),
    *("<|begin_of_video|>", "<|end_of_video|>", "<|video|>"),
)
TOOLS = [{"type": "function", "function": {"name": "Read", "parameters": {"type": "object"}}}]
OUTPUTS = (
    *("done{end}", "done", "", "{end}", "<think>\nhm\n</think>\n\ndone{end}", "<think>\nhm"),
    "hm\n</think>\n\ndone{end}",
    '<tool_call>\n{{"name": "Read", "arguments": {{"limit": 1}}}}\n</tool_call>{end}',
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    backend = Backend.from_file(str(made / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    backend.save(str(made / "tokenizer.json"))
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("opened", ["", "<think>\n", "<think>\n\n</think>\n\n"])
async def test_the_tail_of_a_long_prompt_is_enough(
    family: str, opened: str, directory: Path
) -> None:
    tokenizer = load_tokenizer(directory)
    work = TextWork(tokenizer, load_renderer(tokenizer, family), family)
    texts = Texts(work, make_limits())
    long = [Piece(at, "user", "text", "x y z " * 900) for at in range(3)]
    request = TurnRequest("m", (*long, Piece(4, "user", "text", "go on")), TOOLS, 100)
    prompt = work.render(group_messages(long), TOOLS).ids + tokenizer.encode(opened)
    assert len(prompt) > 2 * SHORT_TAIL
    for output in OUTPUTS:
        ids = tokenizer.encode(output.format(end=FAMILIES[family]))
        path = np.array(prompt + ids, np.int32)
        whole = work.extend(
            prompt + ids, len(prompt), group_messages(request.pieces[3:]), request.tools
        )
        found = await texts.extend("s", path, len(prompt), request, 3)
        if isinstance(found, str) or isinstance(whole, str):
            assert found == whole
        else:
            assert found.ids.tolist() == whole.ids
        read = await texts.read_output("s", ids, TOOLS, path[: len(prompt)])
        assert repr(read) == repr(work.read_output(ids, TOOLS, prompt))
