"""Listening: any free port, a fixed one, and one whose holder is just dying."""

from __future__ import annotations

import errno
import socket
import threading

import pytest

from runners.system.processes.ports import listen, port_of


def accepts(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, timeout=5):
        return True


def test_port_0_is_any_free_one() -> None:
    with listen("127.0.0.1", 0, patience_s=1) as one, listen("127.0.0.1", 0, patience_s=1) as two:
        assert port_of(one) != port_of(two)
        assert accepts(("127.0.0.1", port_of(one)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", ""])
def test_every_way_to_name_this_machine_is_reached_at_loopback(host: str) -> None:
    with listen(host, 0, patience_s=1) as listener:
        address = (
            "::1" if host == "localhost" and listener.family == socket.AF_INET6 else "127.0.0.1"
        )
        assert accepts((address, port_of(listener)))


def test_a_port_in_use_is_an_error_after_the_patience() -> None:
    with (
        listen("127.0.0.1", 0, patience_s=1) as taken,
        pytest.raises(OSError, match="in use") as caught,
    ):
        listen("127.0.0.1", port_of(taken), patience_s=0.05)
    assert caught.value.errno == errno.EADDRINUSE


def test_a_port_that_is_given_back_within_the_patience_is_taken() -> None:
    with listen("127.0.0.1", 0, patience_s=1) as dying:
        port = port_of(dying)
        end = threading.Timer(0.1, dying.close)
        end.start()
        with listen("127.0.0.1", port, patience_s=60) as listener:
            assert port_of(listener) == port


def test_a_host_that_is_not_ours_is_not_waited_for() -> None:
    with pytest.raises(OSError, match=r"[Cc]annot assign"):
        listen("192.0.2.1", 0, patience_s=3600)
