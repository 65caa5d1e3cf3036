"""Scenarios are small programs in text: steps with literal arguments, read by Python's own parser.

Nothing is evaluated but the methods of ``ScriptedAgent`` and literals. A walk's failure is written
in the same form, so that it can be run again.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.referee.agent import ScenarioStopped, ScriptedAgent, call, raw, say
from agentrl.referee.conversation import RefereeError

_HEAD = re.compile(r"(?P<group>[\w -]+) / (?P<name>\w+)(?P<stream> / stream)?: (?P<about>.+)")
_VALUES = {"call": call, "say": say, "raw": raw}
_NAMES = ("branch", "subagent")
"""Steps that make another agent, which later steps name."""
WALK = "walk"
"""The group of random programs: an edit that makes no sense where it stands is left out."""
STEPS = {name for name in vars(ScriptedAgent) if not name.startswith(("_", "make_"))}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A small agent program whose truth is known."""

    name: str
    group: str
    about: str
    source: str
    stream: bool = False

    def write(self) -> str:
        """Return the text that ``read_scenarios`` reads."""
        stream = " / stream" if self.stream else ""
        steps = "".join(f"    {line}\n" for line in self.source.splitlines())
        return f"{self.group} / {self.name}{stream}: {self.about}\n{steps}"

    async def run(self, agent: ScriptedAgent) -> None:
        """Run it. Raises ScenarioStopped and NotOffered."""
        agents = {"": agent}
        for node in _parse(self.source, self.name):
            await _step(node, agents, lenient=self.group == WALK)


def read_scenarios(file: Path) -> dict[str, Scenario]:
    """Return the scenarios of a file by name; raises RefereeError."""
    found: dict[str, Scenario] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RefereeError(f"{file}: {error}") from error
    heads = [at for at, line in enumerate(lines) if line[:1].strip() and line[0] != "#"]
    for at, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        head = _HEAD.fullmatch(lines[at])
        if head is None or head["name"] in found:
            raise RefereeError(
                f"{file}:{at + 1}: no `group / name: what it does`, or a name that was used"
            )
        body = [line[4:] for line in lines[at + 1 : end] if line.startswith("    ")]
        scenario = Scenario(
            head["name"], head["group"], head["about"], "\n".join(body), bool(head["stream"])
        )
        for node in _parse(scenario.source, f"{file}:{at + 1}"):
            _check(node, f"{file}:{at + 1}")
        found[scenario.name] = scenario
    return found


def load_scenarios() -> dict[str, Scenario]:
    """Return the referee's own scenarios."""
    return read_scenarios(Path(__file__).with_name("scenarios.txt"))


def _parse(source: str, place: str) -> Iterable[ast.expr]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, RecursionError, ValueError) as error:
        raise RefereeError(f"{place}: {error}") from error
    for statement in body:
        if not isinstance(statement, ast.Expr):
            raise RefereeError(f"{place}: {ast.unparse(statement)} is no step")
        yield statement.value


def _check(node: ast.expr, place: str) -> None:
    """Raise RefereeError unless a node is a step with literal arguments that it takes."""
    name = _split(node)[1]
    if name == "together":
        for part in node.args if isinstance(node, ast.Call) else ():
            for inner in part.elts if isinstance(part, ast.List) else [part]:
                _check(inner, place)
        return
    if not isinstance(node, ast.Call) or (name not in STEPS and name not in _NAMES):
        raise RefereeError(f"{place}: there is no step {name or ast.unparse(node)}")
    try:
        step = getattr(ScriptedAgent, name, _name_agent)
        inspect.signature(step).bind(None, *map(_value, node.args), **_read_keywords(node))
    except (TypeError, ValueError) as error:
        raise RefereeError(f"{place}: {ast.unparse(node)}: {error}") from error


def _name_agent(maker: object, name: str) -> None:
    """Stand for ``branch`` and ``subagent``, whose argument names the agent that they make."""


def _read_keywords(node: ast.Call) -> dict[str, Any]:
    return {part.arg: _value(part.value) for part in node.keywords if part.arg}


def _split(node: ast.expr) -> tuple[str, str]:
    """Return the agent and the name of a step."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return "", node.func.id
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            return node.func.value.id, node.func.attr
    return "", ""


async def _step(node: ast.expr, agents: dict[str, ScriptedAgent], *, lenient: bool = False) -> None:
    assert isinstance(node, ast.Call)
    who, name = _split(node)
    if name == "together":
        chains = [part.elts for part in node.args if isinstance(part, ast.List)]
        async with asyncio.TaskGroup() as group:
            for steps in chains:
                group.create_task(_steps(steps, agents))
        return
    agent = agents[who]
    arguments = [_value(part) for part in node.args]
    if name in _NAMES:
        make = agent.make_branch if name == "branch" else agent.make_subagent
        agents[arguments[0]] = make()
        return
    try:
        made = getattr(agent, name)(*arguments, **_read_keywords(node))
    except (LookupError, ScenarioStopped) as error:  # an edit of an answer that never came
        if lenient:
            return
        raise ScenarioStopped(f"{ast.unparse(node)}: {error}") from error
    if inspect.isawaitable(made):
        await made


async def _steps(nodes: Iterable[ast.expr], agents: dict[str, ScriptedAgent]) -> None:
    for node in nodes:
        await _step(node, agents)


def _value(node: ast.expr) -> Any:
    """Return a literal, or an answer or a call made of literals."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _VALUES:
        make: Any = _VALUES[node.func.id]
        return make(*map(_value, node.args), **_read_keywords(node))
    return ast.literal_eval(node)
