"""The native agent: its tools, and its loop against a scripted gateway over real HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runners.records.outcome import OutcomeCode
from runners.rollouts.harnesses.native import agent
from runners.rollouts.harnesses.native.client import Messages, TurnError, parse_events
from runners.rollouts.harnesses.native.harness import OUTPUT_LIMIT
from tests.fakes.scripted_gateway import (
    Cut,
    ErrorEvent,
    Failure,
    Reply,
    ScriptedGateway,
    Step,
    say,
    scripted_gateway,
    use,
)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    (directory / "a.txt").write_text("one two one\n")
    monkeypatch.chdir(directory)
    return directory


def settings(**changes: object) -> dict[str, Any]:
    """Return the agent's settings."""
    linear = {"model": "m", "max_turns": 8, "max_tokens": 5, "dispatch": False, "window_tokens": 0}
    return linear | changes


async def solve(
    gateway: ScriptedGateway, script: Sequence[Step], **changes: object
) -> dict[str, Any]:
    """Let the agent work through a script."""
    gateway.script = list(script)
    messages = Messages(gateway.url, "secret", backoff_s=0.001)
    end = await asyncio.to_thread(agent.solve, messages, "problem", settings(**changes))
    messages.connection.close()
    OutcomeCode(end["code"])
    return end


def hints(headers: dict[str, str]) -> dict[str, str]:
    """Return the Claude Code headers of a request, without their prefix."""
    start = "x-claude-code-"
    return {k.removeprefix(start): v for k, v in headers.items() if k.startswith(start)}


async def test_a_submit_ends_the_work(gateway: ScriptedGateway, workspace: Path) -> None:
    first = [say("looking é 😀"), use("Read", "c1", path="a.txt")]
    end = await solve(gateway, [Reply(first), Reply([use("Submit", message="done")])])
    assert end == {
        "code": "policy.finished", "final_message": "done", "finish_reason": "tool_use",
        "turns": 2,
    }  # fmt: skip
    request = gateway.requests[1]
    assert request["stream"] is True
    assert request["messages"] == [
        {"role": "user", "content": "problem"},
        {"role": "assistant", "content": first},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "one two one\n"}],
        },
    ]
    assert gateway.headers[0]["x-api-key"] == "secret"


async def test_an_answer_without_a_tool_gives_up(gateway: ScriptedGateway) -> None:
    end = await solve(gateway, [Reply([say("I cannot")], "end_turn")])
    assert (end["code"], end["final_message"]) == ("policy.gave_up", "I cannot")
    end = await solve(gateway, [Reply([], "end_turn")])
    assert (end["code"], end["final_message"]) == ("policy.gave_up", "")


async def test_an_answer_cut_by_its_limit_is_a_budget(gateway: ScriptedGateway) -> None:
    end = await solve(gateway, [Reply([say("I ca")], "max_tokens")])
    assert (end["code"], end["finish_reason"]) == ("budget.tokens", "max_tokens")


async def test_turns_run_out(gateway: ScriptedGateway, workspace: Path) -> None:
    end = await solve(gateway, [Reply([use("Read", path="a.txt")])] * 3, max_turns=3)
    assert (end["code"], end["turns"], len(gateway.requests)) == ("budget.turns", 3, 3)


async def test_several_calls_of_one_answer_are_run_in_order_up_to_submit(
    gateway: ScriptedGateway, workspace: Path
) -> None:
    blocks = [
        use("Edit", "1", path="a.txt", old_string="two", new_string="2"),
        use("Bash", "2", command="cat a.txt > b.txt"),
        use("Submit", "3", message="done"),
        use("Bash", "4", command="rm b.txt"),
    ]
    end = await solve(gateway, [Reply(blocks)])
    assert end["code"] == "policy.finished"
    assert (workspace / "b.txt").read_text() == "one 2 one\n"


