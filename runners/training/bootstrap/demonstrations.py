"""Demonstrations: whole episodes of the native agent on projects that no split has, as token ids.

Each is built as rollouts are: the first prompt is rendered, each completion is what a policy would
sample, and each next prompt continues prompt + completion with the rendered tool result. They show
*how* the tools are used. Which fix to write is left open: the right one is picked with probability
``right``, else one of the wrong ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from renderers.base import Message, Renderer, ToolSpec

from runners.harnesses.native.agent import SYSTEM, TOOLS
from runners.tasks.bugfix.project import Project, draw_project

SUBMIT_MESSAGE = "done"

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call of an episode, and what the tool answers."""

    tool: str
    arguments: dict[str, str]
    result: str | None
    """None: the call ends the episode."""

    @property
    def completion(self) -> str:
        """The assistant's turn as text, stop token included."""
        call = json.dumps({"name": self.tool, "arguments": self.arguments}, ensure_ascii=False)
        return f"<tool_call>\n{call}\n</tool_call><|im_end|>"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode."""

    tokens: NDArray[np.int32]
    """[T]"""
    sampled: NDArray[np.bool_]
    """[T]; True on what the policy samples."""


def opening(problem_statement: str) -> list[Message]:
    """The messages the native agent's first request becomes."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem_statement}]


def tool_specs() -> list[ToolSpec]:
    """The native agent's tools in the form chat templates take."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
        }
        for tool in TOOLS
    ]


def script(project: Project, statement: str) -> list[Step]:
    """The calls that look at the bug, put ``statement`` in its place and submit."""
    edit = {"path": project.path, "old_string": project.broken, "new_string": statement}
    return [
        Step("Read", {"path": project.path}, project.files[project.path]),
        Step("Edit", edit, "ok"),
        Step("Submit", {"message": SUBMIT_MESSAGE}, None),
    ]


def draw_scripts(seed: int, *, right: float) -> Iterator[tuple[Project, list[Step]]]:
    """Draw projects and scripts without end."""
    rng = random.Random(f"demonstrations {seed}")
    while True:
        project = draw_project(rng, "bootstrap")
        statement = project.fix if rng.random() < right else rng.choice(project.wrong)
        yield project, script(project, statement)


def episode_text(steps: Sequence[Step]) -> str:
    """What an episode says after its opening, for the tokenizer's training."""
    return "\n".join(f"{step.completion}\n{step.result}\n" for step in steps)


def demonstrate(
    renderer: Renderer, encode: Encode, project: Project, steps: Sequence[Step]
) -> Demonstration:
    """Turn a script into tokens, turn by turn."""
    tokens = renderer.render_ids(
        opening(project.problem_statement), tools=tool_specs(), add_generation_prompt=True
    )
    sampled = [False] * len(tokens)
    for step in steps:
        completion = encode(step.completion)
        sampled += [True] * len(completion)
        if step.result is None:
            tokens = tokens + completion
            break
        turn = renderer.bridge_to_next_turn(
            tokens, completion, [{"role": "tool", "content": step.result}], tools=tool_specs()
        )
        if turn is None:
            raise AssertionError("a demonstration cannot be continued exactly")
        sampled += [False] * (len(turn.token_ids) - len(sampled))
        tokens = turn.token_ids
    return Demonstration(np.array(tokens, dtype=np.int32), np.array(sampled))
