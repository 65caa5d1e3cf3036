"""The benchmark's load sends what agents send, and reads what they read."""

from __future__ import annotations

import orjson
import pytest

from tests.benchmarks.benched_gateway import LINES
from tests.benchmarks.gateway_at_once import ANSWER
from tests.benchmarks.gateway_load import CALL_ID, GrowingBody, read_stream
from tests.fakes.running_gateway import echo, results, user


def test_a_body_grows_by_an_answer_and_a_result() -> None:
    body = GrowingBody(LINES, ANSWER, 2)
    messages = [user(LINES)]
    for call_id in ("toolu_" + "a" * 24, "toolu_" + "b" * 24):
        assert orjson.loads(body.view())["messages"] == messages
        body.add_turn(call_id.encode())
        answer = orjson.loads(orjson.dumps(ANSWER).replace(CALL_ID.encode(), call_id.encode()))
        messages += [echo(answer), results(answer, LINES)]
    other = body.copy()
    sent = orjson.loads(body.view())
    assert sent["messages"] == messages
    assert sent["stream"] is True
    assert orjson.loads(other.view()) == sent
    assert len(body) == len(body.view())


def test_an_answer_is_read_whole_and_in_chunks() -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    assert read_stream(head + b"content-length: 3\r\n\r\nabc") == b"abc"
    chunks = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert read_stream(head + chunks) == b"abcde"
    with pytest.raises(AssertionError):
        read_stream(b"HTTP/1.1 500 Error\r\ncontent-length: 0\r\n\r\n")
