"""The relay between processes under test and the grader: what it takes in, and from whom."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runners.tasks.grading.inside import agentrl_channel

if TYPE_CHECKING:
    from runners.tasks.grading.inside import relay, script_runner
else:
    with pytest.MonkeyPatch.context() as patch:  # in a sandbox they lie in one folder
        patch.syspath_prepend(str(Path(agentrl_channel.__file__).parent))
        import relay
        import script_runner


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    relay.attach_credentials(ours)
    with ours, theirs:
        yield ours, theirs


def take(peer: relay.Peer, number: int) -> list[str]:
    """Return ``number`` messages, or those that come before the connection breaks; one reading may
    bring the end of a message and the beginning of the next.
    """
    found: list[str] = []
    while len(found) < number and peer.open:
        assert select.select([peer.end], [], [], 30)[0], "nothing comes"
        found += peer.receive()
    return found


def test_each_message_takes_a_token(ends: tuple[socket.socket, socket.socket]) -> None:
    peer = relay.Peer(ends[0], os.getpid())
    tell = agentrl_channel.make_teller(ends[1], [])
    client = threading.Thread(target=lambda: (tell("0 pass"), tell("1 fail")))
    client.start()
    found = take(peer, 2)
    client.join()
    assert found == ["0 pass", "1 fail"]
    assert not peer.broken


@pytest.mark.parametrize("line", [b"0 pass\n", b"forged\n", b"0" * 32 + b" 0 pass\n"])
def test_a_line_without_a_token_breaks_the_connection(
    ends: tuple[socket.socket, socket.socket], line: bytes
) -> None:
    peer = relay.Peer(ends[0], os.getpid())
    ends[1].sendall(line)
    assert peer.receive() == []
    assert (peer.open, peer.broken) == (False, True)


def test_a_message_while_code_under_test_runs_breaks_the_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    peer = relay.Peer(ends[0], os.getpid())
    tell = agentrl_channel.make_teller(ends[1], ["a test"])
    client = threading.Thread(target=tell, args=("0 pass",))
    client.start()
    assert take(peer, 1) == []
    client.join()
    assert peer.broken


def test_a_message_of_another_process_breaks_the_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    peer = relay.Peer(ends[0], os.getpid() + 1)
    ends[1].sendall(b"ask\n")
    assert peer.receive() == []
    assert peer.broken


def test_a_message_sent_before_its_connection_is_accepted_has_a_sender(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as theirs:
        listener.bind(str(tmp_path / "relay"))
        relay.attach_credentials(listener)
        listener.listen()
        theirs.connect(str(tmp_path / "relay"))
        theirs.sendall(b"ask\n")
        peer = relay.accept(listener)
        assert peer.receive() == []
        assert not peer.broken
        peer.end.close()


def test_a_process_that_connected_and_said_nothing_is_not_proven(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    peer = relay.Peer(ends[0], os.getpid())
    peer.broken = True
    assert script_runner.Observed().end_lines([peer]) == [
        "unproven python something else than python reported its results"
    ]


FINISHES = {
    "finish 0 3 0 -": "",
    "finish 1 2 1 -": "",
    "finish 0 0 0 -": "unproven pytest pytest ended with exit code 0, 0 tests passed and 0 did not",
    "finish 0 3 1 -": "unproven pytest pytest ended with exit code 0, 3 tests passed and 1 did not",
    "finish 0 3 0 CallInfo.from_call": "unproven pytest CallInfo.from_call was replaced",
    "": "unproven pytest pytest did not finish its tests",
}


@pytest.mark.parametrize("finish", FINISHES)
def test_pytest_is_proven_by_what_its_session_reports(
    ends: tuple[socket.socket, socket.socket], finish: str
) -> None:
    peer, observed = relay.Peer(ends[0], os.getpid()), script_runner.Observed()
    for message in filter(None, ("process pytest", "begin", finish, "exit")):
        observed.handle(peer, message)
    assert observed.end_lines([peer]) == ([FINISHES[finish]] if FINISHES[finish] else [])


def test_what_comes_after_the_end_breaks_the_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    peer, observed = relay.Peer(ends[0], os.getpid()), script_runner.Observed()
    for message in ("process pytest", "exit", "begin"):
        observed.handle(peer, message)
    assert peer.broken


def test_a_wrong_token_breaks_the_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    peer = relay.Peer(ends[0], os.getpid())
    ends[1].sendall(b"ask\n")
    assert peer.receive() == []
    ends[1].sendall(b"0" * 32 + b" 0 pass\n")
    assert peer.receive() == []
    assert peer.broken


def test_a_message_that_is_cut_off_breaks_the_connection(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    peer = relay.Peer(ends[0], os.getpid())
    ends[1].sendall(b"as")
    assert peer.receive() == []
    ends[1].close()
    assert peer.receive() == []
    assert peer.broken


def test_a_line_without_an_end_breaks_the_connection(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LINE_LIMIT", 10)
    peer = relay.Peer(ends[0], os.getpid())
    ends[1].sendall(b"x" * 11)
    assert peer.receive() == []
    assert peer.broken


@pytest.mark.parametrize(
    ("messages", "doubt"),
    [
        (("process program", "exit"), "the program did not come to its end"),
        (("process program", "reached", "exit"), ""),
        (("process python", "forged", "exit"), "something else than python reported its results"),
    ],
)
def test_a_process_is_proven_by_what_it_reports(
    ends: tuple[socket.socket, socket.socket], messages: tuple[str, ...], doubt: str
) -> None:
    peer, observed = relay.Peer(ends[0], os.getpid()), script_runner.Observed()
    for message in messages:
        observed.handle(peer, message)
    [line] = observed.end_lines([peer]) or [""]
    assert line.endswith(doubt)
    assert line.startswith("unproven") == bool(doubt)


def test_a_fork_has_no_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    agentrl_channel.make_teller(ends[1], [])
    child = os.fork()
    if child == 0:
        os._exit(0 if ends[1].fileno() == -1 else 1)
    assert os.waitpid(child, 0)[1] == 0
