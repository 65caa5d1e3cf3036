"""Examples for supervised fine-tuning: what is marked, left out, filtered, and read by others."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from runners.observe.export import sft
from runners.observe.export.build import build_trajectory
from runners.observe.export.contract import ExportedRun
from runners.observe.export.run_dump import DumpError, dump, parse_filter
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import Turn
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG, a_rollout, a_turn, branched_run, example_run, write_session
from tests.fakes.turn_graphs import sessions


def lines(out: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "sft" / name).open()]


@pytest.fixture
def branched(tmp_path: Path) -> Path:
    with branched_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("sft", "jsonl"))
    return tmp_path


def test_a_chain_is_a_line_of_both_files_but_for_side_requests(branched: Path) -> None:
    messages, tokens = lines(branched, sft.MESSAGES), lines(branched, sft.TOKENS)
    assert [line["kind"] for line in tokens] == ["edit", "subagent", "wipe", "compaction", "final"]
    assert [line["id"] for line in messages] == [line["id"] for line in tokens]
    assert [line["thread"] for line in tokens] == ["main", "agent-7", "main", "main", "main"]
    assert tokens[0]["id"] == "train-000001-00-00/1"
    assert {(line["reward"], line["solved"], line["outcome"]) for line in tokens} == {
        (1.0, True, "policy.finished")
    }
    for name in (sft.MESSAGES, sft.TOKENS):
        assert sft.validate(branched / "sft" / name) == []


def test_tokens_and_masks_are_those_of_the_segment(branched: Path) -> None:
    (record,) = [json.loads(line) for line in (branched / "trajectories.jsonl").open()]
    segments = [segment for segment in record["segments"] if segment["kind"] != "side"]
    for line, segment in zip(lines(branched, sft.TOKENS), segments, strict=True):
        assert line["input_ids"] == segment["tokens"]
        assert line["assistant_masks"] == segment["loss_mask"]


def test_a_reply_is_marked_in_the_chain_that_sampled_it_and_is_context_elsewhere(
    branched: Path,
) -> None:
    wipe, _, retaken, summary, final = lines(branched, sft.MESSAGES)
    weights = [[m.get("weight") for m in line["messages"]] for line in (wipe, retaken, summary)]
    assert weights == [
        [None, None, 1, None, 1],
        [None, None, 0, None, 1],
        [None, None, 0, None, 0, None, 1],
    ]
    call = wipe["messages"][2]["tool_calls"][0]
    assert call["function"]["arguments"]["prompt"] == "Look at sum.py."
    assert wipe["tools"][0]["function"]["name"] == "Bash"
    assert [m.get("weight") for m in final["messages"]] == [None, None, None, 1]


@given(sessions())
def test_each_sampled_token_and_each_reply_is_marked_once(
    session: tuple[list[Turn], list[tuple[list[int], list[int]]]],
) -> None:
    turns, _ = session
    rollout = build_trajectory(a_rollout(), turns, ExportedRun("run", {}, None))
    marked: Counter[str] = Counter()
    for chain in rollout.chains:
        found = sft.build_lines(rollout, chain, ExportedRun("run", {}, None))
        if sft.TOKENS in found:
            marked["tokens"] += int(found[sft.TOKENS]["assistant_masks"].sum())
        if sft.MESSAGES in found:
            weights = (m.get("weight", 0) for m in found[sft.MESSAGES]["messages"])
            marked["replies"] += sum(weights)
    assert marked["tokens"] == sum(turn.output_tokens for turn in turns)
    assert marked["replies"] == sum(turn.finish_reason != "length" for turn in turns)


def test_a_reply_that_was_cut_off_is_marked_as_tokens_only(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        record = a_rollout()
        store.add_session(record.session_id, {})
        store.add_turn(a_turn(finish_reason="length"))
        store.put_rollout(record)
        dump(store, tmp_path, formats=("sft",))
    assert lines(tmp_path, sft.MESSAGES) == []
    assert [line["assistant_masks"] for line in lines(tmp_path, sft.TOKENS)] == [[0, 0, 0, 1, 1]]


def test_rollouts_without_a_reward_are_left_out_and_others_by_their_reward(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path / "all", formats=("sft",))
        good = parse_filter(min_reward=1.0)
        dump(store, tmp_path / "good", formats=("sft", "jsonl"), selection=good)
        solved = parse_filter(only="solved")
        dump(store, tmp_path / "solved", formats=("sft",), selection=solved)
    rewards = [line["reward"] for line in lines(tmp_path / "all", sft.TOKENS)]
    assert rewards == [1.0, 0.0, 1.0]
    assert [line["reward"] for line in lines(tmp_path / "good", sft.TOKENS)] == [1.0, 1.0]
    assert lines(tmp_path / "solved", sft.MESSAGES) == lines(tmp_path / "good", sft.MESSAGES)
    assert len((tmp_path / "good" / "trajectories.jsonl").read_text().splitlines()) == 2
    assert json.loads((tmp_path / "good" / "summary.json").read_text())["min_reward"] == 1.0


def test_an_ungraded_outcome_is_left_out_although_its_record_has_a_reward(tmp_path: Path) -> None:
    lost = Outcome(OutcomeCode.INFRA_SANDBOX_LOST, Stage.HARNESS, "gone")
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        record = a_rollout(outcome=lost)
        write_session(store, record.session_id, 1)
        store.put_rollout(record)
        dump(store, tmp_path, formats=("sft",))
    assert lines(tmp_path, sft.TOKENS) == []


def test_what_is_the_same_as_an_earlier_line_can_be_left_out(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path / "unique", formats=("sft",), unique=True)
        dump(store, tmp_path / "all", formats=("sft",))
        with pytest.raises(DumpError, match="--format sft"):
            dump(store, tmp_path / "none", unique=True)
    all_lines = lines(tmp_path / "all", sft.TOKENS)
    assert len({line["fingerprint"] for line in all_lines}) == 1
    assert lines(tmp_path / "unique", sft.TOKENS) == all_lines[:1]
    assert lines(tmp_path / "unique", sft.MESSAGES) == lines(tmp_path / "all", sft.MESSAGES)[:1]


def line_of(turns: list[Turn], chain: int = 0) -> dict[str, Any]:
    run = ExportedRun("run", {}, None)
    rollout = build_trajectory(a_rollout(), turns, run)
    return sft.build_lines(rollout, rollout.chains[chain], run)[sft.MESSAGES]


def test_the_same_tokens_with_another_mask_are_another_example() -> None:
    sampled = a_turn()
    given = replace(
        sampled,
        prompt_new=np.array([1, 2, 3, 100], np.int32),
        output_ids=sampled.output_ids[1:],
        output_logprobs=sampled.output_logprobs[1:],
    )
    assert line_of([sampled])["fingerprint"] != line_of([given])["fingerprint"]


def test_a_reply_that_the_agent_program_put_into_a_request_is_context() -> None:
    copied = {"role": "assistant", "content": "I summed up."}
    turn = a_turn(request={"messages": [{"role": "user", "content": "Go on."}, copied]})
    weights = [message.get("weight") for message in line_of([turn])["messages"]]
    assert weights == [None, 0, 1]


def test_another_mask_or_other_tokens_have_another_fingerprint(branched: Path) -> None:
    found = lines(branched, sft.TOKENS)
    assert len({line["fingerprint"] for line in found}) == len(found) == 5


def test_a_run_of_texts_has_messages_alone_and_knows_the_same_conversation(tmp_path: Path) -> None:
    config = CONFIG | {"engine": {"kind": "openai"}}
    empty = np.zeros(0, np.int32)
    with RunStore.create(tmp_path / "run", config) as store:
        for member, text in enumerate(("a", "a", "b")):
            record = a_rollout(f"train-000001-00-{member:02}")
            store.add_session(record.session_id, {})
            turn = a_turn(record.session_id, prompt_new=empty, output_ids=empty, has_ids=False)
            call = {**turn.reply["tool_calls"][0], "id": f"random-{member}"}
            reply = {**turn.reply, "content": text, "tool_calls": [call]}
            result = {"role": "tool", "tool_call_id": f"random-{member}", "content": "ok"}
            turn = replace(turn, request={"messages": [*turn.request["messages"], result]})
            store.add_turn(replace(turn, output_logprobs=empty.astype(np.float32), reply=reply))
            store.put_rollout(record)
        dump(store, tmp_path, formats=("sft",), unique=True)
    assert not (tmp_path / "sft" / sft.TOKENS).exists()
    said = [line["messages"][-1]["content"] for line in lines(tmp_path, sft.MESSAGES)]
    assert said == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"assistant_masks": [0, 1]}, "different lengths"),
        ({"assistant_masks": [1, 0, 0, 1, 1]}, "the first token"),
        ({"assistant_masks": [0] * 5}, "marks nothing"),
        ({"reward": "1"}, "reward"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_line_that_contradicts_itself_is_found(
    tmp_path: Path, change: dict[str, Any], fault: str
) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("sft",))
    path = tmp_path / "sft" / sft.TOKENS
    good = lines(tmp_path, sft.TOKENS)[0]
    good = good | {"input_ids": [1, 2, 3, 4, 5], "assistant_masks": [0, 0, 0, 1, 1]}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | {"id": "other"} | change) + "\n")
    (found,) = sft.validate(path)
    assert found.startswith("line 2: ")
    assert fault in found


def test_a_conversation_that_marks_nothing_or_a_user_is_found(tmp_path: Path) -> None:
    with example_run(tmp_path / "run") as store:
        dump(store, tmp_path, formats=("sft",))
    path = tmp_path / "sft" / sft.MESSAGES
    good = lines(tmp_path, sft.MESSAGES)[0]
    bad = [good["messages"][:1], [{**good["messages"][1], "weight": 1}]]
    path.write_text("".join(json.dumps(good | {"messages": m}) + "\n" for m in bad))
    found = sft.validate(path)
    assert len(found) == 3, "and both lines have one id"
    assert "weight is 1 nowhere" in found[0]


def test_datasets_reads_both_files_with_the_columns_that_trl_takes(
    branched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(branched / "hf"))
    datasets = pytest.importorskip("datasets", reason="checks what another library reads")

    for name, columns in (
        (sft.MESSAGES, ("messages", "tools")),
        (sft.TOKENS, ("input_ids", "assistant_masks")),
    ):
        file = str(branched / "sft" / name)
        read = datasets.load_dataset(
            "json", data_files=file, split="train", cache_dir=str(branched / "cache")
        )
        for row, line in zip(read, lines(branched, name), strict=True):
            assert {column: row[column] for column in columns} == {c: line[c] for c in columns}
