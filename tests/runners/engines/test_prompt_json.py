"""The JSON of a prompt is what it is without what was sent before."""

from __future__ import annotations

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from runners.engines.prompt_json import LEAST_TOKENS, PromptJson
from runners.trajectory.record import IdArray

BASE = np.arange(LEAST_TOKENS + 200, dtype=np.int32)
Edit = tuple[str, int, list[int]]
EDITS: st.SearchStrategy[list[Edit]] = st.lists(
    st.tuples(
        st.sampled_from(["main", "subagent"]),
        st.sampled_from([0, 0, 0, 1, 5, 50]),
        st.lists(st.integers(0, 2**31 - 1), max_size=4),
    ),
    max_size=12,
)


def whole(ids: IdArray) -> bytes:
    return orjson.dumps({"input_ids": ids}, option=orjson.OPT_SERIALIZE_NUMPY)


def written(prompts: PromptJson, branch: str, ids: IdArray) -> bytes:
    """Return the text of a request for this prompt."""
    body = {"input_ids": prompts.write(f"s:{branch}:{len(ids)}-001", ids)}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


@given(EDITS)
def test_a_prompt_is_written_as_if_none_had_been_sent_before(edits: list[Edit]) -> None:
    prompts, ids = PromptJson(), BASE
    for branch, dropped, added in edits:
        ids = np.concatenate([ids[: len(ids) - dropped], np.array(added, np.int32)])
        assert written(prompts, branch, ids) == whole(ids)


def test_the_text_of_a_known_prompt_is_kept() -> None:
    prompts = PromptJson()
    prompts.write("s:main:1", BASE)
    text = prompts._written["s:main"].text
    prompts.write("s:main:2", BASE.copy())
    assert prompts._written["s:main"].text is text


def test_what_is_kept_of_all_sessions_is_bounded() -> None:
    size = BASE.nbytes + len(orjson.dumps(BASE, option=orjson.OPT_SERIALIZE_NUMPY))
    prompts = PromptJson(max_bytes=3 * size)
    for number in range(10):
        prompts.write(f"s{number}:main:1", BASE)
        prompts.write(f"s{number}:main:2", BASE)
    assert prompts.bytes == 3 * size
    large = np.tile(BASE, 10)
    assert written(prompts, "main", large) == whole(large)
    assert prompts.bytes == 0
