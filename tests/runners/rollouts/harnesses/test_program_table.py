"""The table of docs/agents.md: agent programs, their versions and scenarios, each run for real in
the sandbox with a scripted policy.

``pytest -m agents`` runs it with the other tests of real programs and prints it at the end; with
this file's path it runs alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentrl.testing.completions import Completion
from conf.compose import compose
from conf.grammar import as_override
from runners.rollouts.harnesses.registry import install_harness
from runners.sandboxes.backends import make_backend
from runners.sandboxes.contract import SandboxBackend
from tests.runners.rollouts.harnesses.real_agent import (
    MAIN,
    SUB,
    RealProgram,
    SeveralThreads,
    call,
    chains_of,
    say,
)

pytestmark = [pytest.mark.integration, pytest.mark.agents, pytest.mark.slow]

SED = "sed -i s/-/+/ a.py"
TASK = "Look at a.py and report."
REPORT = say("it subtracts")
SUMMARY = say("<summary>add in a.py subtracts</summary>")
DONE = say("done")
ONE = (("final", MAIN),)
WITH_SUB = (("final", MAIN), ("subagent", SUB))
SUMMED_UP = (("compaction", MAIN), ("final", MAIN), ("wipe", MAIN))


@dataclass(frozen=True)
class Case:
    """One program, version and scenario, with what the policy says in it."""

    program: str
    version: str
    scenario: str
    lines: tuple[str, ...]
    """Overrides."""
    script: tuple[str, ...]
    chains: tuple[tuple[str, str], ...] = ONE
    """Kind and thread of every chain, side requests left out."""
    note: str = ""
    sub: tuple[str, ...] = ()
    """What the policy says as a sub-agent."""


@dataclass(frozen=True)
class Row:
    """What happened."""

    case: Case
    end: str
    trained: int
    sampled: int
    branches_right: bool
    breaks: int
    """Breaks that no summary explains."""

    def __str__(self) -> str:
        case = self.case
        tokens = f"{self.trained} / {self.sampled}"
        right = "right" if self.branches_right else "WRONG"
        cells = (case.program, case.version, case.scenario, self.end, tokens, right)
        return "| " + " | ".join((*cells, str(self.breaks), case.note)) + " |"


READ = call("Read", file_path="/workspace/a.py")
COUNT = call("Bash", command="seq 1000 1600", description="Count")
BASH = call("Bash", command=SED, description="Fix")
EDIT = call("Edit", file_path="/workspace/a.py", old_string="a - b", new_string="a + b")
SENT = call("Agent", description="Look", prompt=TASK, subagent_type="investigator")


def claude_code(version: str) -> list[Case]:
    lines = (f"harness=claude_code@{version}", "harness.max_tokens=4096")
    compact = (*lines, "scenario=compact", "scenario.window_tokens=16500")
    last = Case("claude_code", version, "compact", compact, (COUNT, READ, EDIT, DONE))
    if version == "2.1.328":
        last = replace(last, script=(COUNT, READ, SUMMARY, EDIT, DONE), chains=SUMMED_UP)
    else:
        last = replace(last, note="ignores the window: `agentrl check` refuses it")
    return [
        Case("claude_code", version, "linear", lines, (READ, BASH, DONE)),
        Case(
            *("claude_code", version, "subagent"),
            (*lines, "scenario=subagent"),
            (SENT, READ, EDIT, DONE),
            WITH_SUB,
            sub=(READ, REPORT),
        ),
        last,
    ]


def codex(version: str) -> list[Case]:
    lines = (f"harness=codex@{version}",)
    shell = call("exec_command", cmd=SED)
    count = call("exec_command", cmd="seq 1000 1600")
    read = call("exec_command", cmd="cat a.py")
    sent = call("multi_agent_v1__spawn_agent", message=TASK)
    wait = call("multi_agent_v1__wait_agent", targets=["AGENT"])
    compact = ("scenario=compact", "scenario.window_tokens=18000")
    return [
        Case("codex", version, "linear", lines, (read, shell, DONE)),
        Case(
            *("codex", version, "subagent"),
            (*lines, "scenario=subagent"),
            (sent, wait, read, shell, DONE),
            WITH_SUB,
            sub=(read, REPORT),
        ),
        Case(
            *("codex", version, "compact"),
            (*lines, *compact),
            (count, read, SUMMARY, shell, DONE),
            SUMMED_UP,
        ),
    ]


AIDER = say(
    "a.py\n```python\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n"
    ">>>>>>> REPLACE\n```\n"
)
FIX = call("bash", command=SED, description="Fix")
QWEN = call("run_shell_command", command=SED, is_background=False)
OPENHANDS = call("terminal", command=SED, security_risk="LOW", summary="Fix")
CLINE = call("run_commands", commands=[SED])
FINISH = call("finish", message="Done.")
TITLE = say("A title")
FIX_IT = call("bash", command=SED)
SUBMIT = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo fixed")


def sent_by(tool: str, kind: str) -> str:
    """Return the call that starts a sub-agent of one of the other programs."""
    return call(tool, description="Look at it", prompt=TASK, subagent_type=kind)


OTHERS = [
    Case("mini_swe_agent", "2.4.6", "linear", ("harness=mini_swe_agent",), (FIX_IT, SUBMIT)),
    Case("opencode", "1.18.33", "linear", ("harness=opencode",), (TITLE, FIX, DONE)),
    Case(
        *("opencode", "1.18.33", "subagent", ("harness=opencode",)),
        (TITLE, sent_by("task", "general"), FIX, DONE),
        WITH_SUB,
        sub=(REPORT,),
    ),
    Case("qwen_code", "0.15.10", "linear", ("harness=qwen_code",), (QWEN, DONE)),
    Case(
        *("qwen_code", "0.15.10", "subagent", ("harness=qwen_code",)),
        (sent_by("agent", "general-purpose"), QWEN, DONE),
        WITH_SUB,
        sub=(REPORT,),
    ),
    Case("pi", "0.73.1", "linear", ("harness=pi",), (FIX, DONE)),
    Case("continue", "1.5.47", "linear", ("harness=continue",), (call("Bash", command=SED), DONE)),
    Case("openhands", "1.16.0", "linear", ("harness=openhands",), (OPENHANDS, FINISH)),
    Case(
        *("claude_agent_sdk", "0.2.187", "linear", ("harness=claude_agent_sdk",)),
        (call("Bash", command=SED, description="Fix"), DONE),
    ),
    Case(
        *("claude_agent_sdk", "0.2.187", "subagent", ("harness=claude_agent_sdk",)),
        (sent_by("Agent", "scout"), call("Bash", command=SED, description="Fix"), DONE),
        WITH_SUB,
        sub=(REPORT,),
    ),
    Case("cline", "3.0.65", "linear", ("harness=cline",), (CLINE, DONE)),
    Case(
        *("cline", "3.0.65", "subagent", ("harness=cline",)),
        (call("spawn_agent", systemPrompt="You look around.", task=TASK), CLINE, DONE),
        WITH_SUB,
        sub=(REPORT,),
    ),
    Case("aider", "0.86.1", "linear", ("harness=aider",), (AIDER,)),
]

CLIENTS = Path(__file__).parent / "clients"
PACKAGES = {
    "openai": "3.54.0",
    "anthropic": "2.12.0",
    "openai-agents": "0.24.0",
    "smolagents": "1.26.0",
    "litellm": "1.83.0",
}
"""Packages of the clients, with the versions that are tried."""
INSTALL = "python3 -m venv . && ./bin/pip install --quiet --disable-pip-version-check " + " ".join(
    f"{name}=={version}" for name, version in PACKAGES.items()
)


def client(script: str, package: str, *said: str, sub: tuple[str, ...] = ()) -> Case:
    """Return the case of a program of twenty lines that uses a package."""
    files = [
        {"path": f"clients/{name}.py", "content": (CLIENTS / f"{name}.py.txt").read_text()}
        for name in ("shell", script)
    ]
    env = {
        "OPENAI_BASE_URL": "{base_url}/v1",
        "OPENAI_API_KEY": "{api_key}",
        "ANTHROPIC_BASE_URL": "{base_url}",
        "ANTHROPIC_API_KEY": "{api_key}",
        "MODEL": "{model}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    values = {
        "name": "sdk_clients",
        "install": INSTALL,
        "run": f'exec {{directory}}/bin/python "$HOME/clients/{script}.py" < {{prompt_file}}',
        "env": env,
        "files": files,
        "memory_mb": 16384,
    }
    lines = ["harness=command", *(as_override(f"harness.{key}", v) for key, v in values.items())]
    title = f"{package}: {script.replace('_', ' ')}"
    kind = "subagent" if sub else "linear"
    chains = WITH_SUB if sub else ONE
    return Case(title, PACKAGES[package], kind, tuple(lines), said, chains, sub=sub)


SDKS = [
    client("openai_chat", "openai", FIX_IT, DONE),
    client("openai_responses", "openai", FIX_IT, DONE),
    client("openai_agents", "openai-agents", FIX_IT, DONE),
    client(
        *("openai_agents", "openai-agents"),
        *(call("ask_scout", input=TASK), FIX_IT, DONE),
        sub=(REPORT,),
    ),
    client("anthropic_messages", "anthropic", FIX_IT, DONE),
    client("anthropic_tool_runner", "anthropic", FIX_IT, DONE),
    replace(
        client("smolagents_calls", "smolagents", FIX_IT, call("final_answer", answer="done")),
        chains=(("final", MAIN), ("wipe", MAIN)),
        note="sends its own calls back as plain text: each turn is a chain of its own",
    ),
    client("litellm_completion", "litellm", FIX_IT, DONE),
]
CASES = [
    *(case for version in ("2.1.197", "2.1.210", "2.1.328") for case in claude_code(version)),
    *(case for version in ("0.166.0", "0.169.0") for case in codex(version)),
    *OTHERS,
    *SDKS,
]
COLUMNS = (
    *("program", "version", "scenario", "end", "trained / sampled tokens", "branches"),
    *("false breaks", ""),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxBackend]:
    backend = make_backend(
        compose(["harness=pi"]).sandbox, tmp_path_factory.mktemp("backend") / "root"
    )
    yield backend
    asyncio.run(backend.close())


@pytest.fixture(scope="module")
def table(pytestconfig: pytest.Config) -> Iterator[list[Row]]:
    """Print the rows when all have run."""
    rows: list[Row] = []
    yield rows
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join([HEAD, *map(str, rows)]))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.program}-{c.version}-{c.scenario}")
async def test_a_program_finishes_and_all_it_sampled_is_trained_in_the_right_branches(
    case: Case, backend: SandboxBackend, table: list[Row], tmp_path: Path
) -> None:
    config = compose(list(case.lines))
    await asyncio.to_thread(install_harness, config.harness)
    scripts = {MAIN: list(case.script)} | ({TASK: list(case.sub)} if case.sub else {})
    async with SeveralThreads(scripts) as engine:
        engine.always = Completion(DONE)
        program = RealProgram(config, backend, engine, tmp_path)
        done = await program.work(config.scenario, deadline_s=90)
    stats = done.finished["stats"]
    chains = [(kind, thread) for kind, thread, _ in chains_of(done) if kind != "side"]
    explained = sum(kind == "compaction" for kind, _ in chains)
    row = Row(
        case,
        str(done.result.code),
        stats["trained_tokens"],
        stats["sampled_tokens"],
        sorted(chains) == sorted(case.chains),
        len(stats["breaks"]) - explained,
    )
    table.append(row)
    assert row.end == "policy.finished", done.result.output
    assert "a + b" in done.a_py
    assert row.trained == row.sampled == sum(len(ids) for ids, _ in engine.seen.answered)
    assert row.branches_right, chains_of(done)
    assert row.breaks == (1 if "smolagents" in case.program else 0), stats["breaks"]
