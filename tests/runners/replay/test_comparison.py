"""What counts as a difference between a recorded request and a replayed one, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.engines.contract import EngineError, SamplingParams
from runners.gateway.tokenizer import load_tokenizer
from runners.replay.comparison import Difference, compare
from runners.replay.recording import RecordedEngine, prompts
from runners.trajectory.record import Turn
from tests.fakes.tiny_tokenizer import write_tiny_tokenizer

PARAMS = SamplingParams(100)
NOON = 1_700_000_000.0
DAY_S = 86_400


def turn(index: int, prompt: list[int], said: list[int], **changes: Any) -> Turn:
    """Return a turn of the main thread, rendered whole unless ``changes`` say otherwise."""
    made = Turn(
        session_id="s",
        index=index,
        thread="main",
        parent_thread=None,
        branch="main",
        segment=0,
        parent=None,
        prompt_kept=0,
        prompt_new=np.array(prompt, np.int32),
        output_ids=np.array(said, np.int32),
        output_logprobs=-np.ones(len(said), np.float32),
        weight_version=1,
        finish_reason="stop",
        break_reason=None,
        malformed_calls=0,
        request={"messages": [], "tools": [], "model": "policy", "max_tokens": 5},
        reply={},
        usage={},
        started_at=NOON,
        engine_s=0.0,
        total_s=0.0,
    )
    return replace(made, **changes)


def heard(text: str, role: str = "user", **changes: Any) -> Turn:
    """Return a turn that heard one message."""
    messages = [{"role": role, "content": text, "tool_call_id": f"call-{id(text)}"}]
    return turn(0, [1, 2], [3], request={"messages": messages, "tools": []}, **changes)


@pytest.fixture
def differences(tmp_path: Path) -> Any:
    tokenizer = load_tokenizer(write_tiny_tokenizer(tmp_path))

    def found(old: Turn, new: Turn) -> list[Difference]:
        return compare([old], [new], [(0, prompts([new])[0])], [], tokenizer)

    return found


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("1 passed in 0.03s", "1 passed in 0.12s"),
        ("Chunk ID: 7d9ddd\nWall time: 0.0000 seconds", "Chunk ID: 0a1b2c\nWall time: 1.5 seconds"),
        ('{"nickname":"Bohr"}', '{"nickname":"Planck"}'),
        ("<day>2023-11-14</day>", "<day>2023-11-15</day>"),
        ("01a1f864-63b4-7b60-8e02-46f167aa5a43", "11a1f864-63b4-7b60-8e02-46f167aa5a43"),
    ],
)
def test_what_is_drawn_or_measured_is_no_difference(then: str, now: str, differences: Any) -> None:
    assert differences(heard(then), heard(now, started_at=NOON + DAY_S)) == []


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("1 passed in 0.03s", "2 passed in 0.03s"),
        ("due 2023-11-20", "due 2023-11-21"),
        ("a", ""),
    ],
)
def test_everything_else_is_one(then: str, now: str, differences: Any) -> None:
    (found,) = differences(heard(then), heard(now, started_at=NOON + DAY_S))
    assert (found.what, found.message, found.role) == ("message", 0, "user")
    assert (found.recorded, found.replayed) == (
        then.replace("0.03s", "…"),
        now.replace("0.03s", "…"),
    )


def test_texts_are_shown_from_a_little_before_they_differ(differences: Any) -> None:
    (found,) = differences(heard("x" * 5000 + "old"), heard("x" * 5000 + "new"))
    assert found.recorded == "x" * 60 + "old"
    assert found.replayed == "x" * 60 + "new"


def test_other_tools_are_a_difference(differences: Any) -> None:
    new = replace(heard("same"), request={**heard("same").request, "tools": [{"name": "Bash"}]})
    (found,) = differences(heard("same"), new)
    assert (found.what, found.recorded, found.replayed) == ("tools", "[]", '[{"name": "Bash"}]')


def test_the_same_words_as_other_tokens_are_a_difference(differences: Any) -> None:
    new = replace(heard("same"), prompt_new=np.array([1, 4], np.int32))
    assert [found.what for found in differences(heard("same"), new)] == ["tokens"]


async def test_a_prompt_is_answered_by_the_turn_whose_it_is_in_whatever_order() -> None:
    turns = [turn(0, [1, 2], [10]), turn(1, [1, 3], [11]), turn(2, [5], [12])]
    engine = RecordedEngine(turns)
    for prompt, said in (([1, 3], 11), ([5], 12), ([1, 2], 10)):
        answer = await engine.generate(prompt, PARAMS, rid="r")
        assert (answer.output_ids.tolist(), answer.matched) == ([said], said)


async def test_a_new_prompt_is_answered_by_the_next_turn_of_its_own_thread() -> None:
    main = turn(0, [1, 2], [10])
    sub = turn(1, [7, 7], [11], thread="sub")
    second = turn(2, [3, 4], [12], parent=0, prompt_kept=3)
    third = turn(3, [5], [13], parent=2, prompt_kept=6)
    engine = RecordedEngine([main, sub, second, third])
    await engine.generate([1, 2], PARAMS, rid="r")
    answer = await engine.generate([1, 2, 10, 3, 9], PARAMS, rid="r")
    assert answer.output_ids.tolist() == [12], "the tool said something else this time"
    answer = await engine.generate([1, 2, 10, 3, 9, 12, 5], PARAMS, rid="r")
    assert answer.output_ids.tolist() == [13]
    assert (await engine.generate([7, 8], PARAMS, rid="r")).output_ids.tolist() == [11]


async def test_when_all_is_said_it_refuses_for_good() -> None:
    engine = RecordedEngine([turn(0, [1], [2])])
    await engine.generate([1], PARAMS, rid="r")
    with pytest.raises(EngineError) as caught:
        await engine.generate([1, 2, 3], PARAMS, rid="r")
    assert (caught.value.status, caught.value.retryable) == (400, False)
    assert [prompt.tolist() for prompt in engine.unanswered] == [[1, 2, 3]]
