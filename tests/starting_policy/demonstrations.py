"""Demonstrations: whole episodes of the native agent as token ids, on projects that no split has.

Each chain of an episode is built as in a rollout: the first prompt is rendered, each completion is
one that a policy could sample, and each next prompt continues prompt + completion with the messages
that the agent adds. They show *how* to use the tools, look for evidence, send an investigator and
summarize a history. Most do not look, or in the wrong place, and then guess; none writes the right
fix without having seen it.
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
from runners.records.tokenizer import Renderer, Tokenizer
from runners.rollouts.harnesses.native import agent
from runners.tasks.bugfix.kinds import PLACES, Place
from runners.tasks.bugfix.project import API, CHECK, Project, draw_project

Message = dict[str, Any]

DISPATCHING = ("subagent", "mixed")
"""Scenarios with an investigator; its chain is an episode's last."""
SUBMIT_MESSAGE = "done"
EDITED = "ok"
"""Result of an edit."""
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


def build_chains(
    project: Project,
    statement: str,
    scenario: ScenarioKind,
    *,
    place: Place | None = None,
    verify: bool = False,
    mend: bool = False,
) -> list[Chain]:
    """Return the chains of an episode that replaces the bug by ``statement`` and submits; the one
    with the fix comes first.

    ``place``: where it looks for evidence before that, None: nowhere. ``verify``: it runs the check
    afterwards, if its agent can; ``mend``: and fixes what fails, with the evidence.
    """
    shell = scenario in DISPATCHING
    looks = [_read(project, project.path, shell)]
    if place is not None:
        looks.append(_look(project, place, shell))
    fix = [_edit(project.broken, statement, project)]
    submit = _tool_turn("Submit", {"message": SUBMIT_MESSAGE})
    problem, finding = project.problem_statement, project.broken
    if place is not None:
        finding = describe_finding(project, place)
    match scenario:
        case "linear":
            checked = _verify(project, statement, mend) if verify else []
            return [Chain(agent.SYSTEM, agent.TOOLS, problem, (*looks, *fix, *checked, submit))]
        case "compact":
            # The window is full after the second turn, be it a look or an edit.
            before, after = (looks, [*fix, submit]) if place else ([*looks, *fix], [submit])
            told = finding if place else f"{statement} # {EDITED}"
            return _compact(agent.TOOLS, problem, before, told, after)
    # The investigator has a shell, and no other tool.
    errand = f"Show `{project.function}` in `{project.path}`."
    report = _tool_turn("Submit", {"message": finding})
    sent = [_tool_turn("Agent", {"prompt": errand}, finding)]
    sub = Chain(agent.INVESTIGATE, agent.INVESTIGATOR_TOOLS, errand, (*looks, report))
    if scenario == "mixed":
        tools = agent.DISPATCHER_TOOLS
        return [*_compact(tools, problem, sent, finding, [*fix, submit]), sub]
    turns = (*sent, *fix, submit)
    return [Chain(agent.SYSTEM, agent.DISPATCHER_TOOLS, problem, turns), sub]


def _compact(
    tools: list[dict[str, Any]],
    problem: str,
    before: Sequence[PolicyTurn],
    summary: str,
    after: Sequence[PolicyTurn],
) -> list[Chain]:
    """Return the chain after a summary, and the one that it ends."""
    *first, last = before
    asked = replace(last, new_messages=(*last.new_messages, agent.user_message(agent.SUMMARIZE)))
    ended = (*first, asked, PolicyTurn(summary + END))
    continued = agent.continuation_message(problem, summary)["content"]
    return [
        Chain(agent.SYSTEM, tools, continued, tuple(after)),
        Chain(agent.SYSTEM, tools, problem, ended),
    ]


def _verify(project: Project, statement: str, mend: bool) -> list[PolicyTurn]:
    """Return the turns that check a statement and, if that fails, may look again and fix it."""
    turns = [_check(project, statement)]
    if statement != project.fix and mend:
        if project.place == API:
            turns.append(_read(project, API))
        turns.append(_edit(statement, project.fix, project))
    return turns


