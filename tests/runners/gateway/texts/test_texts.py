"""Long texts are worked on in processes of their own, with the same result as short ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from agentrl.testing.completions import END, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.sections.gateway import GatewayLimitsConfig
from runners.gateway.conversation import Piece, TurnRequest, group_messages
from runners.gateway.dialects.endpoints import DIALECTS, GENERATE
from runners.gateway.dialects.json_text import find_items, find_list, mend_unicode
from runners.gateway.dialects.transfer import from_plain, read_pieces, to_plain
from runners.gateway.refusal import OverLimit, RefusalKind, Refused
from runners.gateway.texts.request_cache import RequestCache
from runners.gateway.texts.text_pool import TextFailed, TextPool
from runners.gateway.texts.text_work import TextWork, make_text_work, parse_request
from runners.gateway.texts.texts import FEW_VALUES, SHORT_PATH, SHORT_TAIL, SHORT_TEXT, SLICE, Texts
from runners.records.record import IdArray
from runners.records.tokenizer import load_tokenizer
from tests.fakes.running_gateway import TOOLS, Gateway, make_limits, user

LINE = 'def add(a, b):\n    return a - b  # "é", \\u00e9 <|im_end|> <tool_call>\n'
LONG = LINE * (2 * SHORT_TEXT // len(LINE) + 1)
ODD_NUMBERS = '{"a": NaN, "b": 1e999, "c": 123456789012345678901234567890, "d": 0.1, "e": -0.0}'


@pytest.fixture(scope="module")
def work(tokenizer_dir: Path) -> TextWork:
    """Return the work in this process."""
    return make_text_work(tokenizer_dir, "qwen3", "text")


@asynccontextmanager
async def running_pool(tokenizer_dir: Path, limits: GatewayLimitsConfig) -> AsyncIterator[TextPool]:
    """Return processes, ended afterwards."""
    pool = TextPool(tokenizer_dir, "qwen3", "text", limits)
    try:
        yield pool
    finally:
        await pool.close()
        assert pool.pids == []


def to_ids(ids: list[int]) -> IdArray:
    return np.array(ids, np.int32)


def request_of(*texts: str) -> TurnRequest:
    pieces = tuple(Piece(at, "user", "text", text) for at, text in enumerate(texts))
    tools = [{"type": "function", "function": {"name": "Bash", "parameters": {"n": 1.5}}}]
    return TurnRequest("m", pieces, tools, 100)


def bodies() -> list[tuple[str, bytes]]:
    """Return a request per endpoint, with everything that its dialect has."""
    call = {"name": "Bash", "arguments": ODD_NUMBERS}
    tool = {"type": "function", "name": "f", "parameters": {"x": 1}}
    messages: dict[str, Any] = {
        "model": "m",
        "system": "Fix it.",
        "tools": TOOLS,
        "messages": [
            user("hi"),
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"k": "@"}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "é"}],
            },
        ],
    }
    chat = {
        "model": "m",
        "stream_options": {"include_usage": True},
        "stop": "x",
        "seed": 1,
        "messages": [
            user("hi"),
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": call}]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ],
    }
    responses = {
        "model": "m",
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c1", **call},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
        "tools": [
            tool,
            {"type": "custom", "name": "g", "format": {"type": "grammar", "definition": "d"}},
            {"type": "namespace", "name": "ns", "tools": [tool]},
            {"type": "local_shell"},
            {"type": "web_search"},
        ],
    }
    google = {
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png"}}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
            {"parts": [{"functionResponse": {"name": "f", "response": {"error": "no"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
        "generationConfig": {"stopSequences": ["x"], "thinkingConfig": {"includeThoughts": True}},
    }
    with_odd = orjson.dumps({**messages, "max_tokens": 9, "stop_sequences": ["x"]})
    return [
        ("/v1/messages", with_odd.replace(b'"@"', ODD_NUMBERS.encode())),
        ("/v1/messages/count_tokens", orjson.dumps(messages)),
        ("/v1/chat/completions", orjson.dumps(chat)),
        ("/v1/responses", orjson.dumps({**responses, "stream": True})),
        (GENERATE, orjson.dumps(google)),
    ]


@pytest.mark.parametrize(("path", "body"), bodies(), ids=[path for path, _ in bodies()])
def test_a_parsed_request_survives_its_transfer(path: str, body: bytes) -> None:
    headers = {"x-claude-code-agent-id": "a1", "thread-id": "t", "session-id": "s"}
    parsed = DIALECTS[path].parse_request(body, headers)
    plain = to_plain(parsed)
    again = from_plain(plain, read_pieces(plain["pieces"]))
    assert repr(again) == repr(parsed)  # not ==, because NaN is not equal to itself
    assert again.builder == parsed.builder


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    limits = make_limits(bytes_per_token=16)
    body = orjson.dumps({"model": "m", "max_tokens": 1, "messages": [user("x" * 16_001)]})
    parse_request("/v1/messages", body, {}, limits, max_context_tokens=1001)
    with pytest.raises(Refused, match="prompt is too long: 1000 tokens > 1000 maximum") as refused:
        parse_request("/v1/messages", body, {}, limits, max_context_tokens=1000)
    assert refused.value.is_too_long
    assert not isinstance(refused.value, OverLimit), "an honest history grows too long as well"


def test_a_request_of_too_many_pieces_is_refused_where_it_is_parsed() -> None:
    body = orjson.dumps({"model": "m", "max_tokens": 1, "messages": [user("x")] * 8})
    parse_request("/v1/messages", body, {}, make_limits(history_pieces=8), 1000)
    with pytest.raises(OverLimit, match="8 pieces of history, at most 7"):
        parse_request("/v1/messages", body, {}, make_limits(history_pieces=7), 1000)


def test_a_piece_has_the_digest_that_another_process_made() -> None:
    path, body = bodies()[0]
    parsed = DIALECTS[path].parse_request(body, {})
    pieces = read_pieces(to_plain(parsed)["pieces"])
    assert [piece.key for piece in pieces] == parsed.request.digest_pieces()
    assert [piece.digest() for piece in pieces] == parsed.request.digest_pieces()


def test_images_do_not_count_as_text() -> None:
    image = {"type": "image", "source": {"media_type": "image/png", "data": "A" * 100_000}}
    body = orjson.dumps(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [image]}]}
    )
    parse_request("/v1/messages", body, {}, make_limits(), max_context_tokens=1000)


def test_arguments_and_tools_count_as_text() -> None:
    for odd in (
        {"tools": [{"name": "f", "input_schema": {"enum": ["x" * 20_000]}}]},
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": ["x" * 20_000]}}
                    ],
                },
                user("go on"),
            ]
        },
    ):
        body = {"model": "m", "max_tokens": 1, "messages": [user("hi")], **odd}
        with pytest.raises(Refused, match="prompt is too long"):
            parse_request("/v1/messages", orjson.dumps(body), {}, make_limits(), 1000)


@pytest.mark.integration
async def test_long_texts_have_the_same_ids_in_another_process(
    tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits()
    async with running_pool(tokenizer_dir, limits) as pool:
        texts = Texts(work, limits, pool)
        request = request_of(LONG, "and this")
        prompt = (await texts.render("s", request)).ids
        rendered = work.render(group_messages(request.pieces), request.tools).ids
        assert prompt.tolist() == rendered
        assert pool.pids, "it was done in a process"
        output = spoken(
            [{"type": "tool_use", "name": "Bash", "input": {"command": LONG}}], thinking="Hm."
        )
        ids = load_tokenizer(tokenizer_dir).encode(output)
        read, alone = (
            await texts.read_output("s", ids, request.tools, prompt),
            work.read_output(ids, request.tools, rendered),
        )
        assert read.retokenizes == alone.retokenizes
        assert read.parsed.content == alone.parsed.content
        assert read.parsed.reasoning_content == alone.parsed.reasoning_content == "Hm."
        (call,), (same,) = read.parsed.tool_calls, alone.parsed.tool_calls
        assert (call.name, call.arguments, call.status) == (same.name, same.arguments, same.status)
        more = request_of(LONG, "and this", LONG)
        path = rendered + ids
        added = await texts.extend("s", to_ids(path), len(prompt), more, 2)
        assert not isinstance(added, str)
        alone_added = work.extend(path, len(prompt), group_messages(more.pieces[2:]), more.tools)
        assert not isinstance(alone_added, str)
        assert added.ids.tolist() == alone_added.ids


@pytest.mark.integration
@pytest.mark.parametrize(("path", "body"), bodies(), ids=[path for path, _ in bodies()])
async def test_a_large_request_is_parsed_alike_in_another_process(
    path: str, body: bytes, tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits()
    halves = body.replace(b'"hi"', b'"hi \\ud83d"')
    large = halves + b" " * (1 << 20)
    session = {"X-Session-Id": "s2", "X-Parent-Session-Id": "s1"}
    claude_code = {"X-Claude-Code-Agent-Id": "a1"}
    headers = {**(claude_code if "messages" in path else session), "authorization": "Bearer secret"}
    async with running_pool(tokenizer_dir, limits) as pool:
        parsed = await Texts(work, limits, pool).parse(
            "s", path, [large[:100], large[100:]], headers, 10**6
        )
        assert len(pool.pids) >= 1
    lower = {name.lower(): value for name, value in headers.items()}
    wanted = DIALECTS[path].parse_request(mend_unicode(large)[0], lower)
    counted = replace(wanted, request=replace(wanted.request, replaced_surrogates=1))
    assert repr(parsed) == repr(counted)


@pytest.mark.integration
async def test_no_process_is_started_for_short_texts(tokenizer_dir: Path, work: TextWork) -> None:
    limits = make_limits()
    async with running_pool(tokenizer_dir, limits) as pool:
        await Texts(work, limits, pool).render("s", request_of("short"))
        assert pool.pids == []


@pytest.mark.integration
async def test_tools_of_many_values_are_rendered_in_a_process(
    tokenizer_dir: Path, work: TextWork
) -> None:
    limits, request = make_limits(), request_of("short")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"enum": [1] * 1000}}}
    async with running_pool(tokenizer_dir, limits) as pool:
        made = await Texts(work, limits, pool).render("s", replace(request, tools=[tool]))
        assert pool.pids
    assert made.ids.tolist() == work.render(group_messages(request.pieces), [tool]).ids


@pytest.mark.integration
async def test_a_request_of_many_pieces_is_whole(tokenizer_dir: Path, work: TextWork) -> None:
    texts = [str(number) for number in range(2 * SLICE + 1)]
    body = orjson.dumps({"model": "m", "max_tokens": 1, "messages": [user(t) for t in texts]})
    async with running_pool(tokenizer_dir, make_limits()) as pool:
        long = Texts(work, make_limits(), pool)
        parsed = await long.parse("s", "/v1/messages", [body], {}, 10**6)
        assert pool.pids
    assert [piece.text for piece in parsed.request.pieces] == texts


@pytest.mark.integration
@pytest.mark.parametrize(("path", "body"), bodies(), ids=[path for path, _ in bodies()])
async def test_what_a_process_has_parsed_is_known_when_the_conversation_goes_on(
    path: str, body: bytes, tokenizer_dir: Path, work: TextWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, jobs, text = make_limits(), list[str](), body.decode("latin-1")
    start = find_list(text, DIALECTS[path].conversation)
    end = find_items(text, start, after_item=False)[1]

    def with_items(*added: dict[str, Any]) -> bytes:
        return body[:end] + b"".join(b"," + orjson.dumps(item) for item in added) + body[end:]

    file = user(json.dumps([{"file": number} for number in range(FEW_VALUES)]))
    async with running_pool(tokenizer_dir, limits) as pool:
        run = pool.run

        async def counted(session_id: str, job: dict[str, Any], *body: Any) -> Any:
            jobs.append(job["kind"])
            return await run(session_id, job, *body)

        monkeypatch.setattr(pool, "run", counted)
        texts, known = Texts(work, limits, pool), RequestCache()
        for each in (body, with_items(file), *[with_items(file, user("go on"))] * 3):
            parsed = await texts.parse("s", path, [each], {}, 10**6, known)
            assert repr(parsed) == repr(DIALECTS[path].parse_request(each, {}))
    assert jobs == ["parse"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("length", "tail", "at_once"),
    [
        (SHORT_TAIL + 100, 3, True),
        (SHORT_PATH, 3, True),
        (2 * SHORT_TAIL, SHORT_TAIL, False),
        (SHORT_TAIL, SHORT_TAIL, True),
    ],
)
async def test_a_long_history_is_continued_at_once_unless_its_end_must_be_searched(
    tokenizer_dir: Path, work: TextWork, length: int, tail: int, at_once: bool
) -> None:
    limits, (end, _) = make_limits(), work.stop_token_ids()
    prompt = [end] * (length - tail) + [1] * tail
    output = [1, 1, end]
    request = request_of("first", "and this")
    async with running_pool(tokenizer_dir, limits) as pool:
        texts = Texts(work, limits, pool)
        read = await texts.read_output("s", output, request.tools, to_ids(prompt))
        added = await texts.extend("s", to_ids(prompt + output), length, request, 1)
        assert not isinstance(added, str)
        assert (pool.pids == []) == at_once
    alone = work.read_output(output, request.tools, prompt)
    assert (read.parsed.content, read.retokenizes) == (alone.parsed.content, alone.retokenizes)
    messages = group_messages(request.pieces[1:])
    alone_added = work.extend(prompt + output, length, messages, request.tools)
    assert not isinstance(alone_added, str)
    assert added.ids.tolist() == alone_added.ids


@pytest.mark.integration
async def test_a_process_that_is_killed_is_replaced_and_its_text_is_done_again(
    tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits(text_workers=1)
    async with running_pool(tokenizer_dir, limits) as pool:
        texts = Texts(work, limits, pool)
        request = request_of(LONG)
        expected = await texts.render("s", request)
        (first,) = pool.pids
        os.kill(first, signal.SIGSTOP)
        waiting = asyncio.create_task(texts.render("s", request))
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)  # as the kernel does at a limit on CPU time (ulimit -t)
        assert (await waiting).ids.tolist() == expected.ids.tolist()
        assert pool.pids != [first]


@pytest.mark.integration
async def test_a_text_that_takes_too_long_is_given_up_and_the_next_one_is_done(
    tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits(text_workers=1, text_s=2)
    async with running_pool(tokenizer_dir, limits) as pool:
        texts = Texts(work, limits, pool)
        await texts.render("s", request_of(LONG))
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)  # what works for ever does not look different from outside
        with pytest.raises(OverLimit, match="takes more than 2 s") as refused:
            await texts.render("s", request_of(LONG))
        assert refused.value.kind is RefusalKind.TOO_LARGE
        assert (await texts.render("s", request_of(LONG))).ids.size


@pytest.mark.integration
async def test_an_output_that_no_parser_takes_in_time_is_one_malformed_call(
    tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits(text_workers=1, text_s=2)
    async with running_pool(tokenizer_dir, limits) as pool:
        texts = Texts(work, limits, pool)
        ids = load_tokenizer(tokenizer_dir).encode(LONG)
        await texts.read_output("s", ids, [], to_ids([1]))
        (pid,) = pool.pids
        os.kill(pid, signal.SIGSTOP)
        read = await texts.read_output("s", ids, [], to_ids([1]))
        (call,) = read.parsed.tool_calls
        assert (call.status, read.retokenizes) == ("unparsed", False)


@pytest.mark.integration
async def test_memory_beyond_the_limit_ends_the_text_and_not_the_gateway(
    tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits(text_workers=1, text_mb=64)
    async with running_pool(tokenizer_dir, limits) as pool:
        with pytest.raises(TextFailed):
            await pool.run("s", {"kind": "render", "messages": [user("x" * 10**8)], "tools": []})
        assert (await Texts(work, limits, pool).render("s", request_of(LONG))).ids.size


@pytest.mark.integration
async def test_a_session_has_one_text_at_work_and_another_session_does_not_wait_for_it(
    tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits(text_workers=2)
    async with running_pool(tokenizer_dir, limits) as pool:
        texts = Texts(work, limits, pool)
        request = request_of(LONG)
        await asyncio.gather(texts.render("a", request), texts.render("b", request))
        while len(pids := pool.pids) < 2:  # one may have done both while the other started
            await asyncio.sleep(0.02)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        attacks = [asyncio.create_task(texts.render("attacker", request)) for _ in range(5)]
        attacks[0].cancel()  # its text keeps the session's turn
        honest = asyncio.create_task(texts.render("honest", request))
        await asyncio.sleep(0.1)
        for pid in pids[1:]:
            os.kill(pid, signal.SIGCONT)
        os.kill(pids[0], signal.SIGCONT)
        assert (await honest).ids.size
        for task in attacks[1:]:
            assert (await task).ids.size


@pytest.mark.integration
async def test_processes_end_with_their_gateway(tokenizer_dir: Path, work: TextWork) -> None:
    limits = make_limits(text_workers=1)
    async with running_pool(tokenizer_dir, limits) as pool:
        await Texts(work, limits, pool).render("s", request_of(LONG))
        (pid,) = pool.pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.integration
@pytest.mark.parametrize("make", [lambda text: text, lambda text: text * 20], ids=["32k", "640k"])
async def test_a_turn_with_a_long_prompt_is_the_same_as_ever(
    make: Callable[[str], str], gateway: Gateway, engine: ScriptedEngine, work: TextWork
) -> None:
    agent = await gateway.session()
    engine.say(f"Seen.{END}")
    text = make(LONG)
    answer = await agent.ask([user(text)], system=None, tools=None)
    assert answer["stop_reason"] == "end_turn"
    expected = work.render([{"role": "user", "content": text}], []).ids
    assert engine.seen.requests[-1]["input_ids"] == expected
    assert gateway.turns("s1")[0].prompt_new.tolist() == expected


@pytest.mark.parametrize(
    ("sent", "mended", "count"),
    [
        (b'"a\\ud83d"', b'"a\\ufffd"', 1),
        (b'"\\uDE00 \\ud83d\\ud83d\\ude00"', b'"\\ufffd \\ufffd\\ud83d\\ude00"', 2),
        (b'"\\\\ud83d"', b'"\\\\ud83d"', 0),
        (b'"\\\\\\ud83d"', b'"\\\\\\ufffd"', 1),
        (b'"\\\\ud83d\\ude00"', b'"\\\\ud83d\\ufffd"', 1),
        (b'"\\ud83d\\n"', b'"\\ufffd\\n"', 1),
        ('"é😀"'.encode(), '"é😀"'.encode(), 0),
        ('"é'.encode() + '😀"'.encode()[:3] + b'"', '"é\ufffd"'.encode(), 1),
        (b'"\xed\xa0\xbd"', '"\ufffd\ufffd\ufffd"'.encode(), 3),
    ],
)
def test_half_a_character_becomes_the_replacement_character(
    sent: bytes, mended: bytes, count: int
) -> None:
    assert mend_unicode(sent) == (mended, count)


@pytest.mark.parametrize(("path", "body"), bodies(), ids=[path for path, _ in bodies()])
async def test_half_a_character_in_a_request_is_counted_whatever_reads_it(
    path: str, body: bytes, tokenizer_dir: Path, work: TextWork
) -> None:
    limits = make_limits()
    halves = body.replace(b'"hi"', b'"hi \\ud83d"')
    at_once = await Texts(work, limits).parse("s", path, [halves[:50], halves[50:]], {}, 5000)
    assert "hi \ufffd" in [piece.text for piece in at_once.request.pieces]
    assert at_once.request.replaced_surrogates == 1
