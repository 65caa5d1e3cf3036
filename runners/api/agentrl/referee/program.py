"""Scenarios are small programs in text: steps of ``ScriptedAgent`` with literal arguments.

A walk's failure is written in the same form, so that it can be run again.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from agentrl.referee.agent import ScenarioStopped, ScriptedAgent, call, say
from agentrl.referee.conversation import RefereeError

_OWN = Path(__file__).with_name("scenarios.txt")
_HEAD = re.compile(r"(?P<group>[\w -]+) / (?P<name>\w+)(?P<stream> / stream)?: (?P<about>.+)")
WALK = "walk"
"""The group of random programs: a step that makes no sense where it stands is left out."""
STEPS = {name for name in vars(ScriptedAgent) if not name.startswith("_")}


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
        """Run it. Raises ScenarioStopped, NotOffered, and RefereeError for wrong arguments."""
        names = {"__builtins__": {}, **_WORDS, **{step: getattr(agent, step) for step in STEPS}}
        for text, code in _compile(self.source, self.name):
            try:
                made = eval(code, names)  # one's own program, as an adapter is
                if isinstance(made, Awaitable):
                    await made
            except (AttributeError, TypeError) as error:
                raise RefereeError(f"{self.name}: {text}: {error}") from error
            except (LookupError, ScenarioStopped) as error:  # a change of an answer that never came
                if self.group != WALK:
                    raise ScenarioStopped(f"{text}: {error}") from error


async def together(*programs: Iterable[Awaitable[None]]) -> None:
    """Take the turns of several programs side by side."""

    async def take(turns: Iterable[Awaitable[None]]) -> None:
        for turn in turns:
            await turn

    async with asyncio.TaskGroup() as group:
        for turns in programs:
            group.create_task(take([turn for turn in turns if turn is not None]))


_WORDS: dict[str, Any] = {"call": call, "say": say, "together": together}


def read_scenarios(file: Path) -> dict[str, Scenario]:
    """Return the scenarios of a file by name; raises RefereeError."""
    found: dict[str, Scenario] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RefereeError(f"{file}: {error}") from error
    heads = [at for at, line in enumerate(lines) if line[:1].strip() and line[0] != "#"]
    for at, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        place = f"{file}:{at + 1}"
        head = _HEAD.fullmatch(lines[at])
        if head is None or head["name"] in found:
            raise RefereeError(f"{place}: no `group / name: what it does`, or a name that was used")
        source = "\n".join(line[4:] for line in lines[at + 1 : end] if line.startswith("    "))
        _compile(source, place)
        found[head["name"]] = Scenario(
            head["name"], head["group"], head["about"], source, bool(head["stream"])
        )
    return found


def load_scenarios() -> dict[str, Scenario]:
    """Return the referee's own scenarios."""
    return {name: each for name, each in read_scenarios(_OWN).items() if each.group != WALK}


def load_walk_steps() -> list[str]:
    """Return the lines of which random programs are made."""
    return read_scenarios(_OWN)["steps"].source.splitlines()


def _compile(source: str, place: str) -> list[tuple[str, CodeType]]:
    """Return each step with its code; raises RefereeError for a name that is none of a step."""
    compiled, known = [], {*STEPS, *_WORDS}
    try:
        for statement in ast.parse(source).body:
            text = ast.unparse(statement)
            if isinstance(statement, ast.Assign):
                known |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
                code = compile(ast.Module([statement], []), place, "exec")
            else:
                code = compile(text, place, "eval")
            if unknown := set(code.co_names) - known:
                raise RefereeError(f"{place}: {text}: there is no step {', '.join(unknown)}")
            compiled.append((text, code))
    except (SyntaxError, RecursionError, ValueError) as error:
        raise RefereeError(f"{place}: {error}") from error
    return compiled
