"""The host's side of mini-swe-agent: the package's own command, run by the sandbox's Python."""

from __future__ import annotations

from pathlib import Path

from conf.sections.harness import MiniSweAgentHarnessConfig
from runners.harnesses.contract import HarnessContext
from runners.harnesses.mini_swe_agent.result import read_result
from runners.harnesses.mini_swe_agent.settings import (
    INSIDE,
    START,
    command,
    environment,
    settings,
)
from runners.harnesses.started import Start, StartedProgram
from runners.sandboxes.contract import Sandbox
from runners.sandboxes.program import compile_program

STARTER = compile_program(Path(__file__).with_name("start.py"))
START_INSIDE = f"{START}{STARTER.suffix}"


def harness(config: MiniSweAgentHarnessConfig, packages: Path) -> StartedProgram:
    """Return the harness that runs the package in this directory."""

    def start(sandbox: Sandbox, context: HarnessContext) -> Start:
        chosen = settings(
            config, url=sandbox.gateway_url or "", model=context.model, workdir=sandbox.workdir
        )
        return Start(command(START_INSIDE, chosen), environment(context.api_key))

    return StartedProgram({INSIDE: packages, START_INSIDE: STARTER}, start, read_result)
