"""The JSON of a prompt is what it is without what was sent before."""

from __future__ import annotations

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from runners.engines.prompt_json import LAST_BYTES, LEAST_TOKENS, PromptJson
from runners.gateway.tree.growing_ids import GrowingIds
from runners.records.record import IdArray

BASE = np.arange(LEAST_TOKENS + 200, dtype=np.int32)
SIZE = len(orjson.dumps(BASE, option=orjson.OPT_SERIALIZE_NUMPY)) - 2
Step = tuple[int, int, list[int]]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 1, 5, 50]),
        st.lists(st.integers(0, 2**31 - 1), max_size=4),
    ),
    max_size=12,
)


def whole(ids: IdArray) -> bytes:
    return orjson.dumps(ids, option=orjson.OPT_SERIALIZE_NUMPY)


def written(prompts: PromptJson, ids: IdArray) -> bytes:
    """Return the text of a prompt."""
    return b"[" + b"".join(prompts.write(ids)) + b"]"


def start(ids: IdArray = BASE) -> tuple[GrowingIds, IdArray]:
    """Return memory that holds a prompt."""
    memory = GrowingIds()
    return memory, memory.append(ids, np.empty(0, np.int32))


@given(STEPS)
def test_a_prompt_is_written_as_if_none_had_been_sent_before(steps: list[Step]) -> None:
    prompts, branches = PromptJson(), [start() for _ in range(3)]
    for branch, dropped, added in steps:
        memory, path = branches[branch]
        path = memory.append(path[: len(path) - dropped], np.array(added, np.int32))
        branches[branch] = memory, path
        assert written(prompts, path) == whole(path)
        part = path[dropped:]
        assert written(prompts, part) == whole(part)
        shorter = path[: len(path) - dropped]
        assert written(prompts, shorter) == whole(shorter)


def test_the_text_of_a_known_prompt_is_kept() -> None:
    prompts = PromptJson()
    memory, path = start(np.arange(LAST_BYTES, dtype=np.int32))
    first = prompts.write(path)
    second = prompts.write(memory.append(path, np.array([7], np.int32)))
    assert second == (*first, b",7")
    assert second[0] is first[0]


def test_the_parts_of_a_long_conversation_stay_few() -> None:
    prompts = PromptJson()
    memory, path = start()
    for number in range(400):
        path = memory.append(path, np.full(number % 37, number, np.int32))
        parts = [len(part) for part in prompts.write(path)]
        assert len(parts) <= 4
        assert all(part > LAST_BYTES for part in parts[:-1])
    assert written(prompts, path) == whole(path)


def test_what_is_kept_of_all_sessions_is_bounded() -> None:
    prompts = PromptJson(max_bytes=3 * SIZE)
    paths = [start()[1] for _ in range(10)]
    for path in paths:
        prompts.write(path)
        prompts.write(path)
    assert prompts.bytes == 3 * SIZE
    large = np.tile(BASE, 10)
    assert written(prompts, large) == whole(large)
    assert prompts.bytes == 0


def test_a_text_goes_with_its_prompt() -> None:
    prompts, held = PromptJson(), [start()]
    while len(held) < 4:
        prompts.write(held[-1][1])
        held.append(start())
    assert prompts.bytes == 3 * SIZE
    held.pop()
    held.pop()
    assert prompts.bytes == 2 * SIZE
    held.clear()
    assert prompts.bytes == 0
