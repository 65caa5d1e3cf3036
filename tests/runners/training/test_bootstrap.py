"""The tiny policy's making: exact token streams, a cache that is complete or absent, same bytes."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conf.schema import TinyModel
from runners.gateway.anthropic import to_renderer_messages
from runners.gateway.tokenizer import Renderer, Tokenizer, load_renderer, load_tokenizer
from runners.harnesses.native import agent
from runners.training.bootstrap import BootstrapError, ensure_tiny
from runners.training.bootstrap.demonstrations import (
    common_prefix,
    demonstrate,
    draw_scripts,
    reading,
    script,
    texts,
)
from runners.training.bootstrap.muon import orthogonalized
from runners.training.bootstrap.network import new_network
from runners.training.bootstrap.tiny import RECIPE
from runners.training.bootstrap.vocabulary import (
    BYTES_ONLY,
    MARKERS,
    SPECIAL,
    save_tokenizer,
    train_tokenizer,
)
from runners.training.bootstrap.warmup import _hidden_after

SMALL = replace(RECIPE, demonstrations=200, copying_steps=2)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Renderer, Path]:
    """Return a tokenizer trained on demonstrations, its renderer, and its directory."""
    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer([], size=BYTES_ONLY), directory)
    plain = load_tokenizer(directory)
    scripts = list(islice(draw_scripts(0, right=0.5), 200))
    text = list(texts(load_renderer(plain, "qwen3"), plain, scripts))
    save_tokenizer(train_tokenizer(text, size=RECIPE.vocabulary), directory)
    tokenizer = load_tokenizer(directory)
    return tokenizer, load_renderer(tokenizer, "qwen3"), directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Return a configuration whose cache is this module's own."""
    return TinyModel(
        kind="tiny",
        path=None,
        tokenizer=None,
        renderer="qwen3",
        max_context_tokens=1024,
        cache_dir=tmp_path_factory.mktemp("cache"),
        warmup_steps=2,
    )


@pytest.fixture(scope="module")
def made(model: TinyModel) -> Path:
    """Return a policy warmed up for two steps."""
    return ensure_tiny(model, seed=0, progress=silent, recipe=SMALL)


def silent(phase: str, done: int, total: int) -> None:
    """Show no progress."""


