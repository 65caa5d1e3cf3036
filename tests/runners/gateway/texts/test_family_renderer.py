"""Whatever a client may send is shown, also where the library refuses or hides it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from runners.gateway.calls.call_ids import order_results
from runners.gateway.conversation import Piece, group_messages
from runners.gateway.refusal import Refused
from tests.fakes.family_tokenizer import load_family

SYSTEM = {"role": "system", "content": "Be good."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(**properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "Bash", "parameters": schema}}


@pytest.mark.parametrize("family", ["qwen3", "qwen3-vl", "qwen3.5", "minimax-m2", "nemotron-3"])
def test_a_system_message_inside_of_a_conversation_is_shown(family: str) -> None:
    work, _, tokenizer = load_family(family)
    said = {"role": "assistant", "content": "Yes."}
    later = {"role": "system", "content": "Be brief."}
    whole = tokenizer.decode(work.render([SYSTEM, user("Go."), said, later, user("On.")], []).ids)
    assert whole.index("Yes.") < whole.index("Be brief.") < whole.index("On.")
    path = work.render([SYSTEM, user("Go.")], []).ids
    thinks = tokenizer.decode(path).rstrip().endswith("<think>")
    sampled = tokenizer.encode("\n</think>\n\nYes." if thinks else "Yes.")
    sampled += work.stop_token_ids()[:1]
    added = work.extend(path + sampled, len(path), [later, user("On.")], [])
    assert not isinstance(added, str)
    end = tokenizer.decode(added.ids)
    assert whole.endswith(end[end.index("Be brief.") :])


def test_kimi_declares_tools_as_json_where_it_cannot_as_typescript() -> None:
    work, _, tokenizer = load_family("kimi-k2.5")
    text = tokenizer.decode(work.render([user("Go.")], [tool(x={"type": "string"})]).ids)
    assert "namespace functions" in text
    odd: list[dict[str, Any]] = [
        *({"description": "any"}, {"const": 5}),
        *({"not": {}}, {"type": "string", "description": ["a"]}),
    ]
    for schema in odd:
        shown = tokenizer.decode(work.render([user("Go.")], [tool(x=schema)]).ids)
        assert 'tool_declare<|im_middle|>[{"function":{"name":"Bash"' in shown
        assert "Go." in shown


def test_true_is_a_schema_and_a_text_is_none() -> None:
    work, _, tokenizer = load_family("nemotron-3")
    shown = tokenizer.decode(work.render([user("Go.")], [tool(x=True, y={"type": "string"})]).ids)
    assert "<name>x</name>" in shown
    with pytest.raises(Refused, match="no JSON schema"):
        work.render([user("Go.")], [tool(x={"type": "string", "description": ["a"]})])


def test_deepseek_goes_on_with_several_results_as_it_renders_them() -> None:
    work, _, tokenizer = load_family("deepseek-v4")
    pieces = [
        Piece(0, "user", "text", "Go."),
        *(Piece(1, "assistant", "tool_call", tool_id=each, name="Bash") for each in "ab"),
        Piece(2, "user", "tool_result", "second", tool_id="b"),
        Piece(2, "user", "tool_result", "first <tool_result>", tool_id="a"),
        Piece(2, "user", "text", "And?"),
    ]
    whole, asked = (work.render(group_messages(part), []).ids for part in (pieces, pieces[:1]))
    path = whole[: max(at for at, token in enumerate(whole) if token in work.stop_token_ids()) + 1]
    messages = order_results(group_messages(pieces[3:]), pieces, 3)
    added = work.extend(path, len(asked), messages, [])
    assert not isinstance(added, str)
    assert path + added.ids == whole
    assert tokenizer.decode(added.ids).index("first") < tokenizer.decode(added.ids).index("second")


def test_a_result_without_its_call_is_shown_where_the_template_refuses_it() -> None:
    work, _, tokenizer = load_family("gemma4")
    call = {"type": "function", "id": "c", "function": {"name": "Bash", "arguments": {}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call, {**call, "id": "d"}]}
    first, second, lone = (
        {"role": "tool", "tool_call_id": each, "name": "Bash", "content": f"result {each}"}
        for each in ("c", "d", "x")
    )
    for messages in ([user("Go."), lone], [user("Go."), said, first, user("Wait."), second]):
        shown = tokenizer.decode(work.render(messages, []).ids)
        assert all(str(message["content"]) in shown for message in messages)


@pytest.mark.parametrize("family", ["deepseek-v4", "hy3", "laguna-xs.2"])
def test_a_long_text_that_ends_in_an_emoji_is_rendered_in_time(family: str) -> None:
    work, _, tokenizer = load_family(family)
    text = "word " * 4000 + "\U0001f600"
    before = time.process_time()
    ids = work.render([{"role": "system", "content": text}, user(text)], []).ids
    assert time.process_time() - before < 3  # inferred places of tokens take a minute
    assert tokenizer.decode(ids).count("\U0001f600") == 2
