"""Words, tools, sub-agents and servers of tools that a user adds to Claude Code and Codex reach the
policy; what the repository would add does not.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.compose import compose
from conf.schema import Config
from runners.records.outcome import OutcomeCode
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.fakes import mcp_server
from tests.runners.rollouts.harnesses.real_agent import (
    MAIN,
    SUB,
    AgentRun,
    RealProgram,
    SeveralThreads,
    call,
    chains_of,
    check_tokens,
    install_or_skip,
    say,
)

pytestmark = [pytest.mark.integration, pytest.mark.agents]

FOLDER = Path(mcp_server.__file__).parent
DELAY_S = "2"
"""A server that is slow to start: its tool must be in the first request all the same."""
SERVER = (
    f"harness.mcp_servers={{docs: {{command: python3, directory: '{FOLDER}', "
    f"args: ['{{directory}}/mcp_server.py', zebra, '{DELAY_S}'], env: {{MCP_TEST_A: 'x y'}}}}}}"
)
WORDS = "harness.system_prompt='Mind the \"gnu\" \\ and\nthe ü.'"
SPOKEN = 'Mind the "gnu" \\ and\nthe ü.'
LOOKUP = "mcp__docs__lookup"
EVIL = {"command": sys.executable, "args": ["-c", "open('/workspace/evil', 'w')"]}
REPOSITORY = {
    ".mcp.json": json.dumps({"mcpServers": {"evil": EVIL}}),
    ".claude/settings.json": json.dumps({"enableAllProjectMcpServers": True}),
    ".codex/config.toml": (
        f'[mcp_servers.evil]\ncommand = "{sys.executable}"\n'
        f"args = [\"-c\", \"open('/workspace/evil', 'w')\"]\n"
    ),
}
"""A repository that would have the program start a server of its own."""
DONE = say("done")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
    sandbox = compose(["harness=claude_code"]).sandbox
    backend = make_backend(sandbox, tmp_path_factory.mktemp("backend") / "root")
    yield backend
    asyncio.run(backend.close())


def composed(*lines: str) -> Config:
    """Return a configuration whose program is installed."""
    config = compose(list(lines))
    install_or_skip(config.harness)
    return config


def prompt_of(engine: ScriptedEngine, turn: int) -> str:
    """Return the prompt of a turn as text."""
    ids = engine.seen.requests[turn]["input_ids"]
    return engine.tokenizer.decode(ids, skip_special_tokens=False)


def offered(engine: ScriptedEngine, turn: int) -> set[str]:
    """Return the tools that a prompt offers."""
    head = '{"type": "function", "function": {"name": "'
    return {part.partition('"')[0] for part in prompt_of(engine, turn).split(head)[1:]}


def check_end(done: AgentRun, engine: ScriptedEngine) -> None:
    """Check that it ended well, trained every token, and started nothing of the repository's."""
    assert done.result.code is OutcomeCode.POLICY_FINISHED, done.result
    assert done.changed == sorted({name.partition("/")[0] for name in REPOSITORY})
    check_tokens(done, engine)


