"""The host's side of the native harness: start the agent program in the sandbox, read its end."""

from __future__ import annotations

import json
from pathlib import Path

from conf.sections.harness import NativeHarnessConfig
from conf.sections.scenario import ScenarioConfig, compaction_window, has_subagents
from runners.records.outcome import OutcomeCode
from runners.rollouts.contract import HarnessContext, HarnessResult
from runners.sandboxes.contract import CommandResult, Sandbox, compile_program

INSIDE = "/opt/agentrl/native"
FILES = ("__main__", "agent", "client")
# File by file: the package's __init__ imports agentrl, which is not in the sandbox.
PROGRAM = {name: compile_program(Path(__file__).with_name(f"{name}.py")) for name in FILES}
START_INSIDE = f"{INSIDE}/__main__{PROGRAM['__main__'].suffix}"
OUTPUT_LIMIT = 1 << 20
TAIL = 2000
CODES = frozenset(
    {
        OutcomeCode.POLICY_FINISHED,
        OutcomeCode.POLICY_GAVE_UP,
        OutcomeCode.BUDGET_TURNS,
        OutcomeCode.BUDGET_TOKENS,
        OutcomeCode.INFRA_MODEL,
        OutcomeCode.INFRA_GATEWAY,
    }
)
"""Those that the agent reports; its commands can print others in its name."""


class NativeHarness:
    """Harness of ``agent.py``, a Python process of its own in the sandbox."""

    def __init__(self, config: NativeHarnessConfig, scenario: ScenarioConfig) -> None:
        self._settings = json.dumps(
            {
                "max_turns": config.max_turns,
                "max_tokens": config.max_tokens,
                "dispatch": has_subagents(scenario),
                "window_tokens": compaction_window(scenario) or 0,
            }
        )

    def mounts(self) -> dict[str, Path]:
        """Return the agent's files, by their path inside."""
        return {f"{INSIDE}/{name}{path.suffix}": path for name, path in PROGRAM.items()}

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run the agent to its end or deadline; raises SandboxError."""
        env = {
            "ANTHROPIC_BASE_URL": sandbox.gateway_url or "",
            "ANTHROPIC_API_KEY": context.api_key,
            "ANTHROPIC_MODEL": context.model,
        }
        result = await sandbox.run(
            ["python", "-I", "-S", START_INSIDE, self._settings],
            deadline_s=context.deadline_s,
            env=env,
            stdin=context.prompt.encode(),
            output_limit=OUTPUT_LIMIT,
        )
        return read_result(result)


def read_result(result: CommandResult) -> HarnessResult:
    """Turn the end of the agent's process into a result; never raises."""
    tail = (result.stdout + result.stderr)[-TAIL:].decode(errors="replace")
    code, message, finish = OutcomeCode.INFRA_HARNESS, "", None
    if result.timed_out:
        code = OutcomeCode.BUDGET_WALL
    elif result.exit_code == 0:
        try:
            end = json.loads(result.stdout.splitlines()[-1])
            if end["code"] not in CODES:
                raise ValueError(end["code"])
            code, message = OutcomeCode(end["code"]), str(end["final_message"])
            finish = end["finish_reason"]
        except (ValueError, KeyError, IndexError, TypeError):
            message = "the agent's last line is not its result"
    else:
        message = f"the agent ended with exit code {result.exit_code}"
    return HarnessResult(
        code=code,
        final_message=message,
        raw_finish_reason=finish,
        exit_code=result.exit_code,
        duration_s=result.duration_s,
        output=tail,
    )