def _look(project: Project, place: Place, shell: bool) -> PolicyTurn:
    return _read(project, API, shell) if place == API else _check(project, project.broken)


def _read(project: Project, path: str, shell: bool = False) -> PolicyTurn:
    """Return the turn that reads a file, with a shell or with a tool for that.

    In quotes a path's first word is the same token as in the errand: after a space it is another,
    and copying it takes a hundred more steps to learn.
    """
    text = project.files[path]
    if shell:
        return _tool_turn("Bash", {"command": f"cat '{path}'"}, text)
    return _tool_turn("Read", {"path": path}, text)


def describe_finding(project: Project, place: Place) -> str:
    """Return the broken statement and the first line of what a place shows, as a summary or an
    investigator's report tells them.

    One line: in a tool call a line's end is written as two letters, which hides the word after it.
    """
    return f"{project.broken} # {project.look(place).partition(chr(10))[0]}"


def _check(project: Project, statement: str) -> PolicyTurn:
    return _tool_turn("Bash", {"command": CHECK}, project.predict_check(statement) + "\n")


def _edit(old: str, new: str, project: Project) -> PolicyTurn:
    return _tool_turn("Edit", {"path": project.path, "old_string": old, "new_string": new}, EDITED)


def _tool_turn(tool: str, arguments: dict[str, str], result: str | None = None) -> PolicyTurn:
    call = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    completion = f"<tool_call>\n{call}\n</tool_call>{END}"
    return PolicyTurn(completion, () if result is None else ({"role": "tool", "content": result},))


def draw_episodes(
    seed: int,
    *,
    right: float,
    elsewhere: float,
    verify: float,
    told: float,
    scenario: ScenarioKind,
) -> Iterator[tuple[Project, list[Chain]]]:
    """Yield projects and episodes without end; the same seed yields the same ones.

    ``right``: share that looks at the evidence, and copies it; ``elsewhere``: share that looks in
    the other place; the rest looks nowhere. Without evidence the fix is a guess. ``verify``: share
    that runs the check afterwards; half of those that see it fail fix the statement then.

    ``told``: of the episodes whose investigator does not find the evidence, the share whose main
    agent is shown as if it had. It does not choose where to look, so this teaches it to use a
    finding and leaves the investigator's habits as they are.
    """
    rng = random.Random(f"demonstrations {seed}")
    while True:
        project = draw_project(rng, "bootstrap")
        number = rng.random()
        place, statement = None, rng.choice(project.wrong)
        if number < right:
            place, statement = project.place, project.fix
        elif number < right + elsewhere:
            place = next(other for other in PLACES if other != project.place)
        verified, mend = rng.random() < verify, rng.random() < 0.5
        chains = build_chains(project, statement, scenario, place=place, verify=verified, mend=mend)
        if scenario in DISPATCHING and rng.random() < told:
            *main, _ = build_chains(project, project.fix, scenario, place=project.place)
            chains = [*main, chains[-1]]
        yield project, chains


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


def make_reading(tokenizer: Tokenizer, project: Project, scenario: ScenarioKind) -> Demonstration:
    """Return a module and the evidence about it as tokens, then the part to predict: the right
    statement, or where the scenario's agents hand a finding on, the calls that do so and fix it.

    Few demonstrations look in the right place; this teaches copying from there, in the form in
    which it is needed, and says nothing about where to look.
    """
    text = f"{project.files[project.path]}{project.look(project.place)}"
    predicted = f"    {project.fix}\n"
    if scenario != "linear":
        text = f"{project.problem_statement}\n{text}"  # the call names the path
        finding = describe_finding(project, project.place)
        hand_on = PolicyTurn(finding + END)
        if scenario in DISPATCHING:
            hand_on = _tool_turn("Submit", {"message": finding})
        predicted = hand_on.completion + _edit(project.broken, project.fix, project).completion
    given, wanted = tokenizer.encode(text), tokenizer.encode(predicted)
    sampled = [False] * len(given) + [True] * len(wanted)
    return Demonstration(np.array(given + wanted, dtype=np.int32), np.array(sampled))


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