def digests(directory: Path) -> dict[str, str]:
    """Return the hash of every file."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()
    }


def turns_of_a_real_agent(
    calls: list[tuple[str, dict[str, str]]],
) -> Iterator[list[dict[str, Any]]]:
    """Yield the messages of each request that the native agent sends when it makes these calls."""
    messages = [agent.user_message("PROBLEM")]
    yield messages
    for number, (name, arguments) in enumerate(calls):
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
        result = {"role": "user", "content": [agent.tool_result(block)]}
        messages = [*messages, {"role": "assistant", "content": [block]}, result]
        yield messages


def test_a_demonstration_is_what_the_gateway_makes_of_the_native_agent(
    parts: tuple[Tokenizer, Renderer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, renderer, _ = parts
    project, steps = next(draw_scripts(7, right=0.5))
    project = replace(project, problem_statement="PROBLEM")
    for path, text in project.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    completions = [tokenizer.encode(step.completion) for step in steps]
    calls = [(step.tool, step.arguments) for step in steps[:-1]]
    tokens: list[int] = []
    for number, messages in enumerate(turns_of_a_real_agent(calls)):
        body = {
            "model": "m",
            "max_tokens": 96,
            "stream": True,
            "system": agent.SYSTEM,
            "tools": agent.TOOLS,
            "messages": messages,
        }
        rendered, tools = to_renderer_messages(body)
        if number == 0:
            prompt = renderer.render_ids(rendered, tools=tools, add_generation_prompt=True)
        else:
            turn = renderer.bridge_to_next_turn(
                tokens, completions[number - 1], rendered[-1:], tools=tools
            )
            assert turn is not None
            prompt = turn.token_ids
        tokens = prompt
    demonstration = demonstrate(renderer, tokenizer, project, steps)
    assert demonstration.tokens.tolist() == tokens + completions[-1]


def test_the_policy_is_trained_on_its_own_turns_only(
    parts: tuple[Tokenizer, Renderer, Path],
) -> None:
    tokenizer, renderer, _ = parts
    project, steps = next(draw_scripts(1, right=0.5))
    demonstration = demonstrate(renderer, tokenizer, project, steps)
    sampled = tokenizer.decode(demonstration.tokens[demonstration.sampled].tolist())
    assert sampled == "".join(step.completion for step in steps)


def test_every_completion_parses_as_one_good_tool_call(
    parts: tuple[Tokenizer, Renderer, Path],
) -> None:
    tokenizer, renderer, _ = parts
    for _, steps in islice(draw_scripts(2, right=0.5), 30):
        for step in steps:
            (call,) = renderer.parse_response(tokenizer.encode(step.completion)).tool_calls
            assert (str(call.status), call.name, call.arguments) == (
                "ok",
                step.tool,
                step.arguments,
            )


@pytest.mark.parametrize("right", [0.0, 0.45, 1.0])
def test_the_right_fix_is_shown_as_often_as_asked(right: float) -> None:
    drawn = list(islice(draw_scripts(3, right=right), 1000))
    shown = np.mean([steps[1].arguments["new_string"] == project.fix for project, steps in drawn])
    assert abs(shown - right) <= 0.05


def test_no_demonstration_edits_the_bug_into_itself() -> None:
    for project, steps in islice(draw_scripts(4, right=0.2), 200):
        assert steps[1].arguments["new_string"] != project.broken


def test_a_reading_predicts_the_right_statement(parts: tuple[Tokenizer, Renderer, Path]) -> None:
    tokenizer, _, _ = parts
    project, _ = next(draw_scripts(5, right=0.5))
    read = reading(tokenizer, project)
    assert tokenizer.decode(read.tokens.tolist()) == project.patched(project.fix)
    assert tokenizer.decode(read.tokens[read.sampled].tolist()).strip() == project.fix


def test_the_common_prefix_ends_before_the_problem(
    parts: tuple[Tokenizer, Renderer, Path],
) -> None:
    tokenizer, renderer, _ = parts
    drawn = islice(draw_scripts(6, right=0.5), 30)
    shown = [demonstrate(renderer, tokenizer, project, steps) for project, steps in drawn]
    prefix = tokenizer.decode(shown[0].tokens[: common_prefix(shown)].tolist())
    assert prefix.endswith("<|im_start|>user\nFix `") or prefix.endswith("user\nFix")


@given(st.text(max_size=60))
def test_any_text_survives_the_tokenizer(
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
    network = new_network(vocabulary=500, context=256, seed=0)
    network.set_attn_implementation("eager")
    tokens = torch.randint(0, 500, (4, 40), generator=torch.Generator().manual_seed(0))
    attention = network(input_ids=tokens, output_attentions=True).attentions[0][:, 0]
    places = torch.arange(1, 40)
    to_previous = attention[:, places, places - 1].mean().item()
    by_others = network(input_ids=tokens, output_attentions=True).attentions[0][:, 2]
    assert to_previous > 3 * by_others[:, places, places - 1].mean().item()


def test_making_a_network_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one = new_network(vocabulary=300, context=64, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    again, other = (new_network(vocabulary=300, context=64, seed=seed) for seed in (1, 2))
    assert torch.equal(one.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_a_prefix_run_once_gives_the_same_states() -> None:
    network = new_network(vocabulary=300, context=64, seed=0)
    tokens = torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1))
    tokens[:, :8] = tokens[0, :8]
    whole = network.model(input_ids=tokens).last_hidden_state[:, 8:]
    torch.testing.assert_close(_hidden_after(network, tokens, 8), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8), (3, 8, 24)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.svdvals(orthogonalized(matrix))
    assert singular.min() > 0.3
    assert singular.max() < 1.3


def test_the_entry_is_a_whole_model_directory(made: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(made)
    assert network.config.vocab_size == load_tokenizer(made).vocab_size
    assert network.config.eos_token_id == load_tokenizer(made).eos_token_id
    assert (made / "bootstrap.json").exists()


def test_the_same_inputs_give_the_same_bytes(made: Path, model: TinyModel, tmp_path: Path) -> None:
    elsewhere = model.model_copy(update={"cache_dir": tmp_path})
    again = ensure_tiny(elsewhere, seed=0, progress=silent, recipe=SMALL)
    assert digests(again) == digests(made)


def test_a_cached_policy_is_not_made_again(made: Path, model: TinyModel) -> None:
    def refuse(phase: str, done: int, total: int) -> None:
        raise AssertionError("made again")

    assert ensure_tiny(model, seed=0, progress=refuse, recipe=SMALL) == made


def test_progress_reaches_its_total(model: TinyModel, tmp_path: Path) -> None:
    shown: list[tuple[str, int, int]] = []
    ensure_tiny(
        model.model_copy(update={"cache_dir": tmp_path}),
        seed=1,
        progress=lambda *state: shown.append(state),
        recipe=SMALL,
    )
    assert [state for state in shown if state[0] == "warm-up"] == [
        ("warm-up", step, 4) for step in range(1, 5)
    ]


def test_another_seed_or_length_is_another_entry(
    made: Path, model: TinyModel, tmp_path: Path
) -> None:
    elsewhere = model.model_copy(update={"cache_dir": tmp_path, "warmup_steps": 1})
    longer = ensure_tiny(elsewhere, seed=0, progress=silent, recipe=SMALL)
    assert longer.name != made.name
    assert digests(longer)["model.safetensors"] != digests(made)["model.safetensors"]


def test_a_build_that_dies_leaves_no_entry(model: TinyModel, tmp_path: Path) -> None:
    def die(phase: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    elsewhere = model.model_copy(update={"cache_dir": tmp_path})
    with pytest.raises(KeyboardInterrupt):
        ensure_tiny(elsewhere, seed=0, progress=die, recipe=SMALL)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_clear_error(model: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    elsewhere = model.model_copy(update={"cache_dir": tmp_path / "file"})
    with pytest.raises(BootstrapError, match=r"set model\.cache_dir"):
        ensure_tiny(elsewhere, seed=0, progress=silent, recipe=SMALL)


def test_a_script_looks_edits_and_submits() -> None:
    project, _ = next(draw_scripts(0, right=0.5))
    steps = script(project, project.fix)
    assert [step.tool for step in steps] == ["Read", "Edit", "Submit"]
