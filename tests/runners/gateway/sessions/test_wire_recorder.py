"""Requests as they were on the wire: whole, without secrets, bounded whatever a sandbox sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.testing.scripted_engine import ScriptedEngine
from runners.gateway.sessions import wire_recorder
from runners.gateway.sessions.wire_recorder import (
    WireRecorder,
    WireRequest,
    find_environment_secrets,
)
from runners.observe.viewer.wire_view import render_wire
from runners.records.record import WireExchange
from runners.records.store.run_store import RunStore
from tests.fakes.records import a_turn
from tests.fakes.running_gateway import running_gateway

KEY = "sk-agentrl-0123456789"


def send(body: bytes, *headers: tuple[str, str], path: str = "/v1/messages") -> WireRequest:
    return WireRequest(path, headers, [body[start : start + 7] for start in range(0, len(body), 7)])


def test_a_request_is_kept_as_it_came_with_its_headers_and_its_answer() -> None:
    body = b'{"model": "policy",  "metadata": {"user_id": "u"}, "cache_control": {"type": "x"}}'
    found = WireRecorder([]).record(send(body, ("Anthropic-Beta", "a,b")), {"id": "msg_1"})
    assert found == WireExchange(
        "/v1/messages", [("Anthropic-Beta", "a,b")], body, len(body), b'{"id":"msg_1"}', 14
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", f"Bearer {KEY}"),
        ("x-api-key", KEY),
        ("Cookie", f"session={KEY}"),
        ("X-Auth-Token", KEY),
    ],
)
def test_a_secret_header_is_hidden_and_so_is_its_value_wherever_it_stands(
    name: str, value: str
) -> None:
    secret = value.rpartition(" ")[2]
    body = json.dumps({"text": f"I found {secret}!"}).encode()
    found = WireRecorder([]).record(
        send(body, (name, value), ("X-Note", f"see {secret}"), path=f"/v1/{secret}"),
        {"text": secret},
    )
    assert found.headers == [(name, "***"), ("X-Note", "see ***")]
    assert KEY not in repr(found)


def test_a_secret_header_too_short_to_be_looked_for_is_hidden_itself() -> None:
    found = WireRecorder([]).record(send(b"{}", ("x-api-key", "abc")), {})
    assert found.headers == [("x-api-key", "***")]


def test_secrets_of_the_environment_are_hidden_in_json_s_escapes_too() -> None:
    environment = {"HUB_TOKEN": 'quo"ted\\secret', "HOME": "/root/my-home", "MY_KEY": "1"}
    secrets = find_environment_secrets(environment)
    assert secrets == ['quo"ted\\secret']
    body = json.dumps({"text": 'quo"ted\\secret', "home": "/root/my-home"}).encode()
    found = WireRecorder(secrets).record(send(body), {})
    assert json.loads(found.request) == {"text": "***", "home": "/root/my-home"}


@given(gaps=st.lists(st.integers(0, 90), min_size=1, max_size=4), limit=st.integers(1, 150))
def test_no_part_of_a_secret_is_left_where_a_body_is_cut(gaps: list[int], limit: int) -> None:
    recorder = WireRecorder([KEY])
    recorder._left = limit
    body = b"".join(b"." * gap + KEY.encode() for gap in gaps) + b"." * 50
    found = recorder.record(recorder.bound(send(body)), {})
    assert len(found.request) <= limit
    assert not set(found.request) - set(b".*")
    assert found.request_bytes == len(body)


def test_a_session_keeps_no_more_than_its_share_and_says_the_whole_size() -> None:
    recorder, body = WireRecorder([]), b"x" * (6 * wire_recorder.MB)
    found = [recorder.record(send_whole(body), {}) for _ in range(70)]
    assert len(found[0].request) == wire_recorder.BODY
    assert sum(len(each.request) + len(each.answer) for each in found) == wire_recorder.SESSION
    assert {each.request_bytes for each in found} == {len(body)}


def test_no_more_of_a_request_waits_in_memory_than_is_kept() -> None:
    recorder, body = WireRecorder([KEY]), b"x" * (6 * wire_recorder.MB)
    whole = send_whole(body)
    held = recorder.bound(whole)
    assert sum(map(len, held.body)) == wire_recorder.BODY + len(KEY)
    assert held.size == len(body)
    assert recorder.record(held, {}) == WireRecorder([KEY]).record(whole, {})
    recorder._left = 0
    assert sum(map(len, recorder.bound(whole).body)) == len(KEY)


def send_whole(body: bytes) -> WireRequest:
    return WireRequest("/v1/messages", [], [body])


def test_headers_are_few_and_short() -> None:
    found = WireRecorder([]).record(send(b"", *[(f"x-{n}", "v" * 9000) for n in range(300)]), {})
    assert len(found.headers) == wire_recorder.HEADERS
    assert max(len(value) for _, value in found.headers) <= wire_recorder.HEADER_CHARS


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"[" * 50_000, b'{"a": "\\ud800\x1b[2J"}'])
def test_what_is_no_json_is_stored_and_shown_without_control_characters(
    tmp_path: Path, body: bytes
) -> None:
    wire = WireRecorder([]).record(send(body, ("x-\ud800", "\x1b]0;owned\x07")), {"a": "\ud800"})
    with RunStore.create(tmp_path / "run", {}) as store:
        turn = a_turn()
        store.add_session(turn.session_id, {})
        store.add_turn(turn, wire=wire)
        found = store.wire(turn.session_id, 0)
        assert store.wire(turn.session_id, 1) is None
    assert found is not None
    assert found.request == body
    assert not set(render_wire(found).plain) & {"\x1b", "\x07", "\x00"}


def show(kept: bytes, whole: int) -> str:
    return render_wire(WireExchange("/v1/messages", [], kept, whole, b"{}", 2)).plain


def test_a_whole_body_is_indented_and_a_deep_one_shown_as_it_came() -> None:
    assert '{\n  "a": 1\n}' in show(b'{"a":1}', 7)
    deep = b"[" * 100 + b"1," * 20_000 + b"1" + b"]" * 100
    shown = show(deep, len(deep))
    assert deep.decode() in shown
    assert len(shown) < 2 * len(deep)
    assert "cut off" not in shown


def test_only_what_was_cut_off_says_so() -> None:
    assert "… cut off: 6 bytes are kept, it came with 1,000" in show(b'{"a":1', 1000)
    assert "cut off" not in show(b"[" * 50_000, 50_000)


@pytest.mark.parametrize("record", [True, False])
async def test_a_gateway_records_every_turn_if_it_is_asked_to(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path, record: bool
) -> None:
    run_dir = tmp_path / "run"
    async with running_gateway(engine.url, tokenizer_dir, run_dir, record_wire=record) as gateway:
        agent = await gateway.session()
        body = {**agent.body([{"role": "user", "content": "hi"}]), "metadata": {"user_id": "me"}}
        engine.say("hello")
        status, answer = await agent.post("/v1/messages", body, **{"x-beta": "one"})
        assert status == 200
        key = agent.key
    with RunStore.open(run_dir, read_only=True) as store:
        found = store.wire("s1", 0)
    if not record:
        assert found is None
        return
    assert found is not None
    assert json.loads(found.request) == body
    assert json.loads(found.answer) == answer
    assert found.path == "/v1/messages"
    assert {("x-api-key", "***"), ("x-beta", "one")} <= set(found.headers)
    assert key not in repr(found)


async def test_a_key_that_came_in_the_url_is_hidden_wherever_it_stands(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    run_dir, path = tmp_path / "run", "/v1beta/models/policy:generateContent"
    async with running_gateway(engine.url, tokenizer_dir, run_dir, record_wire=True) as gateway:
        key = (await gateway.session()).key
        engine.say(f"I found {key}!")
        url, body = f"{gateway.url}{path}?key={key}", {"contents": [{"parts": [{"text": key}]}]}
        async with gateway.http.post(url, json=body) as response:
            assert response.status == 200
    with RunStore.open(run_dir, read_only=True) as store:
        found = store.wire("s1", 0)
    assert found is not None
    assert (found.path, found.headers[0]) == (path, ("x-goog-api-key", "***"))
    assert key not in repr(found)
