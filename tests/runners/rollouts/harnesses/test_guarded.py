"""A plug-in's agent: used as any other, and its failure is the end of its own rollout only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from conf.compose import compose
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.rollouts.harnesses.registry import make_harness
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxError
from runners.system.plugins.loading import PluginError

SOURCE = """
from dataclasses import dataclass
from pathlib import Path
from runners.rollouts.contract import HarnessResult
from runners.sandboxes.contract import CommandResult, SandboxError

@dataclass
class Agent:
    exit_code: int = 0
    fails: str = ""

    def mounts(self):
        return {"/opt/agent": Path("/somewhere")}

    async def run(self, sandbox, context):
        if self.fails == "lost":
            raise SandboxError("gone")
        if self.fails == "raises":
            raise RuntimeError(context.prompt)
        if self.fails == "exits":
            raise SystemExit(3)
        if self.fails == "none":
            return None
        late = self.fails == "late"
        done = CommandResult(self.exit_code, b"out", b"err", 1.5, timed_out=late)
        return HarnessResult.of_command(done, final_message="done")

class Half:
    def mounts(self): return {}
"""
CONTEXT = HarnessContext("fix\x1b it", "key", "policy", 5.0)
UNUSED = cast("Sandbox", SimpleNamespace(spec=None, workdir="/", gateway_url=None))


async def run(tmp_path: Path, *options: str) -> HarnessResult:
    file = tmp_path / "agent.py"
    file.write_text(SOURCE)
    lines = ["harness=custom", f"harness.target={file}:Agent"]
    config = compose([*lines, *(f"harness.options.{line}" for line in options)])
    harness = make_harness(config.harness, config.scenario)
    assert harness.mounts() == {"/opt/agent": Path("/somewhere")}
    return await harness.run(UNUSED, CONTEXT)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], OutcomeCode.POLICY_FINISHED),
        (["exit_code=3"], OutcomeCode.INFRA_HARNESS),
        (["fails=late", "exit_code=124"], OutcomeCode.BUDGET_WALL),
    ],
)
async def test_the_end_of_its_program_is_the_end_of_the_agent(
    tmp_path: Path, options: list[str], code: OutcomeCode
) -> None:
    result = await run(tmp_path, *options)
    assert (result.code, result.output, result.duration_s) == (code, "outerr", 1.5)
    assert result.final_message == "done"


@pytest.mark.parametrize(
    ("fails", "text"),
    [
        ("raises", "agent.py:Agent raised RuntimeError: fix"),
        ("exits", "agent.py:Agent raised SystemExit: 3"),
        ("none", "returned NoneType"),
    ],
)
async def test_what_it_raises_or_returns_wrongly_is_a_failure_of_the_harness(
    tmp_path: Path, fails: str, text: str
) -> None:
    result = await run(tmp_path, f"fails={fails}")
    assert result.code is OutcomeCode.INFRA_HARNESS
    assert text in result.output
    assert "\x1b" not in result.output


async def test_a_lost_sandbox_is_told_to_the_caller(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="gone"):
        await run(tmp_path, "fails=lost")


def test_half_an_agent_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(SOURCE)
    config = compose(["harness=custom", f"harness.target={file}:Half"])
    with pytest.raises(PluginError, match=r"no method `async def run\(self, sandbox: Sandbox"):
        make_harness(config.harness, config.scenario)


def test_a_command_s_output_is_kept_to_its_end() -> None:
    done = CommandResult(0, b"a" * 5000, b"end\xff", 0.1)
    assert HarnessResult.of_command(done).output.endswith("end�")
    assert len(HarnessResult.of_command(done).output) == 2000
