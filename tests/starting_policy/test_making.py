"""The starting policy's making: exact token streams, and the files that are shipped again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conf.sections.scenario import ScenarioKind
from runners.gateway.dialects.anthropic import to_renderer_messages
from runners.records.prefix import common_prefix_length
from runners.records.starting_policy import SHA256, SHIPPED, hash_files
from runners.records.tokenizer import Renderer, Tokenizer, load_renderer, load_tokenizer
from runners.rollouts.harnesses.native import agent
from runners.tasks.bugfix.project import API, Project
from runners.training.tree.layers import enable_trees
from tests.starting_policy.demonstrations import (
    Chain,
    demonstrate,
    describe_finding,
    draw_episodes,
    iterate_texts,
    make_reading,
)
from tests.starting_policy.making import RECIPE, SCENARIOS, draw_all, make_policy
from tests.starting_policy.muon import orthogonalize
from tests.starting_policy.network import make_network
from tests.starting_policy.vocabulary import (
    BYTES_ONLY,
    MARKERS,
    SPECIAL,
    save_tokenizer,
    train_tokenizer,
)
from tests.starting_policy.warmup import CONTEXT_WEIGHT, compute_loss, make_sample

SMALL = replace(RECIPE, demonstrations=60, copying_steps=2, warmup_steps=2)


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
    """Return a policy warmed up for two steps."""
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
        parsed = renderer.parse_response(tokenizer.encode(turn.completion))
        number = len(self.bodies)
        content: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"c{number}", "name": call.name, "input": call.arguments}
            for call in parsed.tool_calls
        ]
        said = [{"type": "text", "text": parsed.content}] if parsed.content else []
        tokens = 0 if "agent-id" in hints else 100 * len(body["messages"])
        usage = {"input_tokens": tokens, "output_tokens": 1}
        return {"content": said + content, "stop_reason": "tool_use", "usage": usage}


@pytest.mark.parametrize("habits", [{"right": 1.0}, {"elsewhere": 1.0}, {}], ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_demonstration_equals_the_gateway_s_tokens_of_the_native_agent(
    scenario: ScenarioKind,
    habits: dict[str, float],
    parts: tuple[Tokenizer, Renderer, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, renderer, _ = parts
    shares = {"right": 0.0, "elsewhere": 0.0, "verify": 1.0, "told": 0.0} | habits
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


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_policy_is_trained_on_its_own_turns_only(
    scenario: ScenarioKind, parts: tuple[Tokenizer, Renderer, Path]
) -> None:
    tokenizer, renderer, _ = parts
    ((_, chains),) = drawn(1, seed=1, scenario=scenario)
    for chain in chains:
        demonstration = demonstrate(renderer, tokenizer, chain)
        sampled = tokenizer.decode(demonstration.tokens[demonstration.sampled].tolist())
        assert sampled == "".join(turn.completion for turn in chain.turns)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_completion_is_one_good_tool_call_or_a_summary(
    scenario: ScenarioKind, parts: tuple[Tokenizer, Renderer, Path]
) -> None:
    tokenizer, renderer, _ = parts
    for _, chains in drawn(20, seed=2, scenario=scenario):
        for chain in chains:
            known = {tool["name"] for tool in chain.tools}
            for turn in chain.turns:
                parsed = renderer.parse_response(tokenizer.encode(turn.completion))
                if parsed.tool_calls:
                    (call,) = parsed.tool_calls
                    assert (str(call.status), call.name in known) == ("ok", True)
                else:
                    assert scenario in ("compact", "mixed")
                    assert parsed.content


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


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_evidence_is_seen_with_the_configured_probability(scenario: ScenarioKind) -> None:
    episodes = drawn(1000, seed=3, scenario=scenario, right=0.3, told=0.0)
    shown = np.mean([edits_of(chains)[0] == project.fix for project, chains in episodes])
    assert abs(shown - 0.3) <= 0.05


@pytest.mark.parametrize("scenario", ["subagent", "mixed"])
def test_main_agents_are_told_more_than_their_investigators_find(scenario: ScenarioKind) -> None:
    plain = drawn(1000, seed=3, scenario=scenario, right=0.3, told=0.0)
    told = drawn(1000, seed=3, scenario=scenario, right=0.3, told=0.5)
    fixed = np.mean([edits_of(chains)[0] == project.fix for project, chains in told])
    assert abs(fixed - (0.3 + 0.7 * 0.5)) <= 0.05
    looks = [
        np.mean(
            [project.look(project.place) in results_of(chains[-1:]) for project, chains in all_]
        )
        for all_ in (plain, told)
    ]
    assert abs(looks[0] - looks[1]) <= 0.05


def test_a_check_is_run_after_some_fixes_and_some_that_fail_are_fixed() -> None:
    episodes = drawn(1000, seed=4, verify=0.4, right=0.0)
    again = np.mean([len(edits_of(chains)) == 2 for _, chains in episodes])
    assert abs(again - 0.2) <= 0.05
    assert all(edits_of(chains)[1:] in ([], [project.fix]) for project, chains in episodes)


def test_a_reading_predicts_the_right_statement_from_module_and_evidence(
    parts: tuple[Tokenizer, Renderer, Path],
) -> None:
    tokenizer, _, _ = parts
    for project, _ in drawn(20, seed=5):
        read = make_reading(tokenizer, project, "linear")
        given = tokenizer.decode(read.tokens[~read.sampled].tolist())
        assert given == project.files[project.path] + project.look(project.place)
        assert project.fix not in given
        assert tokenizer.decode(read.tokens[read.sampled].tolist()).strip() == project.fix
        told = make_reading(tokenizer, project, "mixed")
        calls = tokenizer.decode(told.tokens[told.sampled].tolist())
        report, edit = (json.loads(call) for call in re.findall(r"^{.*}$", calls, re.MULTILINE))
        assert report["arguments"] == {"message": describe_finding(project, project.place)}
        assert edit["arguments"]["new_string"] == project.fix


def test_the_common_prefix_ends_before_the_problem(
    parts: tuple[Tokenizer, Renderer, Path],
) -> None:
    tokenizer, renderer, _ = parts
    shown = [demonstrate(renderer, tokenizer, chains[0]) for _, chains in drawn(30, seed=6)]
    shared = common_prefix_length(*(one.tokens for one in shown))
    prefix = tokenizer.decode(shown[0].tokens[:shared].tolist())
    assert prefix.endswith("<|im_start|>user\nFix `") or prefix.endswith("user\nFix")


def test_a_step_s_loss_and_gradient_are_those_of_its_demonstrations_one_by_one(
    parts: tuple[Tokenizer, Renderer, Path],
) -> None:
    tokenizer, renderer, _ = parts
    episodes = [chains for _, chains in drawn(3, seed=8, scenario="mixed")]
    network = make_network(vocabulary=tokenizer.vocab_size, context=1024, seed=0)
    enable_trees(network)
    draws, expected, sampled = [], torch.zeros(()), []
    for chains, weight in zip(zip(*episodes, strict=True), (0.5, 0.25, 0.25), strict=True):
        shown = [demonstrate(renderer, tokenizer, chain) for chain in chains]
        prefix = common_prefix_length(*(one.tokens for one in shown))
        draws.append(([make_sample(one, prefix) for one in shown], weight))
        total, weights = torch.zeros(()), 0.0
        for one in shown:
            tokens = torch.from_numpy(one.tokens).long()
            logprobs = network(input_ids=tokens[None]).logits[0].log_softmax(-1)
            for place in range(prefix + 1, len(tokens)):
                importance = 1.0 if one.sampled[place] else CONTEXT_WEIGHT
                loss = -logprobs[place - 1, tokens[place]]
                total, weights = total + importance * loss, weights + importance
                if one.sampled[place]:
                    sampled.append(loss.item())
        expected = expected + weight * total / weights
    expected.backward()  # type: ignore[no-untyped-call]
    gradients = {name: each.grad for name, each in network.named_parameters()}
    network.zero_grad()
    figures, loss = compute_loss(network, draws)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert figures.sampled == pytest.approx(float(np.mean(sampled)), rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    for name, each in network.named_parameters():
        torch.testing.assert_close(each.grad, gradients[name], atol=1e-5, rtol=1e-3)


@given(st.text(max_size=60))
def test_any_text_round_trips_through_the_tokenizer(
    parts: tuple[Tokenizer, Renderer, Path], text: str
) -> None:
    tokenizer, _, _ = parts
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_special_tokens_are_single_tokens(parts: tuple[Tokenizer, Renderer, Path]) -> None:
    tokenizer, _, _ = parts
    for token in (*SPECIAL, *MARKERS):
        assert tokenizer.encode(token) == [tokenizer.convert_tokens_to_ids(token)]


def test_transformers_loads_the_same_tokenizer(parts: tuple[Tokenizer, Renderer, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer, _, directory = parts
    theirs = AutoTokenizer.from_pretrained(directory)
    text = "<|im_start|>user\nFix `a_b` in 7.<|im_end|>"
    assert theirs.encode(text, add_special_tokens=False) == tokenizer.encode(text)
    assert theirs.eos_token_id == tokenizer.eos_token_id


def test_the_first_head_starts_out_looking_at_the_previous_token() -> None:
    network = make_network(vocabulary=500, context=256, seed=0)
    network.set_attn_implementation("eager")
    tokens = torch.randint(0, 500, (4, 40), generator=torch.Generator().manual_seed(0))
    attention = network(input_ids=tokens, output_attentions=True).attentions[0][:, 0]
    places = torch.arange(1, 40)
    to_previous = attention[:, places, places - 1].mean().item()
    by_others = network(input_ids=tokens, output_attentions=True).attentions[0][:, 2]
    assert to_previous > 3 * by_others[:, places, places - 1].mean().item()


def test_making_a_network_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one = make_network(vocabulary=300, context=64, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    again, other = (make_network(vocabulary=300, context=64, seed=seed) for seed in (1, 2))
    assert torch.equal(one.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8), (3, 8, 24)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(orthogonalize(matrix))
    assert singular.min() > 0.3
    assert singular.max() < 1.3


def test_the_directory_is_a_whole_model(made: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(made)
    assert network.config.vocab_size == load_tokenizer(made).vocab_size
    assert network.config.eos_token_id == load_tokenizer(made).eos_token_id
    assert network.dtype == torch.bfloat16


def test_the_same_recipe_gives_the_same_bytes_and_another_seed_others(
    made: Path, tmp_path: Path
) -> None:
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        other = replace(SMALL, seed=seed)
        make_policy(tmp_path / str(seed), draw_all(other), other)
    assert hash_files(tmp_path / "0") == hash_files(made)
    assert hash_files(tmp_path / "1") != hash_files(made)


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


@pytest.mark.parametrize(
    ("scenario", "tools"),
    [
        ("linear", [["Read", "Read", "Edit", "Bash", "Submit"]]),
        ("subagent", [["Agent", "Edit", "Submit"], ["Bash", "Bash", "Submit"]]),
        ("compact", [["Edit", "Submit"], ["Read", "Read", ""]]),
        ("mixed", [["Edit", "Submit"], ["Agent", ""], ["Bash", "Bash", "Submit"]]),
    ],
)
def test_each_scenario_has_its_chains(scenario: ScenarioKind, tools: list[list[str]]) -> None:
    episodes = drawn(20, scenario=scenario, right=1.0, verify=1.0)
    chains = next(chains for project, chains in episodes if project.place == API)
    named = re.compile(r'{"name": "(\w+)"')
    found = [
        [call[1] if (call := named.search(turn.completion)) else "" for turn in chain.turns]
        for chain in chains
    ]
    assert found == tools