async def test_a_bad_call_is_answered_and_the_work_goes_on(
    gateway: ScriptedGateway, workspace: Path
) -> None:
    bad = [
        use("Write", "1", path="x"),
        use("Read", "2"),
        use("Read", "3", path=7),
        use("Read", "4", path="missing"),
        use("Edit", "5", path="a.txt", old_string="one", new_string="1"),
        use("Submit", "6", text="done"),
        {"type": "tool_use", "id": "7", "name": "Submit", "input": "done"},
    ]
    end = await solve(gateway, [Reply(bad), Reply([use("Submit", message="done")])])
    assert end["code"] == "policy.finished"
    results = gateway.requests[1]["messages"][-1]["content"]
    assert all(result["is_error"] for result in results)
    assert [result["content"] for result in results] == [
        "no tool Write", "Read takes path", "Read takes strings", "No such file or directory",
        "old_string occurs 2 times", "Submit takes message", "Submit takes message",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "failure",
    [Failure(429), Failure(500), Failure(529), Failure(503), Cut(), ErrorEvent()],
    ids=repr,
)
async def test_a_transient_failure_is_retried_with_the_same_body(
    gateway: ScriptedGateway, failure: Step
) -> None:
    script = [failure, failure, failure, Reply([use("Submit", message="done")])]
    end = await solve(gateway, script)
    assert (end["code"], end["turns"]) == ("policy.finished", 1)
    assert len(gateway.requests) == 4
    assert all(request == gateway.requests[0] for request in gateway.requests)


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ([Failure(500, message="broken")] * 4, "infra.gateway"),
        ([Failure(429, message="slow")] * 4, "infra.gateway"),
        ([Failure(529, message="no engine")] * 4, "infra.model"),
        ([ErrorEvent()] * 4, "infra.model"),
        ([ErrorEvent("invalid_request_error", "prompt is too long: so long")], "budget.tokens"),
        ([Cut()] * 4, "infra.gateway"),
        ([Failure(401, "authentication_error", "bad key")], "infra.gateway"),
        ([Failure(400, "invalid_request_error", "bad tool")], "infra.gateway"),
        (
            [Failure(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")],
            "budget.tokens",
        ),
    ],
)
async def test_a_lasting_failure_ends_the_work_with_its_code(
    gateway: ScriptedGateway, failures: list[Step], code: str
) -> None:
    end = await solve(gateway, failures)
    assert end["code"] == code
    assert end["final_message"]
    assert not gateway.script


def test_a_missing_gateway_is_a_gateway_failure() -> None:
    messages = Messages("http://127.0.0.1:1", "key", backoff_s=0.001)
    end = agent.solve(messages, "problem", settings(max_turns=3))
    assert (end["code"], end["turns"]) == ("infra.gateway", 0)
    assert "refused" in end["final_message"]


async def test_an_investigator_looks_and_its_report_is_the_dispatchers_result(
    gateway: ScriptedGateway, workspace: Path
) -> None:
    script = [
        Reply([use("Agent", "a1", prompt="look at a.txt")]),
        Reply([use("Bash", "b1", command="cat a.txt")]),
        Reply([use("Submit", "s1", message="two ones")]),
        Reply([use("Submit", message="done")]),
    ]
    end = await solve(gateway, script, dispatch=True)
    assert (end["code"], end["turns"]) == ("policy.finished", 4)
    main, look, report, last = gateway.requests
    assert [tool["name"] for tool in main["tools"]] == ["Agent", "Edit", "Submit"]
    assert [tool["name"] for tool in look["tools"]] == ["Bash", "Submit"]
    assert look["system"] != main["system"]
    assert look["messages"] == [{"role": "user", "content": "look at a.txt"}]
    assert len(report["messages"]) == 3
    tool_result = {"type": "tool_result", "tool_use_id": "a1", "content": "two ones"}
    assert last["messages"][-1] == {"role": "user", "content": [tool_result]}
    sub = {"agent-id": "investigator-1", "request-class": "subagent"}
    assert [hints(headers) for headers in gateway.headers] == [{}, sub, sub, {}]


