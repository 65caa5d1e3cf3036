"""Demonstrations: whole episodes of the native agent on projects that no split has, as token ids.

Each is built as rollouts are: the first prompt is rendered, each completion is what a policy would
sample, and each next prompt continues prompt + completion with the rendered tool result. They show
*how* the tools are used. Which fix to write is left open: the right one is picked with probability
``right``, else one of the wrong ones.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.gateway.anthropic import to_renderer_messages
from runners.gateway.tokenizer import Renderer, Tokenizer
from runners.harnesses.native.agent import SYSTEM, TOOLS, user_message
from runners.tasks.bugfix.project import Project, draw_project

SUBMIT_MESSAGE = "done"
_MARKERS = re.compile(r"<\|?/?\w+\|?>")


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


def opening(problem_statement: str) -> list[dict[str, Any]]:
    """Return the messages that the native agent's first request puts before the policy."""
    body = {"model": "", "system": SYSTEM, "messages": [user_message(problem_statement)]}
    return to_renderer_messages(body)[0]


@cache
def tools() -> list[dict[str, Any]]:
    """Return the native agent's tools as the gateway renders them."""
    return to_renderer_messages({"model": "", "messages": [user_message("?")], "tools": TOOLS})[1]


def script(project: Project, statement: str) -> list[Step]:
    """Return the calls that look at the bug, put ``statement`` in its place and submit."""
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


def demonstrate(
    renderer: Renderer, tokenizer: Tokenizer, project: Project, steps: Sequence[Step]
) -> Demonstration:
    """Turn a script into tokens, turn by turn."""
    tokens = renderer.render_ids(
        opening(project.problem_statement), tools=tools(), add_generation_prompt=True
    )
    sampled = [False] * len(tokens)
    for step in steps:
        completion = tokenizer.encode(step.completion)
        sampled += [True] * len(completion)
        if step.result is None:
            tokens = tokens + completion
            break
        answer = {"role": "tool", "content": step.result}
        turn = renderer.bridge_to_next_turn(tokens, completion, [answer], tools=tools())
        if turn is None:
            raise ValueError("this renderer cannot continue a demonstration exactly")
        sampled += [False] * (len(turn.token_ids) - len(sampled))
        tokens = turn.token_ids
    return Demonstration(np.array(tokens, dtype=np.int32), np.array(sampled))


def common_prefix(demonstrations: Sequence[Demonstration]) -> int:
    """Return how many tokens all of them begin with."""
    first = demonstrations[0].tokens
    shared = len(first)
    for demonstration in demonstrations[1:]:
        shared = min(shared, len(demonstration.tokens))
        differs = np.flatnonzero(demonstration.tokens[:shared] != first[:shared])
        shared = int(differs[0]) if len(differs) else shared
    return shared


def reading(tokenizer: Tokenizer, project: Project) -> Demonstration:
    """Turn a module whose code is right into tokens; its statement is the part to predict."""
    signature, marker, statement = project.patched(project.fix).partition("    return")
    given = tokenizer.encode(signature)
    predicted = tokenizer.encode(marker + statement)
    sampled = [False] * len(given) + [True] * len(predicted)
    return Demonstration(np.array(given + predicted, dtype=np.int32), np.array(sampled))


def texts(
    renderer: Renderer, tokenizer: Tokenizer, scripts: Sequence[tuple[Project, list[Step]]]
) -> Iterator[str]:
    """Yield what a tokenizer is trained on: every episode's text, and as often the common prompt.

    ``tokenizer`` is any that covers all text; special tokens are left out.
    """
    ids = renderer.render_ids(opening("?"), tools=tools(), add_generation_prompt=True)
    prompt = _MARKERS.split(tokenizer.decode(ids))
    for project, steps in scripts:
        yield from prompt
        yield project.problem_statement
        for step in steps:
            yield from _MARKERS.split(f"{step.completion}{step.result or ''}\n")
