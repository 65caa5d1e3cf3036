"""A body that continues a known one is read as it would be read as a whole."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import orjson
import pytest

from runners.gateway.dialects.contract import ParsedRequest
from runners.gateway.dialects.endpoints import DIALECTS
from runners.gateway.refusal import Refused
from runners.gateway.texts.request_cache import (
    MAX_BODIES,
    MAX_BYTES,
    RequestCache,
    read_continuation,
)
from runners.gateway.texts.text_work import parse_continuation, parse_request
from tests.fakes.fuzzed_bodies import CONVERSATION, FuzzedAgent, damage
from tests.fakes.running_gateway import make_limits, user

LIMITS = make_limits(json_depth=20, json_values=400, history_pieces=60)
HEADERS = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a1"}
CONTEXT = 4000


def outcome(parsed: ParsedRequest) -> str:
    """Return everything that a request is, its digests too (in words, as NaN differs from NaN)."""
    digests = [replace(piece, key=b"").digest() for piece in parsed.request.pieces]
    assert parsed.request.digest_pieces() == digests
    return repr(parsed)


def refusal(error: Refused) -> str:
    """Return everything that a refusal is."""
    return repr((type(error), error.kind, error.param, str(error), error.retry_after_s))


def read_whole(path: str, body: bytes) -> str:
    """Return a body's request or refusal."""
    try:
        return outcome(parse_request(path, body, HEADERS, LIMITS, CONTEXT))
    except Refused as error:
        return refusal(error)


def read_next(known: RequestCache, path: str, body: bytes, counted: Counter[str]) -> str:
    """Return the same, read with what is known, as a session does."""
    try:
        found = known.find(path, body, DIALECTS[path].conversation)
    except (ValueError, RecursionError):
        return read_whole(path, body)
    try:
        parsed, read = parse_continuation(found, HEADERS, LIMITS, CONTEXT)
    except Refused as error:
        return refusal(error)
    if read is not None:
        # Now and then as of a body that another process has read: its envelope is not known.
        read = replace(read, envelope=None) if counted["turns"] % 5 == 0 else read
        known.add(read, found)
    counted["read in part"] += read is not None and found.items > 0
    counted["with another envelope"] += read is not None and not (
        found.same_head and found.same_tail
    )
    counted["whole"] += read is None
    return outcome(parsed)


def fuzz(seed: int, turns: int) -> Counter[str]:
    """Read bodies of several agents of one session; return how they were read."""
    rng = random.Random(seed)
    counted: Counter[str] = Counter()
    known, agents = RequestCache(), [FuzzedAgent(rng, rng.choice([*CONVERSATION]))]
    for _ in range(turns):
        agent = rng.choice(agents)
        chance = rng.random()
        if chance < 0.04:
            agents = [*agents[-2:], FuzzedAgent(rng, rng.choice([*CONVERSATION]))]
        elif chance < 0.2:
            agent.edit()
        elif chance < 0.3:
            agent.change_envelope()
        elif chance < 0.95 and len(agent.items) < 40:
            agent.go_on()
        else:
            agents.remove(agent)
            agents.append(FuzzedAgent(rng, agent.path))
        body, path = agent.body(), agent.path
        if rng.random() < 0.25:
            body = damage(body, rng)
        if rng.random() < 0.03:
            path = rng.choice([*CONVERSATION])
        counted["turns"] += 1
        assert read_next(known, path, body, counted) == read_whole(path, body), (seed, body)
    return counted


