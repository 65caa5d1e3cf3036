"""The host's side of Codex."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from conf.sections.harness import CodexHarnessConfig
from conf.sections.scenario import ScenarioConfig
from runners.harnesses.codex.result import read_result
from runners.harnesses.codex.settings import INSIDE, command, environment
from runners.harnesses.contract import HarnessContext
from runners.harnesses.started import Start, StartedProgram
from runners.sandboxes.contract import Sandbox


def harness(config: CodexHarnessConfig, scenario: ScenarioConfig, program: Path) -> StartedProgram:
    """Return the harness that runs this program file."""

    def start(sandbox: Sandbox, context: HarnessContext) -> Start:
        line = command(scenario, url=sandbox.gateway_url or "", model=context.model)
        return Start(line, environment(context.api_key))

    return StartedProgram({INSIDE: program}, start, partial(read_result, version=config.version))