async def test_claude_code_has_the_words_tools_agents_and_servers_of_the_user(
    backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    config = composed(
        "harness=claude_code",
        WORDS,
        SERVER,
        "harness.tools=[Bash, Read]",
        "harness.disallowed_tools=['Bash(git push *)']",
        "harness.agents={critic: {description: It weighs, prompt: You weigh., tools: [Read]}}",
    )
    program = RealProgram(config, backend, engine, tmp_path, REPOSITORY)
    engine.say(
        call(LOOKUP, word="gnu"),
        call("Agent", description="Weigh", prompt="Weigh a.py.", subagent_type="critic"),
        say("It is light."),
        call("Bash", command="git push origin", description="Push"),
        DONE,
    )
    done = await program.work()
    check_end(done, engine)
    assert chains_of(done) == [("final", MAIN, (0, 1, 3, 4)), ("subagent", SUB, (2,))]
    assert offered(engine, 0) == {"Agent", "Bash", "Read", LOOKUP}
    assert SPOKEN in prompt_of(engine, 0)
    assert "critic: It weighs" in prompt_of(engine, 0)
    assert '["zebra", {"word": "gnu"}, {"MCP_TEST_A": "x y"}]' in prompt_of(engine, 1)
    assert "You weigh." in prompt_of(engine, 2)
    assert offered(engine, 2) == {"Read"}
    assert "has been denied" in prompt_of(engine, 4)


async def test_claude_codes_dispatcher_has_the_users_agents_and_servers_too(
    backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    config = composed(
        "harness=claude_code",
        "scenario=subagent",
        SERVER,
        WORDS,
        "harness.agents={critic: {description: It weighs, prompt: You weigh.}}",
    )
    engine.say(
        call("Agent", description="Weigh", prompt="Weigh a.py.", subagent_type="critic"),
        say("It is light."),
        DONE,
    )
    done = await RealProgram(config, backend, engine, tmp_path, REPOSITORY).work(config.scenario)
    check_end(done, engine)
    assert chains_of(done) == [("final", MAIN, (0, 2)), ("subagent", SUB, (1,))]
    assert offered(engine, 0) == {"Agent", "Edit", "Read", "Write", LOOKUP}
    assert SPOKEN in prompt_of(engine, 0)
    assert "You weigh." in prompt_of(engine, 1)


async def test_codex_has_the_words_agents_and_servers_of_the_user(
    backend: SandboxBackend, tmp_path: Path
) -> None:
    config = composed(
        "harness=codex",
        "scenario=subagent",
        WORDS,
        SERVER,
        "harness.agents={critic: {description: It weighs, prompt: 'You \"weigh\".'}}",
    )
    main = [
        call(LOOKUP, word="gnu"),
        call("multi_agent_v1__spawn_agent", message="Weigh a.py.", agent_type="critic"),
        call("multi_agent_v1__wait_agent", targets=["AGENT"]),
        DONE,
    ]
    async with SeveralThreads({MAIN: main, "Weigh a.py.": [say("It is light.")]}) as engine:
        engine.always = Completion(DONE)  # for a report that comes after the end of the work
        program = RealProgram(config, backend, engine, tmp_path, REPOSITORY)
        done = await program.work(config.scenario)
        check_end(done, engine)
        kinds = sorted((kind, thread) for kind, thread, _ in chains_of(done))
        assert kinds == [("final", MAIN), ("subagent", SUB)]
        prompts = [prompt_of(engine, turn) for turn in range(len(engine.seen.requests))]
    assert LOOKUP in prompts[0]
    assert SPOKEN in prompts[0]
    assert "critic: {\\nIt weighs" in prompts[0]
    assert '["zebra", {"word": "gnu"}, {"MCP_TEST_A": "x y"}]' in prompts[1]
    weighed = [prompt for prompt in prompts if 'You "weigh".' in prompt]
    assert len(weighed) == 1, "only the sub-agent has its instructions"


@pytest.mark.slow
@pytest.mark.parametrize("harness", ["claude_code", "codex"])
async def test_a_server_that_does_not_start_is_a_failure_with_its_name(
    harness: str, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    config = composed(f"harness={harness}", "harness.mcp_servers={docs: {command: no-such}}")
    engine.say(DONE)
    done = await RealProgram(config, backend, engine, tmp_path).work()
    assert done.result.code is OutcomeCode.INFRA_HARNESS
    assert "docs" in done.result.output


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.1.197", "2.1.210"])
async def test_older_versions_wait_for_a_slow_server_too(
    version: str, backend: SandboxBackend, engine: ScriptedEngine, tmp_path: Path
) -> None:
    config = composed("harness=claude_code", f"harness.version={version}", SERVER)
    engine.say(call(LOOKUP, word="gnu"), DONE)
    done = await RealProgram(config, backend, engine, tmp_path).work()
    assert done.result.code is OutcomeCode.POLICY_FINISHED
    assert LOOKUP in offered(engine, 0)
    assert "zebra" in prompt_of(engine, 1)
