"""The native harness: the agent program in a real sandbox, and the reading of its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conf.sections.harness import NativeHarnessConfig
from conf.sections.sandbox import LocalSandboxConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.native import NativeHarness
from runners.rollouts.harnesses.native.harness import read_result
from runners.sandboxes.contract import CommandResult, SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from tests.fakes.scripted_gateway import Reply, Step, scripted_gateway, use

pytestmark = pytest.mark.integration

HARNESS = NativeHarness(
    NativeHarnessConfig(kind="native", max_turns=3, max_tokens=7, memory_mb=512, cpu_s=20),
    LinearScenarioConfig(kind="linear"),
)


@pytest.fixture(scope="module", params=["auto", "none"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalBackend]:
    settings = LocalSandboxConfig(
        kind="local",
        isolation=request.param,
        memory_mb=512,
        processes=32,
        file_mb=8,
        cpu_s=20,
        warm=0,
    )
    backend = LocalBackend(settings, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


async def work(
    backend: LocalBackend, tmp_path: Path, script: list[Step], deadline_s: float = 30
) -> tuple[HarnessResult, list[dict[str, object]]]:
    """Run the agent in a sandbox against a script; return its result and what it sent."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("one\n")
    context = HarnessContext("Fix é.", "key", "policy", deadline_s)
    async with scripted_gateway(tmp_path, script) as gateway:
        spec = SandboxSpec(
            "agent",
            source,
            "gateway",
            gateway_control=gateway.control,
            gateway_url=gateway.url,
            session_key="key",
            mounts=HARNESS.mounts(),
        )
        sandbox = await backend.create(spec)
        try:
            result = await HARNESS.run(sandbox, context)
            if (sandbox.workspace / "b.txt").exists():
                assert (sandbox.workspace / "b.txt").read_text() == "one\n"
        finally:
            await sandbox.close()
        return result, gateway.requests


async def test_the_agent_works_in_the_sandbox(backend: LocalBackend, tmp_path: Path) -> None:
    script: list[Step] = [
        Reply([use("Bash", command="cp a.txt b.txt && cat b.txt")]),
        Reply([use("Submit", message="done")]),
    ]
    result, requests = await work(backend, tmp_path, script)
    assert result.code is OutcomeCode.POLICY_FINISHED, result
    assert (result.final_message, result.exit_code) == ("done", 0)
    assert result.raw_finish_reason == "tool_use"
    messages = json.loads(json.dumps(requests[1]["messages"]))
    assert messages[0]["content"] == "Fix é."
    assert messages[2]["content"][0]["content"] == "one\n"
    assert (requests[0]["model"], requests[0]["max_tokens"]) == ("policy", 7)


@pytest.mark.parametrize(
    ("exit_code", "stdout"),
    [
        (1, b""),
        (-9, b'{"code": "policy.finished"}'),
        (0, b""),
        (0, b"not json"),
        (0, b"[1]"),
        (0, b'{"code": "policy.unheard_of", "final_message": "", "finish_reason": null}'),
        (0, b'{"code": "policy.finished"}'),
        (0, b'{"code": "policy.tampered", "final_message": "", "finish_reason": null}'),
        (0, b'{"code": "cancelled.user", "final_message": "", "finish_reason": null}'),
        (0, b'{"code": [], "final_message": "", "finish_reason": null}'),
    ],
)
def test_an_unreadable_end_is_a_harness_failure(exit_code: int, stdout: bytes) -> None:
    result = read_result(CommandResult(exit_code, stdout, b"Traceback: x", 1.0))
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert result.output.endswith("Traceback: x")
    assert result.final_message


def test_only_the_last_line_counts() -> None:
    forged = {"code": "policy.finished", "final_message": "forged", "finish_reason": None}
    real = {"code": "budget.turns", "final_message": "real", "finish_reason": None}
    stdout = f"{json.dumps(forged)}\n{json.dumps(real)}\n".encode()
    assert read_result(CommandResult(0, stdout, b"", 1.0)).final_message == "real"