async def test_every_investigator_is_a_thread_of_its_own(gateway: ScriptedGateway) -> None:
    two = [use("Agent", "1", prompt="same"), use("Agent", "2", prompt="same")]
    found = Reply([use("Submit", message="it")])
    script = [Reply(two), found, found, Reply([use("Submit", message="done")])]
    end = await solve(gateway, script, dispatch=True)
    assert end["code"] == "policy.finished"
    assert gateway.requests[1] == gateway.requests[2], "byte-identical but for the header"
    threads = [hints(headers).get("agent-id") for headers in gateway.headers]
    assert threads == [None, "investigator-1", "investigator-2", None]


@pytest.mark.parametrize(
    ("report", "code", "turns"),
    [
        (Reply([say("no idea")], "end_turn"), "policy.finished", 3),
        (Reply([say("no")], "max_tokens"), "budget.tokens", 2),
        (Failure(400, message="prompt is too long: 9 tokens > 8 maximum"), "budget.tokens", 1),
    ],
)
async def test_an_investigator_without_a_report_is_a_tool_error_and_a_failed_one_ends_the_work(
    gateway: ScriptedGateway, report: Step, code: str, turns: int
) -> None:
    script = [Reply([use("Agent", prompt="look")]), report, Reply([use("Submit", message="done")])]
    end = await solve(gateway, script, dispatch=True)
    assert (end["code"], end["turns"]) == (code, turns)
    if code == "policy.finished":
        (result,) = gateway.requests[-1]["messages"][-1]["content"]
        assert (result["is_error"], result["content"]) == (True, "the agent found nothing")


async def test_the_main_agent_of_a_dispatching_scenario_cannot_read(
    gateway: ScriptedGateway, workspace: Path
) -> None:
    calls = [use("Read", "1", path="a.txt"), use("Bash", "2", command="cat a.txt")]
    await solve(gateway, [Reply(calls), Reply([use("Submit", message="x")])], dispatch=True)
    results = gateway.requests[1]["messages"][-1]["content"]
    assert [result["content"] for result in results] == ["no tool Read", "no tool Bash"]


async def test_a_history_that_outgrows_its_window_continues_from_its_summary(
    gateway: ScriptedGateway, workspace: Path
) -> None:
    read = Reply([use("Read", "r", path="a.txt")], prompt_tokens=50)
    small = Reply([use("Read", "r", path="a.txt")], prompt_tokens=49)
    done = Reply([use("Submit", message="done")])
    script = [small, read, Reply([say("two ones")], "end_turn"), read, read, read, done]
    end = await solve(gateway, [*script[:5], done], window_tokens=50)
    assert (end["code"], end["turns"]) == ("policy.finished", 6)
    summary, continued = gateway.requests[2], gateway.requests[3]
    assert summary["messages"][:-1] == gateway.requests[1]["messages"] + summary["messages"][3:4]
    assert summary["messages"][-1]["content"][-1] == {
        "type": "text",
        "text": agent.SUMMARIZE,
    }
    assert summary["messages"][-1]["content"][0]["type"] == "tool_result"
    (first,) = continued["messages"]
    assert first["content"].startswith("problem\n")
    assert first["content"].endswith("two ones")
    assert [hints(headers) for headers in gateway.headers[:5]] == [
        *({}, {}, {"request-class": "compaction"}, {"context-compacted": "auto"}, {})
    ]


async def test_no_second_summary_within_the_rest_turns(
    gateway: ScriptedGateway, workspace: Path
) -> None:
    read = Reply([use("Read", "r", path="a.txt")], prompt_tokens=50)
    summary = Reply([say("sum")], "end_turn")
    script = [read, summary, *[read] * agent.REST_TURNS, summary, Reply([say("bye")], "end_turn")]
    await solve(gateway, script, window_tokens=10)
    classes = [hints(headers).get("request-class") for headers in gateway.headers]
    assert classes == [None, "compaction", None, None, None, "compaction", None]


