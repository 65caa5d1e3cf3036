"""The host's side of Claude Code."""

from __future__ import annotations

from pathlib import Path

from conf.sections.harness import ClaudeCodeHarnessConfig
from conf.sections.scenario import ScenarioConfig
from runners.harnesses.claude_code.result import read_result
from runners.harnesses.claude_code.settings import INSIDE, command, environment
from runners.harnesses.contract import HarnessContext
from runners.harnesses.started import Start, StartedProgram
from runners.sandboxes.contract import Sandbox


def harness(
    config: ClaudeCodeHarnessConfig, scenario: ScenarioConfig, program: Path
) -> StartedProgram:
    """Return the harness that runs this program file."""

    def start(sandbox: Sandbox, context: HarnessContext) -> Start:
        chosen = environment(
            config,
            scenario,
            url=sandbox.gateway_url or "",
            api_key=context.api_key,
            model=context.model,
        )
        return Start(command(config, scenario), chosen)

    return StartedProgram({INSIDE: program}, start, read_result)
