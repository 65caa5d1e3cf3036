"""What the SDK raises is told apart in one place."""

from __future__ import annotations

import e2b
import httpx
import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.exceptions import (
    SandboxNotRunningException,
    SandboxUnreachableException,
    ServiceBusyException,
)

from runners.sandboxes.remote.e2b_errors import Trouble, trouble


def kind(met: Trouble | None) -> str:
    assert met is not None
    return " ".join(name for name in ("again", "pushed_back", "gone") if getattr(met, name))


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (e2b.RateLimitException("429"), "again pushed_back"),  # type: ignore[no-untyped-call]
        (ServiceBusyException("503"), "again pushed_back"),
        (SandboxNotRunningException("was not found"), "gone"),
        (e2b.SandboxNotFoundException("404"), "gone"),
        (SandboxUnreachableException("port is not open"), "again"),
        (e2b.TimeoutException("deadline_exceeded"), "again"),
        (e2b.AuthenticationException("401"), ""),
        (e2b.InvalidArgumentException("400"), ""),
        (e2b.NotEnoughSpaceException("507"), ""),
        (e2b.TemplateException("too old"), ""),
        (e2b.SandboxException("409", status_code=409), ""),
        (e2b.SandboxException("500", status_code=500), "again"),
        (e2b.SandboxException("internal"), "again"),
        (httpx.ConnectError("refused"), "again"),
        (httpx.RemoteProtocolError("reset"), "again"),
        (httpx.ReadTimeout("slow"), "again"),
        (ConnectError(Code.UNAVAILABLE, "reset"), "again"),
        (TimeoutError(), "again"),
        (ConnectionResetError(), "again"),
        (Exception("Command ended without an end event"), "again"),
    ],
)
def test_an_error_says_whether_another_try_may_help(error: Exception, wanted: str) -> None:
    assert kind(trouble(error)) == wanted


def test_a_script_that_fails_is_told_with_what_it_said() -> None:
    failed = e2b.CommandExitException(stderr="no room\n", stdout="", exit_code=2, error=None)
    met = trouble(failed)
    assert met == Trouble("a script ended with 2 and said: no room")


@pytest.mark.parametrize("error", [ValueError("ours"), KeyError("ours"), AssertionError()])
def test_a_mistake_of_our_own_is_not_the_services(error: Exception) -> None:
    assert trouble(error) is None