async def test_one_connection_serves_all_turns(gateway: ScriptedGateway) -> None:
    gateway.script = [Reply([say("one")]), Reply([say("two")])]
    messages = Messages(gateway.url, "key")
    await asyncio.to_thread(messages.create, {"messages": []}, {})
    first = messages.connection.socket
    await asyncio.to_thread(messages.create, {"messages": []}, {})
    assert messages.connection.socket is first
    messages.connection.close()


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "https://host", "http://"])
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(TurnError, match="ANTHROPIC_BASE_URL"):
        Messages(url, "key")


EVENTS = b'event: a\ndata: {"type": "a", "text": "\xc3\xa9"}\n\n: ping\n\ndata: {"type": "b"}\n\n'


@pytest.mark.parametrize("size", [1, 2, 7, 30, len(EVENTS)])
def test_events_are_the_same_however_the_stream_is_cut(size: int) -> None:
    pieces = (EVENTS[start : start + size] for start in range(0, len(EVENTS), size))
    assert list(parse_events(pieces)) == [{"type": "a", "text": "é"}, {"type": "b"}]


async def serve(*answers: bytes, keep_alive: bool = True) -> tuple[asyncio.Server, str, list[int]]:
    """Serve raw HTTP answers in order, one per request; return server, URL and connections made."""
    script, connections = list(answers), [0]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[0] += 1
        while script:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(script.pop(0))
            if not keep_alive:
                break
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connections


START, STOP = (
    b"data: %s\n\n" % json.dumps(event).encode()
    for event in (
        {"type": "message_start", "message": {"content": [], "usage": {}}},
        {"type": "message_stop"},
    )
)
STREAM = START + STOP
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;name=value\r\n%s\r\n%x\r\n%s\r\n0\r\ntrailer: x\r\n\r\n"
) % (STREAM[:5], len(STREAM) - 5, STREAM[5:])
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (
    len(STREAM),
    STREAM,
)


async def test_chunked_and_whole_bodies_are_read_to_their_end() -> None:
    server, url, connections = await serve(CHUNKED, CHUNKED, WHOLE, CHUNKED)
    messages = Messages(url, "key", backoff_s=0.001)
    for _ in range(4):
        reply = await asyncio.to_thread(messages.create, {"messages": []}, {})
        assert reply == {"content": [], "usage": {}}
    assert connections == [2], "the third answer closes the first connection"
    messages.connection.close()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndata: {{\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(STREAM) + 1, STREAM),
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(START), START),
    ],
    ids=["not http", "no length", "cut off", "not json", "one byte short", "no message_stop"],
)
async def test_a_broken_answer_is_a_failed_turn(answer: bytes) -> None:
    server, url, _ = await serve(*[answer] * 4, keep_alive=False)
    messages = Messages(url, "key", backoff_s=0.001)
    with pytest.raises(TurnError) as caught:
        await asyncio.to_thread(messages.create, {"messages": []}, {})
    assert caught.value.status == 0
    server.close()


def test_reading_shows_the_ends_of_what_is_long(workspace: Path) -> None:
    (workspace / "long").write_text("a" * 9000 + "b" * 9000)
    text, failed = agent.run_tool("Read", {"path": "long"})
    assert not failed
    assert text == "a" * 4000 + "\n...\n" + "b" * 4000
    (workspace / "latin").write_bytes(b"\xe9t\xe9")
    assert agent.run_tool("Read", {"path": "latin"}) == ("\ufffdt\ufffd", False)
    assert agent.run_tool("Read", {"path": "."}) == ("Is a directory", True)
    os.mkfifo(workspace / "fifo")
    assert agent.run_tool("Read", {"path": "fifo"})[0] in ("", "Illegal seek")
    assert agent.run_tool("Read", {"path": "\0"}) == ("ValueError", True)


