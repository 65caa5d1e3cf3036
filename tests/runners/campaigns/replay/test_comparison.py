"""What counts as a difference between a recorded request and a replayed one, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runners.campaigns.replay.comparison import Difference, compare_turns
from runners.campaigns.replay.recorded_engine import (
    RecordedEngine,
    UnansweredPrompt,
    rebuild_prompts,
)
from runners.engines.contract import EngineError, SamplingParams
from runners.records.record import Turn
from runners.records.tokenizer import load_tokenizer, write_tiny_tokenizer

PARAMS = SamplingParams(100)
BY_MAIN, BY_SUB = "s:main:x", "s:subagent:x"
"""Names of requests, as the gateway makes them."""
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
        return compare_turns([old], [new], [(0, rebuild_prompts([new])[0])], [], tokenizer)

    return found


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("1 passed in 0.03s", "1 passed in 0.12s"),
        ("Chunk ID: 7d9ddd\nWall time: 0.0000 seconds", "Chunk ID: 0a1b2c\nWall time: 1.5 seconds"),
        ('{"nickname":"Bohr"}', '{"nickname":"Planck"}'),
        ("<usage>subagent_tokens: 11037", "<usage>subagent_tokens: 11039"),
        ("- OS Version: Linux 6.1.0-13", "- OS Version: Linux 6.8.0-rc1 (its own)"),
        ("<day>2023-11-14</day>", "<day>2023-11-15</day>"),
        ("01a1f864-63b4-7b60-8e02-46f167aa5a43", "11a1f864-63b4-7b60-8e02-46f167aa5a43"),
    ],
)
def test_drawn_or_measured_texts_are_no_difference(then: str, now: str, differences: Any) -> None:
    assert differences(heard(then), heard(now, started_at=NOON + DAY_S)) == []


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("1 passed in 0.03s", "2 passed in 0.03s"),
        ("due 2023-11-20", "due 2023-11-21"),
        ("a", ""),
    ],
)
def test_any_other_text_is_a_difference(then: str, now: str, differences: Any) -> None:
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


async def test_a_recorded_prompt_is_answered_by_its_turn_in_any_order() -> None:
    turns = [turn(0, [1, 2], [10]), turn(1, [1, 3], [11]), turn(2, [5], [12])]
    engine = RecordedEngine(turns)
    for prompt, said in (([1, 3], 11), ([5], 12), ([1, 2], 10)):
        answer = await engine.generate(prompt, PARAMS, rid=BY_MAIN)
        assert (answer.output_ids.tolist(), answer.matched) == ([said], said)


async def said(engine: RecordedEngine, prompt: list[int], rid: str) -> int:
    """Return the one token that was said after a prompt."""
    (answer,) = (await engine.generate(prompt, PARAMS, rid=rid)).output_ids.tolist()
    return int(answer)


async def test_a_new_prompt_is_answered_by_the_next_turn_of_its_own_thread() -> None:
    main = turn(0, [1, 2], [10])
    sub = turn(1, [7, 7], [11], thread="sub", branch="subagent")
    second = turn(2, [3, 4], [12], parent=0, prompt_kept=3)
    third = turn(3, [5], [13], parent=2, prompt_kept=6)
    engine = RecordedEngine([main, sub, second, third])
    assert await said(engine, [1, 2], BY_MAIN) == 10
    assert await said(engine, [1, 2, 10, 3, 9], BY_MAIN) == 12, "a tool said something else"
    assert await said(engine, [1, 2, 10, 3, 9, 12, 5], BY_MAIN) == 13
    assert await said(engine, [7, 8], BY_SUB) == 11


SYSTEM, OTHER, TASK_A, TASK_B, REPLY = 5, 6, 20, 21, 3


def two_sub_agents() -> list[Turn]:
    """Return a session whose sub-agents A and B work at the same time, A's requests first."""
    return [
        turn(0, [1, REPLY], [10]),
        turn(1, [SYSTEM, TASK_A, REPLY], [11], thread="a", branch="subagent"),
        turn(2, [SYSTEM, TASK_B, REPLY], [12], thread="b", branch="subagent"),
        turn(3, [30, REPLY], [13], thread="a", branch="subagent", parent=1, prompt_kept=4),
        turn(4, [31, REPLY], [14], thread="b", branch="subagent", parent=2, prompt_kept=4),
        turn(5, [32, REPLY], [15], parent=0, prompt_kept=3),
    ]


