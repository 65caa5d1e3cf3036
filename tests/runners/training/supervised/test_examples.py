"""Examples of a file: what is read, what is refused, and what a step trains on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.compose import compose
from conf.errors import ConfigError
from runners.campaigns.preflight.start_check import find_start_errors
from runners.gateway.texts.chat_template import make_example_renderer
from runners.observe.export.run_dump import dump
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import (
    Renderer,
    Tokenizer,
    load_renderer,
    load_tokenizer,
    write_tiny_tokenizer,
)
from runners.services.policy import (
    describe_examples,
    keep_examples,
    open_examples,
)
from runners.training.supervised.examples import ExampleReader, ExamplesError, load_examples
from tests.fakes.records import CONFIG, example_run

TOKENS = {"input_ids": [5, 6, 7, 8], "assistant_masks": [0, 0, 1, 1]}
CALL = {"type": "function", "id": "c", "function": {"name": "Bash", "arguments": {"command": "ls"}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You repair programs."},
    {"role": "user", "content": "The sum is wrong."},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "sum.py"},
    {"role": "assistant", "content": "Done."},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "Bash",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


def write(path: Path, *examples: Any) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in examples))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(directory)
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def renderer(tokenizer: Tokenizer) -> Renderer:
    return load_renderer(tokenizer, "qwen3")


def trained_text(reader: ExampleReader, tokenizer: Tokenizer, example: Any) -> str:
    ids, mask = reader.read(json.dumps(example).encode())
    return tokenizer.decode(ids[mask].tolist())


def test_tokens_are_taken_exactly_with_their_mask(tmp_path: Path) -> None:
    found = load_examples(write(tmp_path / "x.jsonl", TOKENS), ExampleReader(8), seed=0)
    assert (found.tokens, found.trained) == (4, 2)
    (sample,) = found.batch(1, 1)
    assert sample.tokens.tolist() == [5, 6, 7, 8]
    assert sample.loss_mask.tolist() == [False, False, True, True]
    assert sample.advantage == 1.0


def test_a_conversation_is_rendered_and_its_replies_are_trained_with_their_ends(
    tokenizer: Tokenizer, renderer: Renderer
) -> None:
    reader = ExampleReader(4096, renderer=renderer)
    example = {"messages": TALK, "tools": TOOLS}
    ids, _ = reader.read(json.dumps(example).encode())
    assert ids.tolist() == renderer.render_ids(TALK, tools=TOOLS)
    said = trained_text(reader, tokenizer, example)
    assert said.startswith("I look.")
    assert '"command": "ls"' in said
    assert said.endswith("Done.<|im_end|>")
    assert "repair" not in said
    assert "sum" not in said


def test_control_tokens_are_the_template_s_and_the_reply_s(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiny_tokenizer(tmp_path))
    turn = "<|im_end|>\n<|im_start|>user"
    talk = [
        *TALK[:3],
        {**TALK[3], "content": turn},
        {**TALK[4], "content": "<think>\nHm.\n</think>\n\nSo."},
    ]
    marks = ("<|im_start|>", "<think>")
    counts = {}
    for setting in ("text", "tokens"):
        renderer, guard = make_example_renderer(tmp_path, "qwen3", setting)
        reader = ExampleReader(4096, renderer=renderer, guard=guard)
        ids, _ = reader.read(json.dumps({"messages": talk, "tools": TOOLS}).encode())
        counts[setting] = [
            ids.tolist().count(tokenizer.backend.token_to_id(mark)) for mark in marks
        ]
        assert turn in tokenizer.decode(ids.tolist())
    assert counts == {"text": [5, 1], "tokens": [6, 1]}


def test_a_reply_of_weight_0_is_context(tokenizer: Tokenizer, renderer: Renderer) -> None:
    reader = ExampleReader(4096, renderer=renderer)
    messages = [*TALK[:2], {**TALK[2], "weight": 0}, TALK[3], {**TALK[4], "weight": 1}]
    example = {"messages": messages, "tools": TOOLS}
    said = trained_text(reader, tokenizer, example)
    assert said.endswith("Done.<|im_end|>")
    assert "look" not in said


def test_tools_and_arguments_may_be_texts_as_openai_writes_them(
    tokenizer: Tokenizer, renderer: Renderer
) -> None:
    reader = ExampleReader(4096, renderer=renderer)
    function = {"name": "Bash", "arguments": json.dumps({"command": "ls"})}
    messages = [*TALK[:2], {**TALK[2], "tool_calls": [{**CALL, "function": function}]}, *TALK[3:]]
    as_texts = reader.read(json.dumps({"messages": messages, "tools": json.dumps(TOOLS)}).encode())
    as_objects = reader.read(json.dumps({"messages": TALK, "tools": TOOLS}).encode())
    assert as_texts[0].tolist() == as_objects[0].tolist()


def test_an_export_is_read_in_both_forms(tmp_path: Path, renderer: Renderer) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("sft",))
    reader = ExampleReader(4096, renderer=renderer)
    tokens = load_examples(tmp_path / "sft" / "tokens.jsonl", reader, seed=0)
    messages = load_examples(tmp_path / "sft" / "messages.jsonl", reader, seed=0)
    assert len(tokens.places) == len(messages.places) == 3
    assert tokens.trained == 3 * 4


@pytest.mark.parametrize(
    ("example", "fault"),
    [
        ([1], "no JSON object"),
        ({"text": "x"}, "neither input_ids nor messages (its keys: text)"),
        (TOKENS | {"assistant_masks": [0, 1]}, "assistant_masks: 2 of them for 4 input_ids"),
        (TOKENS | {"assistant_masks": [0, 0, 1, 2]}, "assistant_masks[3]: 2 is neither 0 nor 1"),
        (
            TOKENS | {"assistant_masks": [False, False, True, True]},
            "assistant_masks[0]: false is neither 0 nor 1",
        ),
        (TOKENS | {"input_ids": [True, 6, 7, 8]}, "input_ids[0]: true is no token id"),
        (TOKENS | {"input_ids": "abc"}, 'input_ids: "abc" is no list'),
        (TOKENS | {"assistant_masks": [0, 0, 0, 0]}, "no token to train"),
        (TOKENS | {"assistant_masks": [1, 0, 0, 0]}, "the first token"),
        (TOKENS | {"input_ids": [5, 6, 7, -8]}, "input_ids[3]: -8 is no token id"),
        (TOKENS | {"input_ids": [5, 6, 7, 100]}, "id 100 is not among the policy's 100 (0 to"),
        ({"input_ids": [5] * 5001, "assistant_masks": [0] + [1] * 5000}, "5,001 tokens, more than"),
        ({"messages": TALK[:2]}, "no assistant's message to train"),
        (
            {"messages": [{"content": "x"}]},
            "messages: role null is none of system, developer, user",
        ),
        (
            {"messages": [{"role": "usr", "content": "x"}, *TALK[2:]]},
            'messages: role "usr" is none of system, developer, user, assistant, tool',
        ),
        ({"messages": ["x"]}, 'messages: "x" is no object with role and content'),
        ({"messages": [*TALK[:2], {**TALK[4], "weight": True}]}, "weight true is neither 0 nor 1"),
        ({"messages": [*TALK[:2], {**TALK[4], "weight": 2}]}, "weight 2 is neither 0 nor 1"),
        ({"messages": [*TALK[:2], {**TALK[2], "tool_calls": [3]}]}, "without a function"),
        ({"messages": TALK, "tools": 3}, "messages: TypeError"),
        ({"messages": TALK, "tools": "{"}, "tools is not JSON ("),
        (
            {
                "messages": [
                    *TALK[:2],
                    {
                        **TALK[2],
                        "tool_calls": [{"function": {"name": "Bash", "arguments": "ls"}}],
                    },
                ]
            },
            "messages: the arguments of a tool call is not JSON (",
        ),
    ],
)
def test_a_line_that_cannot_be_trained_is_named(
    example: Any, fault: str, tmp_path: Path, renderer: Renderer
) -> None:
    path = write(tmp_path / "x.jsonl", TOKENS, example)
    with pytest.raises(ExamplesError, match="line 2: ") as caught:
        load_examples(path, ExampleReader(5000, 100, renderer), seed=0)
    assert fault in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_missing_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none", 3), (tmp_path, 3), (write(tmp_path / "empty"), 5)):
        with pytest.raises(ExamplesError, match=r"trainer\.sft\.path=.*: name a file") as caught:
            load_examples(path, ExampleReader(8), seed=0)
        assert caught.value.exit_code == code


def test_a_line_that_is_no_json_is_named_with_its_place_in_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", TOKENS)
    path.write_text(path.read_text() + '{"input_ids": [1,}\n\n' + json.dumps(TOKENS) + "\n")
    with pytest.raises(ExamplesError) as caught:
        load_examples(path, ExampleReader(8), seed=0)
    head, second, third = str(caught.value).splitlines()
    assert head.startswith(f"trainer.sft.path={path}: leave out or correct these lines")
    assert second.startswith("line 2: the line is not JSON (")
    assert second.endswith("at its character 18)")
    assert third == "line 3: an empty line; leave it out"


def test_ids_that_the_tiny_policy_lacks_are_named_before_a_run_starts(tmp_path: Path) -> None:
    """And conversations that are longer than its window."""
    talk = {"messages": TALK, "tools": TOOLS}
    path = write(tmp_path / "x.jsonl", talk, TOKENS | {"input_ids": [5, 6, 7, 1000]})
    lines = [f"trainer.sft.path={path}", "trainer.sft.steps=1"]
    config = compose([*lines, "model.max_context_tokens=98"])
    (error,) = find_start_errors([config])
    faults = str(error).splitlines()[1:]
    assert "line 2: input_ids: id 1000 is not among the policy's 844" in faults[-1]
    assert any("line 1: " in fault and "tokens, more than" in fault for fault in faults)


@given(number=st.integers(1, 12), size=st.integers(1, 30), seed=st.integers(0, 3))
def test_every_epoch_has_each_example_once_whatever_the_batch(
    number: int, size: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("x") / "x.jsonl"
    write(path, *(TOKENS | {"input_ids": [n, 6, 7, 8]} for n in range(number)))
    examples = load_examples(path, ExampleReader(8), seed)
    steps = 2 * number
    taken = [int(s.tokens[0]) for step in range(1, steps + 1) for s in examples.batch(step, size)]
    for epoch in range(len(taken) // number):
        assert sorted(taken[epoch * number : (epoch + 1) * number]) == list(range(number))
    again = load_examples(path, ExampleReader(8), seed).batch(2, size)
    assert [int(s.tokens[0]) for s in again] == taken[size : 2 * size], "a resumed run goes on"


def test_epochs_differ_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x", *(TOKENS | {"input_ids": [n, 6, 7, 8]} for n in range(16)))
    examples = load_examples(path, ExampleReader(8), seed=0)
    orders = {tuple(int(s.tokens[0]) for s in examples.batch(step, 16)) for step in range(1, 6)}
    assert len(orders) == 5


def test_a_run_goes_on_with_the_file_that_it_began_with(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", TOKENS)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for _ in "ab":
            keep_examples(store, load_examples(path, ExampleReader(8), seed=0))
        write(path, TOKENS, TOKENS)
        with pytest.raises(ExamplesError, match="not the file with which the run began"):
            keep_examples(store, load_examples(path, ExampleReader(8), seed=0))
        keep_examples(store, None)


def test_a_run_opens_its_examples_with_the_policys_tokenizer_and_counts_them(
    tmp_path: Path,
) -> None:
    write_tiny_tokenizer(tmp_path)
    path = write(tmp_path / "x.jsonl", {"messages": TALK, "tools": TOOLS}, TOKENS)
    sft = [f"trainer.sft.path={path}", "trainer.sft.steps=3", "trainer.sft.batch=4", "run.steps=5"]
    config = compose(sft)
    assert (found := open_examples(config, tmp_path, None)) is not None
    assert found.tokens > 100
    assert "2 with " in (text := describe_examples(config, found))
    assert "3 steps of 4 are 6 epochs" in text
    assert open_examples(compose(["run.steps=1"]), tmp_path, None) is None
    unread = open_examples(config, None, None)
    assert unread is not None
    assert unread.tokens == 4, "without a tokenizer conversations are checked, not rendered"


def test_faults_of_the_file_are_found_before_a_run_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", TOKENS | {"assistant_masks": []})
    config = compose([f"trainer.sft.path={path}", "trainer.sft.steps=1"])
    (error,) = find_start_errors([config])
    assert "line 1: assistant_masks" in str(error)
    (error,) = find_start_errors([compose(["trainer.sft.path=/none", "trainer.sft.steps=1"])])
    assert error.exit_code == 3
    error = find_start_errors([config])[0]
    assert error.exit_code == 5


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["trainer.sft.path=x.jsonl"], "trainer.sft.steps=0: no step would train"),
        (["trainer.sft.steps=1"], "trainer.sft.path=null: there are no examples"),
        (
            ["trainer.sft.path=x.jsonl", "trainer.sft.steps=3", "run.steps=2"],
            "trainer.sft.steps=3 are the first of run.steps=2",
        ),
    ],
)
def test_steps_without_examples_and_examples_without_steps_are_refused(
    lines: list[str], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        compose(lines)


def test_every_line_is_an_example_of_its_own_place(tmp_path: Path) -> None:
    path = write(tmp_path / "x", *(TOKENS | {"input_ids": [n, n, n, n]} for n in (1, 22, 333)))
    examples = load_examples(path, ExampleReader(8), seed=1)
    counts = Counter(int(sample.tokens[0]) for sample in examples.batch(1, 30))
    assert counts == {1: 10, 22: 10, 333: 10}
    assert all(np.array_equal(s.logprobs, np.zeros(4)) for s in examples.batch(1, 3))
