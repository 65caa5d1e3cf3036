"""Demonstrations: whole episodes of the native agent as token ids, on projects that no split has.

Each chain of an episode is built as in a rollout: the first prompt is rendered, each completion is
one that a policy could sample, and each next prompt continues prompt + completion with the messages
that the agent adds. They show *how* to use the tools, send an investigator and summarize a history,
but not which fix to write: the right one is shown with probability ``right``, else a wrong one.
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
class PolicyTurn:
    """One turn of the policy, and the messages that answer it."""

    completion: str
    """The assistant's turn as text, stop token included."""
    new_messages: tuple[Message, ...] = ()
    """Messages that the next turn's prompt adds; none after the last turn."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain of an episode: its first prompt and its turns."""

    system: str
    tools: list[dict[str, Any]]
    """In the form in which the agent sends them."""
    problem: str
    turns: tuple[PolicyTurn, ...]

    def body(self) -> dict[str, Any]:
        """Return the first request, as the native agent sends it."""
        messages = [agent.user_message(self.problem)]
        return {"model": "", "system": self.system, "tools": self.tools, "messages": messages}


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One chain of an episode as tokens."""

    tokens: NDArray[np.int32]
    """int32 [T]"""
    sampled: NDArray[np.bool_]
    """bool [T]; True on tokens that the policy would sample."""


def build_chains(project: Project, statement: str, scenario: ScenarioKind) -> list[Chain]:
    """Return the chains of an episode that replaces the bug by ``statement`` and submits; the one
    with the fix comes first.
    """
    look = _tool_turn("Read", {"path": project.path}, project.files[project.path])
    old_new = {"old_string": project.broken, "new_string": statement}
    fix = (
        _tool_turn("Edit", {"path": project.path, **old_new}, "ok"),
        _tool_turn("Submit", {"message": SUBMIT_MESSAGE}),
    )
    finding = f"{project.wording} {project.broken}"
    problem, tools = project.problem_statement, agent.TOOLS
    episode: list[Chain] = []
    if scenario in ("subagent", "mixed"):
        errand = f"Show `{project.function}` in `{project.path}`."
        report = (look, _tool_turn("Submit", {"message": finding}))
        episode = [Chain(agent.INVESTIGATE, agent.INVESTIGATOR_TOOLS, errand, report)]
        look, tools = _tool_turn("Agent", {"prompt": errand}, finding), agent.DISPATCHER_TOOLS
    if scenario in ("compact", "mixed"):
        summarized = replace(
            look, new_messages=(*look.new_messages, agent.user_message(agent.SUMMARIZE))
        )
        summary = Chain(agent.SYSTEM, tools, problem, (summarized, PolicyTurn(finding + END)))
        episode = [summary, *episode]
        problem = agent.continuation_message(problem, finding)["content"]
        return [Chain(agent.SYSTEM, tools, problem, fix), *episode]
    return [Chain(agent.SYSTEM, tools, problem, (look, *fix)), *episode]


def _tool_turn(tool: str, arguments: dict[str, str], result: str | None = None) -> PolicyTurn:
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    completion = f"<tool_call>\n{call}\n</tool_call>{END}"
    return PolicyTurn(completion, () if result is None else ({"role": "tool", "content": result},))


def draw_episodes(
    seed: int, *, right: float, scenario: ScenarioKind
) -> Iterator[tuple[Project, list[Chain]]]:
    """Yield projects and episodes without end; the same seed yields the same ones."""
    rng = random.Random(f"demonstrations {seed}")
    while True:
        project = draw_project(rng, "bootstrap")
        statement = project.fix if rng.random() < right else rng.choice(project.wrong)
        yield project, build_chains(project, statement, scenario)


def demonstrate(renderer: Renderer, tokenizer: Tokenizer, chain: Chain) -> Demonstration:
    """Return a chain as tokens, rendered and continued turn by turn as in a rollout.

    Raises ValueError if the renderer cannot continue a prompt exactly.
    """
    opening, tools = to_renderer_messages(chain.body())
    tokens = renderer.render_ids(opening, tools=tools, add_generation_prompt=True)
    sampled = [False] * len(tokens)
    for turn in chain.turns:
        completion = tokenizer.encode(turn.completion)
        sampled += [True] * len(completion)
        if not turn.new_messages:
            tokens = tokens + completion
            break
        bridged = renderer.bridge_to_next_turn(
            tokens, completion, list(turn.new_messages), tools=tools
        )
        if bridged is None:
            raise ValueError("this renderer cannot continue a demonstration exactly")
        sampled += [False] * (len(bridged.token_ids) - len(sampled))
        tokens = bridged.token_ids
    return Demonstration(np.array(tokens, dtype=np.int32), np.array(sampled))


def make_reading(tokenizer: Tokenizer, project: Project) -> Demonstration:
    """Return a correct module as tokens; its statement is the part to predict."""
    signature, marker, statement = project.replace_bug(project.fix).partition("    return")
    given = tokenizer.encode(signature)
    predicted = tokenizer.encode(marker + statement)
    sampled = [False] * len(given) + [True] * len(predicted)
    return Demonstration(np.array(given + predicted, dtype=np.int32), np.array(sampled))


def iterate_texts(
    renderer: Renderer, tokenizer: Tokenizer, episodes: Sequence[Sequence[Chain]]
) -> Iterator[str]:
    """Yield the texts to train a tokenizer on: each episode's own, and the prompts once per
    episode.

    ``tokenizer``: any that covers all text; special tokens are left out.
    """
    prompts: list[str] = []
    for chain in episodes[0]:
        opening, tools = to_renderer_messages(replace(chain, problem="?").body())
        ids = renderer.render_ids(opening, tools=tools, add_generation_prompt=True)
        prompts += _MARKERS.split(tokenizer.decode(ids))
    for episode in episodes:
        yield from prompts
        for chain in episode:
            yield chain.problem
            for turn in chain.turns:
                added = "\n".join(message["content"] for message in turn.new_messages)
                yield from _MARKERS.split(f"{turn.completion}{added}\n")
