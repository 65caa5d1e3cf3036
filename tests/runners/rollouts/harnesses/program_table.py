"""The table of docs/agents.md: agent programs, their versions and scenarios, and what happens when
one of them works for real in the sandbox, with a scripted policy.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from agentrl.testing.completions import Completion, spoken
from conf.compose import compose
from conf.grammar import as_override
from conf.program_versions import find_installed_version
from conf.sections.harness import CommandHarnessConfig, ExternalHarnessConfig
from runners.rollouts.harnesses.registry import install_harness
from runners.sandboxes.contract import SandboxBackend
from tests.runners.rollouts.harnesses.real_agent import (
    MAIN,
    PROBLEM,
    SUB,
    RealProgram,
    SeveralThreads,
    call,
    chains_of,
    say,
)

SED = "sed -i s/-/+/ a.py"
UNSEEN = "sed s/-/+/ a.py > b.py; mv b.py a.py"
"""Qwen Code refuses ``sed -i`` on a file that it has not read."""
TASK = "Look at a.py and report."
DEADLINE_S = 300.0
"""Of an attempt: programs of 400 MB start on a busy machine."""
SHOWN = 800
"""Characters of the last prompt that explain why nothing was edited."""
ASKS_FOR_TITLE = "Generate a title for this conversation"
"""Of opencode, beside its first request."""
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
    scenario: str
    lines: tuple[str, ...]
    """Overrides."""
    script: tuple[str, ...]
    chains: tuple[tuple[str, str], ...] = ONE
    """Kind and thread of every chain, side requests left out."""
    note: str = ""
    sub: tuple[str, ...] = ()
    """What the policy says as a sub-agent."""
    package: str = ""
    """Package and version of a program of twenty lines that uses one; "": the preset's."""
    breaks: int = 0
    """Breaks that the note explains."""
    edits: int = 0
    """Answers that the program changes by itself."""

    def __str__(self) -> str:
        return f"{self.program}-{self.version}-{self.scenario}"

    @cached_property
    def version(self) -> str:
        """The version that its lines choose."""
        if self.package:
            return self.package.partition("==")[2]
        harness = compose(list(self.lines)).harness
        if isinstance(harness, CommandHarnessConfig):
            return find_installed_version(harness.install) or ""
        assert isinstance(harness, ExternalHarnessConfig)
        return harness.version


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
    edits: int
    prompt_kb: int
    """Length of its first prompt, in thousands of characters."""
    problems: tuple[str, ...] = ()
    """Each promise that did not hold."""

    def cells(self) -> tuple[str, ...]:
        """Return the cells of ``COLUMNS``."""
        case = self.case
        tokens = f"{self.trained} / {self.sampled}"
        right = "right" if self.branches_right else "WRONG"
        figures = (str(self.breaks), str(self.edits), str(self.prompt_kb))
        return (case.program, case.version, case.scenario, self.end, tokens, right, *figures)

    def __str__(self) -> str:
        return "| " + " | ".join((*self.cells(), self.case.note)) + " |"