@pytest.mark.parametrize("system", [SYSTEM, OTHER])
async def test_sub_agents_are_distinguished_by_their_tasks_in_any_order(system: int) -> None:
    engine = RecordedEngine(two_sub_agents())
    assert await said(engine, [1, REPLY], BY_MAIN) == 10
    assert await said(engine, [system, TASK_B, REPLY], BY_SUB) == 12
    assert await said(engine, [system, TASK_B, REPLY, 12, 99, REPLY], BY_SUB) == 14
    assert await said(engine, [system, TASK_A, REPLY], BY_SUB) == 11
    assert await said(engine, [1, REPLY, 10, 98, REPLY], BY_MAIN) == 15
    assert await said(engine, [system, TASK_A, REPLY, 11, 97, REPLY], BY_SUB) == 13


async def test_sub_agents_with_one_task_are_answered_line_by_line() -> None:
    turns = two_sub_agents()
    turns[2] = replace(turns[2], prompt_new=turns[1].prompt_new)
    engine = RecordedEngine(turns)
    first = await said(engine, [OTHER, TASK_A, REPLY], BY_SUB)
    second = await said(engine, [OTHER, TASK_A, REPLY], BY_SUB)
    assert (first, second) == (11, 12)
    assert await said(engine, [OTHER, TASK_A, REPLY, 12, 31, REPLY], BY_SUB) == 14
    assert await said(engine, [OTHER, TASK_A, REPLY, 11, 30, REPLY], BY_SUB) == 13


async def test_the_first_prompt_is_not_answered_by_what_began_anew_after_a_summary() -> None:
    """Though another version's first prompt is more like that one."""
    summed_up = turn(1, [2, REPLY], [11], branch="compaction", parent=0, prompt_kept=3)
    engine = RecordedEngine(
        [turn(0, [OTHER, TASK_A], [10]), summed_up, turn(2, [SYSTEM, TASK_A, REPLY], [12])]
    )
    assert await said(engine, [SYSTEM, TASK_B, REPLY], BY_MAIN) == 10
    assert await said(engine, [SYSTEM, TASK_B, REPLY, 10, 2, REPLY], "s:compaction:x") == 11
    assert await said(engine, [SYSTEM, TASK_B, REPLY, 9], BY_MAIN) == 12


async def test_a_turn_too_many_takes_none_of_another_thread() -> None:
    engine = RecordedEngine(two_sub_agents())
    await said(engine, [SYSTEM, TASK_A, REPLY], BY_SUB)
    await said(engine, [SYSTEM, TASK_A, REPLY, 11, 30, REPLY], BY_SUB)
    for prompt, rid, after in (
        ([SYSTEM, TASK_A, REPLY, 11, 30, REPLY, 13, 40, REPLY], BY_SUB, 3),
        ([OTHER, 77], "s:side:x", None),
    ):
        with pytest.raises(EngineError, match="no further turn here"):
            await engine.generate(prompt, PARAMS, rid=rid)
        assert engine.unanswered[-1].after == after


def test_an_extra_turn_follows_the_one_that_it_continues(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiny_tokenizer(tmp_path))
    turns = two_sub_agents()[:3]
    changed = replace(turns[2], request={"messages": [{"role": "user", "content": "b"}]})
    extra = UnansweredPrompt(np.array([SYSTEM], np.int32), 1)
    unknown = UnansweredPrompt(np.array([OTHER], np.int32), None)
    answered = list(enumerate(rebuild_prompts(turns)))
    found = compare_turns(turns, [*turns[:2], changed], answered, [unknown, extra], tokenizer)
    assert [(d.what, d.thread, d.turn) for d in found] == [
        ("extra", "a", 1),
        ("message", "b", 0),
        ("extra", None, 0),
    ]


async def test_after_the_last_turn_every_prompt_is_refused() -> None:
    engine = RecordedEngine([turn(0, [1], [2])])
    await engine.generate([1], PARAMS, rid=BY_MAIN)
    with pytest.raises(EngineError) as caught:
        await engine.generate([1, 2, 3], PARAMS, rid=BY_MAIN)
    assert (caught.value.status, caught.value.retryable) == (400, False)
    (only,) = engine.unanswered
    assert (only.prompt.tolist(), only.after) == ([1, 2, 3], 0)