def fuzz_many(turns: int, seed: int = 0) -> Counter[str]:
    """Read so many bodies, of sessions of 50; check that most kinds came."""
    counted = sum((fuzz(seed + number, 50) for number in range(turns // 50)), Counter[str]())
    for kind in ("read in part", "with another envelope", "whole"):
        assert counted[kind] > counted["turns"] / 30, counted
    return counted


def test_a_body_is_read_the_same_whatever_was_known_before_it() -> None:
    fuzz_many(1000)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_million_bodies_are_read_the_same_whatever_was_known_before_them(part: int) -> None:
    fuzz_many(50_000, seed=10_000_000 + part * 1_000)


def conversation(turns: int, **more: object) -> bytes:
    """Return a body of that many messages."""
    messages = [user(f"message {number}") for number in range(turns)]
    return orjson.dumps({"model": "m", "max_tokens": 9, "messages": messages, **more})


def read_after(*bodies: bytes, limits: object = LIMITS) -> tuple[RequestCache, int]:
    """Read bodies one after the other; return the known ones, and the items of the last body that
    were known before it.
    """
    known, items = RequestCache(), 0
    for body in bodies:
        found = known.find("/v1/messages", body, "messages")
        items = found.items
        known.add(read_continuation(DIALECTS["/v1/messages"], found, {})[1], found)
    return known, items


def test_only_new_messages_are_read_whatever_changes_around_the_conversation() -> None:
    system = [{"type": "text", "text": "x-anthropic-billing-header: 1"}]
    assert read_after(conversation(8), conversation(10))[1] == 8
    assert read_after(conversation(8), conversation(10, system=system))[1] == 8
    head = b'{"metadata": {"user_id": "u"}, '
    assert read_after(conversation(8), head + conversation(10)[1:])[1] == 8
    marked = conversation(8).replace(b'"message 7"', b'[{"type":"text","text":"message 7"}]')
    assert read_after(marked, conversation(10))[1] == 7


def test_a_second_agent_does_not_displace_the_first() -> None:
    other = conversation(6).replace(b"message 0", b"the task of a sub-agent")
    assert read_after(conversation(8), other, conversation(10))[1] == 8


def test_what_a_session_keeps_is_bounded() -> None:
    many = [
        conversation(2).replace(b"message 0", b"task %d" % each) for each in range(MAX_BODIES + 5)
    ]
    assert len(read_after(*many)[0]._bodies) == MAX_BODIES
    large = [
        conversation(2).replace(b"message 0", b"%d" % each + b"x" * (MAX_BYTES // 3))
        for each in range(5)
    ]
    assert len(read_after(*large)[0]._bodies) == 2
    assert len(read_after(conversation(2).replace(b"0", b"x" * MAX_BYTES))[0]._bodies) == 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","max_tokens":9,"messages":[],"messages":[{"role":"user","content":"b"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":9,'
        b'"\\u006dessages":[{"role":"user","content":"b"}]}',
    ],
)
def test_a_conversation_that_comes_twice_is_read_as_a_whole(body: bytes) -> None:
    known, counted = RequestCache(), Counter[str]()
    for _ in range(2):
        assert read_next(known, "/v1/messages", body, counted) == read_whole("/v1/messages", body)
    assert counted["read in part"] == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
@pytest.mark.integration
def test_no_bracket_or_quote_of_a_continuation_can_differ_unseen(path: str) -> None:
    agent = FuzzedAgent(random.Random(1), path)
    agent.go_on()
    first = agent.body()
    agent.go_on()
    body, counted = agent.body(), Counter[str]()
    for at in (at for at, byte in enumerate(body) if byte in b'[]{},:"'):
        for other in b'[}," 0':
            known = RequestCache()
            read_next(known, path, first, counted)
            changed = body[:at] + bytes([other]) + body[at + 1 :]
            assert read_next(known, path, changed, counted) == read_whole(path, changed), changed


@pytest.mark.parametrize("depth", range(LIMITS.json_depth - 8, LIMITS.json_depth + 2))
@pytest.mark.parametrize("brackets", [1, 40])
def test_the_limit_on_nesting_is_that_of_whole_bodies(depth: int, brackets: int) -> None:
    def call(value: str) -> str:
        block = f'{{"type":"tool_use","id":"c","name":"f","input":{{"x":{value}}}}}'
        return f',{{"role":"assistant","content":[{block}]}},{{"role":"user","content":"x"}}]'

    flat, deep = ",".join(["[]"] * brackets), "[" * (depth - 6) + "]" * (depth - 6)
    first = conversation(2)
    body = first.removesuffix(b"]}") + call(f"[{flat},{deep}]").encode() + b"}"
    known, counted = RequestCache(), Counter[str]()
    read_next(known, "/v1/messages", first, counted)
    assert read_next(known, "/v1/messages", body, counted) == read_whole("/v1/messages", body)
    goes_on = body.removesuffix(b"]}") + b',{"role":"user","content":"y"}]}'
    assert read_next(known, "/v1/messages", goes_on, counted) == read_whole("/v1/messages", goes_on)