COLUMNS = (
    *("program", "version", "scenario", "end", "trained / sampled tokens", "branches"),
    *("false breaks", "edits", "first prompt, KB", ""),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


async def try_case(case: Case, backend: SandboxBackend, place: Path) -> Row:
    """Let the program work; raises ProgramError if it cannot be installed."""
    config = compose(list(case.lines))
    await asyncio.to_thread(install_harness, config.harness)
    scripts = {MAIN: case.script, ASKS_FOR_TITLE: (say("A title"),)}
    scripts |= {TASK: case.sub} if case.sub else {}
    async with SeveralThreads(scripts) as engine:
        engine.always = Completion(DONE)
        program = RealProgram(config, backend, engine, place)
        done = await program.work(config.scenario, deadline_s=DEADLINE_S)
    seen, stats = engine.seen, done.finished["stats"]
    branches = [branch for branch in chains_of(done) if branch[0] != "side"]
    chains = [(kind, thread) for kind, thread, _ in branches]
    explained = sum(kind in ("compaction", "edit") for kind, _ in chains)
    first = min((turns[0] for _, thread, turns in branches if thread == MAIN), default=0)
    prompts = [
        engine.tokenizer.decode(request["input_ids"], skip_special_tokens=False)
        for request in seen.requests[first : first + 1]
    ]
    row = Row(
        case,
        str(done.result.code),
        stats["trained_tokens"],
        stats["sampled_tokens"],
        sorted(chains) == sorted(case.chains),
        len(stats["breaks"]) - explained,
        stats["edits"],
        sum(map(len, prompts)) // 1000,
    )
    last = [engine.tokenizer.decode(each["input_ids"]) for each in seen.requests[-1:]]
    told = sum(prompt.count(PROBLEM) for prompt in prompts)
    promises = {
        f"it ended with {row.end}: {done.result.output}": row.end == "policy.finished",
        f"it did not edit the file: {''.join(last)[-SHOWN:]}": "a + b" in done.a_py,
        f"the task is {told} times in its first prompt": told == 1,
        "not all that was sampled is trained": row.trained == row.sampled,
        "not all that the engine answered was sampled": row.sampled
        == sum(len(ids) for ids, _ in seen.answered),
        f"its chains are {branches}": row.branches_right,
        f"its breaks are {stats['breaks']}": row.breaks == case.breaks,
        f"its edits are {row.edits}": row.edits == case.edits,
    }
    return replace(row, problems=tuple(name for name, kept in promises.items() if not kept))


READ = call("Read", file_path="/workspace/a.py")
COUNT = call("Bash", command="seq 1000 1600", description="Count")
BASH = call("Bash", command=SED, description="Fix")
EDIT = call("Edit", file_path="/workspace/a.py", old_string="a - b", new_string="a + b")
SENT = call("Agent", description="Look", prompt=TASK, subagent_type="investigator")


def claude_code(version: str, *, sums_up: bool = True) -> list[Case]:
    lines = (f"harness=claude_code@{version}", "harness.max_tokens=4096")
    compact = (*lines, "scenario=compact", "scenario.window_tokens=16500")
    last = Case("claude_code", "compact", compact, (COUNT, READ, SUMMARY, EDIT, DONE), SUMMED_UP)
    if not sums_up:
        note = "ignores the window: `agentrl check` refuses it"
        last = Case("claude_code", "compact", compact, (COUNT, READ, EDIT, DONE), note=note)
    return [
        Case("claude_code", "linear", lines, (READ, BASH, DONE)),
        Case(
            "claude_code", "odd", lines, (READ, *odd("Bash", command=SED, timeout=600000.0), DONE)
        ),
        Case(
            *("claude_code", "subagent"),
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
    count = call("exec_command", cmd="seq 1000 3000")
    read = call("exec_command", cmd="cat a.py")
    sent = call("multi_agent_v1__spawn_agent", message=TASK)
    wait = call("multi_agent_v1__wait_agent", targets=["AGENT"])
    compact = ("scenario=compact", "scenario.window_tokens=21500")
    return [
        Case("codex", "linear", lines, (read, shell, DONE)),
        Case("codex", "odd", lines, (read, *odd("exec_command", cmd=SED), DONE)),
        Case(
            *("codex", "subagent"),
            (*lines, "scenario=subagent"),
            (sent, wait, read, shell, DONE),
            WITH_SUB,
            sub=(read, REPORT),
        ),
        Case(
            *("codex", "compact"),
            (*lines, *compact),
            (count, read, SUMMARY, shell, DONE),
            SUMMED_UP,
        ),
    ]


def odd(tool: str, **arguments: Any) -> tuple[str, ...]:
    """Return the fix as a policy may write it, which programs write otherwise when they send it
    back: a tool that does not exist, blanks around texts and arguments, a ``cd``, unknown
    arguments, escapes and floats.
    """
    given = {
        name: f"cd /workspace && {value}  " if name in ("command", "cmd") else value
        for name, value in arguments.items()
    }
    text = {"type": "text", "text": "  I  look at it:\n\n  here.  \n\n"}
    calls = (
        ("no_such_tool", {"a": "é <x>"}),
        (tool, {**arguments, "unknown": " a  b \n", "number": 10.0, "nothing": None}),
        (tool, given),
    )
    return tuple(
        spoken([text, {"type": "tool_use", "name": name, "input": each}]) for name, each in calls
    )


def program(name: str, tool: str, *, last: str = DONE, **arguments: Any) -> list[Case]:
    """Return the cases of a program that fixes the file by one call of a tool."""
    lines, fix = (f"harness={name}",), call(tool, **arguments)
    return [
        Case(name, "linear", lines, (fix, last)),
        Case(name, "odd", lines, (*odd(tool, **arguments), last)),
    ]


def with_sub(case: Case, sent: str) -> Case:
    """Return the case in which a sub-agent looks first."""
    at = len(case.script) - 2
    script = (*case.script[:at], sent, *case.script[at:])
    return replace(case, scenario="subagent", script=script, chains=WITH_SUB, sub=(REPORT,))


def sent_by(tool: str, kind: str) -> str:
    """Return the call that starts a sub-agent of one of the other programs."""
    return call(tool, description="Look at it", prompt=TASK, subagent_type=kind)


AIDER = say(
    "a.py\n```python\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n"
    ">>>>>>> REPLACE\n```\n"
)
FIX_IT = call("bash", command=SED)
SUBMIT = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo fixed")
MINI = program("mini_swe_agent", "bash", last=SUBMIT, command=SED)
OPENCODE = program("opencode", "bash", command=SED, description="Fix")
KILO = program("kilo", "bash", command=SED, description="Fix")
GOOSE = program("goose", "shell", command=SED)
QWEN = program("qwen_code", "run_shell_command", command=UNSEEN, is_background=False)
GEMINI = program("gemini_cli", "run_shell_command", command=SED, description="Fix")
SDK = program("claude_agent_sdk", "Bash", command=SED, description="Fix")
CLINE = program("cline", "run_commands", commands=[SED])
FINISH = call("finish", message="Done.")
OPENHANDS: dict[str, Any] = {"command": SED, "security_risk": "LOW", "summary": "Fix"}
OTHERS = [
    MINI[0],
    replace(
        MINI[1],
        lines=(*MINI[1].lines, "harness.max_tokens=4096"),
        chains=(("wipe", MAIN), ("final", MAIN)),
        breaks=1,
        note="leaves out an answer that calls a tool which does not exist",
    ),
    OPENCODE[0],
    replace(
        OPENCODE[1],
        chains=(("edit", MAIN), ("final", MAIN)),
        edits=1,
        note="renames a call of a tool that does not exist",
    ),
    with_sub(OPENCODE[0], sent_by("task", "general")),
    *KILO,
    with_sub(KILO[0], sent_by("task", "general")),
    *QWEN,
    with_sub(QWEN[0], sent_by("agent", "general-purpose")),
    *GEMINI,
    replace(
        with_sub(GEMINI[0], call("invoke_agent", agent_name="generalist", prompt=TASK)),
        sub=(call("complete_task", response="it subtracts"),),
    ),
    *program("pi", "bash", command=SED),
    *program("continue", "Bash", command=SED),
    *program("openhands", "terminal", last=FINISH, **OPENHANDS),
    replace(
        GOOSE[0],
        chains=(("wipe", MAIN), ("final", MAIN)),
        breaks=1,
        note="takes the time out of the last message and puts it into the next: "
        "each turn is a chain of its own",
    ),
    replace(
        GOOSE[1],
        chains=(("wipe", MAIN), ("edit", MAIN), ("edit", MAIN), ("final", MAIN)),
        breaks=1,
        edits=2,
        note="the same; writes calls that it refuses as text",
    ),
    *SDK,
    with_sub(SDK[0], sent_by("Agent", "scout")),
    *CLINE,
    with_sub(CLINE[0], call("spawn_agent", systemPrompt="You look around.", task=TASK)),
    Case("aider", "linear", ("harness=aider",), (AIDER,)),
]

CLIENTS = Path(__file__).parent / "clients"
PACKAGES = {
    "openai": "3.57.0",
    "anthropic": "2.14.0",
    "openai-agents": "0.24.0",
    "smolagents": "1.26.0",
    "litellm": "1.110.2",
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
    spec = f"{package}=={PACKAGES[package]}"
    return Case(title, kind, tuple(lines), said, chains, sub=sub, package=spec)


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
        chains=(("edit", MAIN), ("final", MAIN)),
        note="sends its own calls back as plain text: each turn is a chain of its own",
        edits=1,
    ),
    client("litellm_completion", "litellm", FIX_IT, DONE),
]
CASES = [
    *claude_code("2.1.210", sums_up=False),
    *(case for version in ("2.1.328", "2.1.332") for case in claude_code(version)),
    *(case for version in ("0.169.0", "0.171.0") for case in codex(version)),
    *OTHERS,
    *SDKS,
]
"""Rows of the table; old versions are those that ``agentrl check`` is shown with."""
