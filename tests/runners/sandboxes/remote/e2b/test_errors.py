"""Errors of the E2B SDK are classified."""

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

from runners.sandboxes.remote.e2b_calls import E2bFailure, classify_error


def flags(failure: E2bFailure | None) -> str:
    assert failure is not None
    return " ".join(name for name in ("retryable", "pushed_back", "gone") if getattr(failure, name))


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (e2b.RateLimitException("429"), "retryable pushed_back"),  # type: ignore[no-untyped-call]
        (ServiceBusyException("503"), "retryable pushed_back"),
        (SandboxNotRunningException("was not found"), "gone"),
        (e2b.SandboxNotFoundException("404"), "gone"),
        (SandboxUnreachableException("port is not open"), "retryable"),
        (e2b.TimeoutException("deadline_exceeded"), "retryable"),
        (e2b.AuthenticationException("401"), ""),
        (e2b.InvalidArgumentException("400"), ""),
        (e2b.NotEnoughSpaceException("507"), ""),
        (e2b.TemplateException("too old"), ""),
        (e2b.SandboxException("409", status_code=409), ""),
        (e2b.SandboxException("500", status_code=500), "retryable"),
        (e2b.SandboxException("internal"), "retryable"),
        (httpx.ConnectError("refused"), "retryable"),
        (httpx.RemoteProtocolError("reset"), "retryable"),
        (httpx.ReadTimeout("slow"), "retryable"),
        (ConnectError(Code.UNAVAILABLE, "reset"), "retryable"),
        (TimeoutError(), "retryable"),
        (ConnectionResetError(), "retryable"),
        (Exception("Command ended without an end event"), "retryable"),
    ],
)
def test_an_error_is_classified(error: Exception, wanted: str) -> None:
    assert flags(classify_error(error)) == wanted


def test_the_error_of_a_script_contains_its_output() -> None:
    failed = e2b.CommandExitException(stderr="no space\n", stdout="", exit_code=2, error=None)
    assert classify_error(failed) == E2bFailure("a script ended with 2 and printed: no space")


@pytest.mark.parametrize("error", [ValueError("ours"), KeyError("ours"), AssertionError()])
def test_an_error_of_our_own_is_not_classified(error: Exception) -> None:
    assert classify_error(error) is None
