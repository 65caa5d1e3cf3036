"""The summary of a session: what was on the wire, bounded and safe to show.

Its counters are named as today in old stores too.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from runners.records.session_summary import (
    ARGUMENTS,
    EARLIER_NAMES,
    FINAL_MESSAGE,
    NAME,
    RAW_REASON,
    STORED_COUNTERS,
    TOOL_CALLS,
    CalledTool,
    FinishReason,
    SessionSummary,
    TokenUsage,
    TurnReply,
    rename_counters,
    summarize_session,
)
from runners.records.store.run_store import RunStore
from tests.fakes.hostile import STEERING, TEXTS
from tests.fakes.records import CONFIG, a_rollout


def a_call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": "c", "function": function}


def a_turn(number: int, text: str = "", *calls: dict[str, Any], **changes: Any) -> TurnReply:
    reply: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        reply["tool_calls"] = list(calls)
    fields: dict[str, Any] = {
        "turn": number, "thread": "main", "branch": "main", "finish_reason": "stop",
        "malformed_calls": 0, "sampled_tokens": 3, "reply": reply,
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": 4},
    }  # fmt: skip
    return TurnReply(**fields | changes)


def test_a_session_without_turns_has_an_empty_summary() -> None:
    assert summarize_session([]) == SessionSummary()


def test_turns_calls_and_tokens_are_counted_over_all_threads() -> None:
    sub = {"thread": "agent-1", "branch": "subagent"}
    found = summarize_session(
        [
            a_turn(0, "I look", a_call("Agent", prompt="look")),
            a_turn(1, "", a_call("Read", path="a"), a_call("Read", path="b"), **sub),
            a_turn(2, "it subtracts", **sub),
            a_turn(3, "broken", malformed_calls=2),
            a_turn(4, "done"),
        ]
    )
    assert (found.turns, found.tool_turns, found.tool_calls_total) == (5, 2, 3)
    assert found.usage == TokenUsage(prompt_tokens=50, cached_tokens=20, sampled_tokens=15)
    assert found.tool_calls == (
        CalledTool(0, "main", "main", "Agent", '{"prompt":"look"}'),
        CalledTool(1, "agent-1", "subagent", "Read", '{"path":"a"}'),
        CalledTool(1, "agent-1", "subagent", "Read", '{"path":"b"}'),
    )
    assert (found.malformed_turns, found.ends_malformed) == (1, False)
    assert (found.final_message, found.finish_reason) == ("done", FinishReason.STOP)


@pytest.mark.parametrize("branch", ["subagent", "compaction", "side"])
def test_the_final_message_is_that_of_the_main_branch(branch: str) -> None:
    later = a_turn(1, "a title", branch=branch, finish_reason="length", malformed_calls=1)
    found = summarize_session([a_turn(0, "fixed"), later])
    assert (found.final_message, found.finish_reason) == ("fixed", FinishReason.STOP)
    assert found.ends_malformed


def test_a_main_turn_that_only_calls_a_tool_leaves_no_final_message() -> None:
    found = summarize_session([a_turn(0, "I start"), a_turn(1, "", a_call("Submit", message="ok"))])
    assert found.final_message == ""
    assert found.tool_calls[-1].arguments == '{"message":"ok"}'


@pytest.mark.parametrize(
    ("raw", "reason"),
    [*((each.value, each) for each in FinishReason), ("timeout", "other"), ("\x1b[2J", "other")],
)
def test_finish_reasons_are_a_closed_list_and_foreign_words_are_kept_apart(
    raw: str, reason: str
) -> None:
    found = summarize_session([a_turn(0, finish_reason=raw)])
    assert found.finish_reason is FinishReason(reason)
    assert found.raw_finish_reason == raw.replace("\x1b", "\ufffd")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_whatever_the_policy_writes_is_safe_to_show_to_store_and_to_format(text: str) -> None:
    call = {"function": {"name": text, "arguments": {"a": text.encode(errors="replace").decode()}}}
    found = summarize_session([a_turn(0, text, call, finish_reason=text)])
    [kept] = found.tool_calls
    for shown in (found.final_message, kept.name, kept.arguments, found.raw_finish_reason or ""):
        assert STEERING.search(shown) is None
        shown.encode()
    if STEERING.search(text) is None:
        assert found.final_message == text
        assert len(text) > ARGUMENTS or json.loads(kept.arguments) == {"a": text}


def test_whatever_the_policy_writes_is_bounded_and_the_last_calls_are_kept() -> None:
    long = "x" * (FINAL_MESSAGE + 1)
    calls = [a_call(f"{number}-{long}", text=long) for number in range(TOOL_CALLS + 5)]
    found = summarize_session([a_turn(0, long, *calls, finish_reason=long)])
    assert found.final_message == long[: FINAL_MESSAGE - 1] + "…"
    assert len(found.raw_finish_reason or "") == RAW_REASON
    assert (len(found.tool_calls), found.tool_calls_total) == (TOOL_CALLS, TOOL_CALLS + 5)
    assert found.tool_calls[0].name.startswith("5-")
    assert {len(call.name) for call in found.tool_calls} == {NAME}
    assert {len(call.arguments) for call in found.tool_calls} == {ARGUMENTS}


def test_every_earlier_name_stands_for_a_counter_of_today() -> None:
    assert set(EARLIER_NAMES.values()) <= set(STORED_COUNTERS)
    assert not set(EARLIER_NAMES) & set(STORED_COUNTERS)


def test_a_key_that_is_no_earlier_name_is_kept() -> None:
    metrics = {"rollout/unread": 1, "unread": 2, "rollout/forks": 3}
    assert rename_counters(metrics, "rollout/") == {
        "rollout/parser_fallbacks": 1,
        "unread": 2,
        "rollout/forks": 3,
    }


def test_a_store_with_earlier_names_is_read_with_todays(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, CONFIG) as store:
        store.put_rollout(a_rollout())
        store.begin_step(1, [])
    old = {"session": {"unread": 2, "tito_mismatches": 1, "forks": 3}}
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        database.execute("UPDATE rollout SET extra = ?", [json.dumps(old)])
        database.execute(
            "UPDATE step SET finished_at = 1, metrics = ?", [json.dumps({"rollout/unread": 2})]
        )
    database.close()
    with RunStore.open(tmp_path, read_only=True) as store:
        (record,) = store.each_rollout()
        (step,) = store.steps()
    assert record.extra["session"] == {
        "parser_fallbacks": 2,
        "retokenization_mismatches": 1,
        "forks": 3,
    }
    assert step.metrics == {"rollout/parser_fallbacks": 2}
