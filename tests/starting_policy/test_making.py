"""The starting policy's making: exact token streams, and the files that are shipped again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from conf.sections.scenario import ScenarioKind
from runners.gateway.dialects.anthropic import to_renderer_messages
from runners.gateway.texts.text_work import TextWork
from runners.records.checkpoints import SHA256, SHIPPED, hash_files
from runners.records.tokenizer import Renderer, Tokenizer, load_renderer, load_tokenizer
from runners.rollouts.harnesses.native import agent
from runners.tasks.bugfix.project import Project
from tests.starting_policy.demonstrations import (
    Chain,
    demonstrate,
    draw_episodes,
    iterate_texts,
)
from tests.starting_policy.making import RECIPE, SCENARIOS, draw_all, make_policy
from tests.starting_policy.vocabulary import (
    BYTES_ONLY,
    save_tokenizer,
    train_tokenizer,
)

SMALL = replace(RECIPE, demonstrations=8, copying_steps=1, warmup_steps=1)


def drawn(
    count: int, *, seed: int = 0, scenario: ScenarioKind = "linear", **habits: float
) -> list[tuple[Project, list[Chain]]]:
    """Draw episodes; ``habits``: shares other than the recipe's."""
    names = ("right", "elsewhere", "verify", "told")
    shares = {name: getattr(RECIPE, name) for name in names} | habits
    return list(islice(draw_episodes(seed, scenario=scenario, **shares), count))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Renderer, Path]:
    """Return a tokenizer trained on demonstrations, its renderer, and its directory."""
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer([], size=BYTES_ONLY), directory)
    plain = load_tokenizer(directory)
    episodes = [chains for _, chains in drawn(200, scenario="mixed")]
    text = list(iterate_texts(load_renderer(plain, "qwen3"), plain, episodes))
    save_tokenizer(train_tokenizer(text, size=RECIPE.vocabulary), directory)
    tokenizer = load_tokenizer(directory)
    return tokenizer, load_renderer(tokenizer, "qwen3"), directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a policy warmed up for one step."""
    directory = tmp_path_factory.mktemp("made")
    make_policy(directory, draw_all(SMALL), SMALL)
    return directory


class Policy:
    """Answers the native agent with the turns of an episode; keeps what it was asked."""

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer, chains: list[Chain]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._parts = tokenizer, renderer
        self._left = {chain.problem: list(chain.turns) for chain in chains}

    def create(self, body: dict[str, Any], hints: dict[str, str]) -> dict[str, Any]:
        """Say the next turn of the chain whose problem opens the conversation."""
        self.bodies.append({**body, "messages": list(body["messages"])})
        tokenizer, renderer = self._parts
        turn = self._left[body["messages"][0]["content"]].pop(0)
        work = TextWork(tokenizer, renderer, "qwen3")
        parsed = work.read_output(tokenizer.encode(turn.completion), [], []).parsed
        number = len(self.bodies)
        content: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"c{number}", "name": call.name, "input": call.arguments}
            for call in parsed.tool_calls
        ]
        said = [{"type": "text", "text": parsed.content}] if parsed.content else []
        tokens = 0 if "agent-id" in hints else 100 * len(body["messages"])
        usage = {"input_tokens": tokens, "output_tokens": 1}
        return {"content": said + content, "stop_reason": "tool_use", "usage": usage}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_demonstration_equals_the_gateway_s_tokens_of_the_native_agent(
    scenario: ScenarioKind,
    parts: tuple[Tokenizer, Renderer, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, renderer, _ = parts
    shares = {"right": 0.0, "elsewhere": 0.0, "verify": 1.0, "told": 0.0}
    ((project, chains),) = drawn(1, seed=7, scenario=scenario, **shares)
    for path, text in project.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    policy = Policy(tokenizer, renderer, chains)
    window = {"compact": 250, "mixed": 50}.get(scenario, 0)
    settings = {"model": "", "max_turns": 8, "max_tokens": 96, "window_tokens": window}
    dispatch = scenario in ("subagent", "mixed")
    end = agent.solve(
        cast("Any", policy), project.problem_statement, {**settings, "dispatch": dispatch}
    )
    assert end["code"] == "policy.finished"
    assert end["turns"] == len(policy.bodies) == sum(len(chain.turns) for chain in chains)
    for chain in chains:
        asked = [body for body in policy.bodies if body["messages"][0]["content"] == chain.problem]
        tokens: list[int] = []
        for number, body in enumerate(asked):
            rendered, tools = to_renderer_messages(body)
            if number == 0:
                tokens = renderer.render_ids(rendered, tools=tools, add_generation_prompt=True)
                continue
            spoken = tokenizer.encode(chain.turns[number - 1].completion)
            news = rendered[
                max(i for i, m in enumerate(rendered) if m["role"] == "assistant") + 1 :
            ]
            turn = renderer.bridge_to_next_turn(tokens, spoken, news, tools=tools)
            assert turn is not None
            tokens = turn.token_ids
        last = tokenizer.encode(chain.turns[-1].completion)
        assert demonstrate(renderer, tokenizer, chain).tokens.tolist() == tokens + last


def edits_of(chains: list[Chain]) -> list[str]:
    """Return the statements that an episode writes, in order."""
    turns = [turn for chain in reversed(chains) for turn in chain.turns]
    calls = [turn.completion for turn in turns if '"Edit"' in turn.completion]
    parsed = [json.loads(call[call.index("{") : call.rindex("}") + 1]) for call in calls]
    return [call["arguments"]["new_string"] for call in parsed]


def results_of(chains: list[Chain]) -> list[str]:
    """Return the results that an episode sees before its first edit."""
    turns = [turn for chain in chains for turn in chain.turns]
    return [
        message["content"]
        for turn in turns
        for message in turn.new_messages
        if message["role"] == "tool"
    ]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_demonstration_writes_the_fix_without_having_seen_the_evidence(
    scenario: ScenarioKind,
) -> None:
    for project, chains in drawn(300, seed=3, scenario=scenario):
        statements = edits_of(chains)
        evidence = project.look(project.place).partition("\n")[0]
        if statements[0] == project.fix:
            seen = chains[:-1] if scenario in ("subagent", "mixed") else chains
            assert any(evidence in result for result in results_of(seen))
        assert set(statements) <= {project.fix, *project.wrong}


@pytest.mark.integration
def test_the_directory_is_a_whole_model(made: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(made)
    assert network.config.vocab_size == load_tokenizer(made).vocab_size
    assert network.config.eos_token_id == load_tokenizer(made).eos_token_id
    assert network.dtype == torch.bfloat16


@pytest.mark.integration
def test_the_same_recipe_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    make_policy(tmp_path, draw_all(SMALL), SMALL)
    assert hash_files(tmp_path) == hash_files(made)


@pytest.mark.slow
@pytest.mark.integration
def test_the_shipped_policy_is_made_again(tmp_path: Path) -> None:
    """The same bytes on the same kind of processor; on another one, a policy that solves as many
    tasks.
    """
    (tmp_path / "made").mkdir()
    make_policy(tmp_path / "made", draw_all(RECIPE))
    if hash_files(tmp_path / "made") == SHA256:
        return
    rates = [solve_rate(path, tmp_path / path.name) for path in (SHIPPED, tmp_path / "made")]
    # 128 tasks each: the difference of two equal rates near 0.3 has a deviation of 0.057.
    assert abs(rates[0] - rates[1]) < 0.15, rates


def solve_rate(policy: Path, run_dir: Path) -> float:
    """Return the share of 128 held-out tasks that a policy solves."""
    lines = [f"model.path={policy}", "eval.tasks=128", f"run.dir={run_dir}-eval"]
    command = [sys.executable, "-m", "cli.main", "eval", "bugfix", "--json", *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    rate: float = report["resolved_instances"] / report["total_instances"]
    return rate
