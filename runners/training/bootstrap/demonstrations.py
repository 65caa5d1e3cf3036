"""Demonstrations: whole episodes of the native agent on projects that no split has, as token ids.

Each chain of an episode is built as in a rollout: the first prompt is rendered, each completion is
what a policy would sample, and each next prompt continues prompt + completion with what the agent
hears then. They show *how* the tools are used, an investigator is sent and a history is summed up.
Which fix to write is left open: the right one is picked with probability ``right``, else one of the
wrong ones.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.sections.scenario import ScenarioKind
from runners.gateway.dialects.anthropic import to_renderer_messages
from runners.gateway.tokenizer import Renderer, Tokenizer
from runners.harnesses.native import agent
from runners.tasks.bugfix.project import Project, draw_project

Message = dict[str, Any]

SUBMIT_MESSAGE = "done"
END = "<|im_end|>"
_MARKERS = re.compile(r"<\|?/?\w+\|?>")


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the policy, and what it hears then."""

    completion: str
    """The assistant's turn as text, stop token included."""
    heard: tuple[Message, ...] = ()
    """Messages that the next turn's prompt adds; none after the last turn."""


@dataclass(frozen=True, slots=True)
class Line:
    """One chain of an episode: what opens it, and its turns."""

    system: str
    tools: list[dict[str, Any]]
    """As the agent sends them."""
    problem: str
    steps: tuple[Step, ...]

    def body(self) -> dict[str, Any]:
        """Return the first request, as the native agent sends it."""
        messages = [agent.user_message(self.problem)]
        return {"model": "", "system": self.system, "tools": self.tools, "messages": messages}


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One chain of an episode."""

    tokens: NDArray[np.int32]
    """[T]"""
    sampled: NDArray[np.bool_]
    """[T]; True on what the policy samples."""


def lines(project: Project, statement: str, scenario: ScenarioKind) -> list[Line]:
    """Return the chains of an episode that puts ``statement`` in the bug's place and submits; the
    one with the fix comes first.
    """
    look = _step("Read", {"path": project.path}, project.files[project.path])
    old_new = {"old_string": project.broken, "new_string": statement}
    fix = (
        _step("Edit", {"path": project.path, **old_new}, "ok"),
        _step("Submit", {"message": SUBMIT_MESSAGE}),
    )
    finding = f"{project.wording} {project.broken}"
    problem, tools = project.problem_statement, agent.TOOLS
    episode: list[Line] = []
    if scenario in ("subagent", "mixed"):
        errand = f"Show `{project.function}` in `{project.path}`."
        report = (look, _step("Submit", {"message": finding}))
        episode = [Line(agent.INVESTIGATE, agent.INVESTIGATOR_TOOLS, errand, report)]
        look, tools = _step("Agent", {"prompt": errand}, finding), agent.DISPATCHER_TOOLS
    if scenario in ("compact", "mixed"):
        asked = replace(look, heard=(*look.heard, agent.user_message(agent.SUMMARIZE)))
        summing = Line(agent.SYSTEM, tools, problem, (asked, Step(finding + END)))
        episode = [summing, *episode]
        problem = agent.continuation_message(problem, finding)["content"]
        return [Line(agent.SYSTEM, tools, problem, fix), *episode]
    return [Line(agent.SYSTEM, tools, problem, (look, *fix)), *episode]


def _step(tool: str, arguments: dict[str, str], result: str | None = None) -> Step:
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    completion = f"<tool_call>\n{call}\n</tool_call>{END}"
    return Step(completion, () if result is None else ({"role": "tool", "content": result},))


def draw_episodes(
    seed: int, *, right: float, scenario: ScenarioKind
) -> Iterator[tuple[Project, list[Line]]]:
    """Draw projects and episodes without end."""
    rng = random.Random(f"demonstrations {seed}")
    while True:
        project = draw_project(rng, "bootstrap")
        statement = project.fix if rng.random() < right else rng.choice(project.wrong)
        yield project, lines(project, statement, scenario)


def demonstrate(renderer: Renderer, tokenizer: Tokenizer, line: Line) -> Demonstration:
    """Turn a chain into tokens, turn by turn."""
    opening, tools = to_renderer_messages(line.body())
    tokens = renderer.render_ids(opening, tools=tools, add_generation_prompt=True)
    sampled = [False] * len(tokens)
    for step in line.steps:
        completion = tokenizer.encode(step.completion)
        sampled += [True] * len(completion)
        if not step.heard:
            tokens = tokens + completion
            break
        turn = renderer.bridge_to_next_turn(tokens, completion, list(step.heard), tools=tools)
        if turn is None:
            raise ValueError("this renderer cannot continue a demonstration exactly")
        sampled += [False] * (len(turn.token_ids) - len(sampled))
        tokens = turn.token_ids
    return Demonstration(np.array(tokens, dtype=np.int32), np.array(sampled))


def reading(tokenizer: Tokenizer, project: Project) -> Demonstration:
    """Turn a module whose code is right into tokens; its statement is the part to predict."""
    signature, marker, statement = project.replace_bug(project.fix).partition("    return")
    given = tokenizer.encode(signature)
    predicted = tokenizer.encode(marker + statement)
    sampled = [False] * len(given) + [True] * len(predicted)
    return Demonstration(np.array(given + predicted, dtype=np.int32), np.array(sampled))


def texts(
    renderer: Renderer, tokenizer: Tokenizer, episodes: Sequence[Sequence[Line]]
) -> Iterator[str]:
    """Yield what a tokenizer is trained on: every episode's text, and as often its prompts.

    ``tokenizer`` is any that covers all text; special tokens are left out.
    """
    prompts: list[str] = []
    for line in episodes[0]:
        opening, tools = to_renderer_messages(replace(line, problem="?").body())
        ids = renderer.render_ids(opening, tools=tools, add_generation_prompt=True)
        prompts += _MARKERS.split(tokenizer.decode(ids))
    for episode in episodes:
        yield from prompts
        for line in episode:
            yield line.problem
            for step in line.steps:
                heard = "\n".join(message["content"] for message in step.heard)
                yield from _MARKERS.split(f"{step.completion}{heard}\n")