@pytest.mark.parametrize(
    "path", ["/dev/zero", "/proc/self/mem", "fifo", "large", "a\0b", "\udcff", "x" * 5000, "", "."]
)
@pytest.mark.parametrize("tool", ["Read", "Edit"])
def test_an_odd_path_is_a_tool_error(workspace: Path, tool: str, path: str) -> None:
    os.mkfifo(workspace / "fifo")
    with (workspace / "large").open("w") as file:
        file.truncate(agent.EDIT_BYTES + 1)
    arguments = {"path": path, **({"old_string": "b", "new_string": "c"} if tool == "Edit" else {})}
    text, failed = agent.run_tool(tool, arguments)
    readable = tool == "Read" and path in ("/dev/zero", "fifo", "large")
    assert failed or readable
    assert len(text) <= agent.OUTPUT_BYTES + 10


def test_a_long_final_message_leaves_the_last_line_readable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end = {"code": "policy.gave_up", "final_message": "\u0001" * 3_000_000}
    monkeypatch.setattr(agent, "solve", lambda *_: end)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"problem")))
    for name in ("BASE_URL", "API_KEY", "MODEL"):
        monkeypatch.setenv(f"ANTHROPIC_{name}", "http://127.0.0.1:1")
    agent.main("{}")
    printed = capsys.readouterr().out
    assert len(printed) < OUTPUT_LIMIT
    assert json.loads(printed)["code"] == "policy.gave_up"


def test_editing_wants_one_place(workspace: Path) -> None:
    edit = {"path": "a.txt", "old_string": "two", "new_string": "2"}
    assert agent.run_tool("Edit", edit) == ("ok", False)
    assert (workspace / "a.txt").read_text() == "one 2 one\n"
    assert agent.run_tool("Edit", edit) == ("old_string occurs 0 times", True)
    assert agent.run_tool("Edit", {**edit, "old_string": ""}) == ("old_string occurs 0 times", True)
    (workspace / "crlf").write_bytes(b"x\r\nlonger line\r\n")
    change = {"path": "crlf", "old_string": "longer line", "new_string": "y"}
    assert agent.run_tool("Edit", change) == ("ok", False)
    assert (workspace / "crlf").read_bytes() == b"x\r\ny\r\n"


def test_commands_give_output_and_exit_code(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    assert agent.run_tool("Bash", {"command": "cat a.txt"}) == ("one two one\n", False)
    assert agent.run_tool("Bash", {"command": "echo x; exit 3"}) == ("x\n\nexit code 3", True)
    assert agent.run_tool("Bash", {"command": "false"}) == ("exit code 1", True)
    assert agent.run_tool("Bash", {"command": "kill -9 $$"}) == ("exit code -9", True)
    assert agent.run_tool("Bash", {"command": "env | grep -c secret"})[0].startswith("0")
    text, _ = agent.run_tool("Bash", {"command": "yes | head -c 100000; echo end >&2"})
    assert len(text) < 8100
    assert text.endswith("y\nend\n")
    assert agent.run_tool("Bash", {"command": "yes | head -1"}) == ("y\n", False), (
        "SIGPIPE is default"
    )


def test_a_command_is_ended_at_its_limit_with_all_it_started(workspace: Path) -> None:
    command = "(while :; do date > alive; sleep 0.01; done) & echo begun; wait"
    with pytest.raises(agent.ToolError, match=r"begun\n\nkilled after 0.3 s"):
        agent.bash(command, limit_s=0.3)
    (workspace / "alive").unlink(missing_ok=True)
    time.sleep(0.1)
    assert not (workspace / "alive").exists()
    assert agent.run_tool("Bash", {"command": "sleep 100 & echo at once"}) == ("at once\n", False)


def test_the_policy_has_little_to_read() -> None:
    assert [tool["name"] for tool in agent.TOOLS] == ["Read", "Edit", "Bash", "Submit"]
    assert all(len(tool["description"].split()) <= 6 for tool in agent.TOOLS)
    assert len(json.dumps(agent.TOOLS)) < 900
