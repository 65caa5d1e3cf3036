"""A dump holds what the store holds, in a published form that a validator enforces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.errors import ExitCode
from runners.trajectory import trajectory
from runners.trajectory.conversation import messages, tools
from runners.trajectory.dump import ONLY, dump_jsonl, validate
from runners.trajectory.store import RunStore
from runners.trajectory.store_error import StoreError
from tests.runners.trajectory.records import (
    CONFIG,
    a_rollout,
    a_turn,
    example_run,
    write_session,
)

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    with example_run(tmp_path / "example") as store:
        return dump_jsonl(store, tmp_path / "out").trajectories


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_dump_of_a_known_run_is_the_golden_one(dumped: Path) -> None:
    assert dumped.read_text() == (GOLDEN / "trajectories.jsonl").read_text()
    assert (dumped.parent / "summary.json").read_text() == (GOLDEN / "summary.json").read_text()
    assert validate(dumped) == []


def test_each_rollout_is_in_the_dump_once_failures_included(dumped: Path) -> None:
    records = lines(dumped)
    assert [(record["rollout_id"], record["attempt"]) for record in records] == [
        ("train-000001-00-00", 0),
        ("train-000001-00-01", 0),
        ("train-000001-00-02", 1),
        ("train-000001-00-03", 0),
    ]
    assert records[3]["outcome"]["code"] == "infra.sandbox_lost"
    assert records[3]["reward"] == {"score": None, "solved": None, "counted": False}
    assert records[3]["segments"] == []


def test_tokens_and_logprobs_are_those_of_the_turns_to_the_bit(tmp_path: Path) -> None:
    logprobs = np.array([-0.1, -1e-7, -3.3333333, -17.25], np.float32)
    ids = np.array([0, 2**31 - 1, 5, 7], np.int32)
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.add_session("train-000001-00-00-a0", {})
        store.add_turn(a_turn(output_ids=ids, output_logprobs=logprobs))
        store.put_rollout(a_rollout())
        (record,) = lines(dump_jsonl(store, tmp_path).trajectories)
    (segment,) = record["segments"]
    assert segment["tokens"] == [1, 2, 3, *ids.tolist()]
    assert segment["loss_mask"] == [0, 0, 0, 1, 1, 1, 1]
    assert np.array_equal(np.array(segment["logprobs"][3:], np.float32), logprobs)
    assert segment["weight_versions"] == [-1, -1, -1, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("only", "members"),
    [
        (None, [0, 1, 2, 3]),
        ("failed", [3]),
        ("solved", [0, 2]),
        ("unsolved", [1]),
        ("train", [0, 1, 2, 3]),
        ("eval", []),
    ],
)
def test_a_part_of_the_rollouts_can_be_chosen(
    tmp_path: Path, only: str | None, members: list[int]
) -> None:
    assert only is None or only in ONLY
    with example_run(tmp_path / "example") as store:
        report = dump_jsonl(store, tmp_path, only=only)
    assert [record["member"] for record in lines(report.trajectories)] == members
    assert report.rollouts == len(members)
    assert report.bytes == report.trajectories.stat().st_size
    assert json.loads(report.summary.read_text())["rollouts"] == len(members)


def test_an_unknown_choice_names_the_known_ones(tmp_path: Path) -> None:
    with (
        example_run(tmp_path / "example") as store,
        pytest.raises(StoreError, match="failed") as caught,
    ):
        dump_jsonl(store, tmp_path, only="faild")
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_first_prompt_is_decoded_if_there_is_a_tokenizer(tmp_path: Path) -> None:
    with example_run(tmp_path / "example") as store:
        path = dump_jsonl(store, tmp_path, decode=lambda ids: f"<{len(ids)}>").trajectories
    assert lines(path)[0]["raw_prompt"] == {"ids": [1, 2, 3], "text": "<3>"}


def test_a_dump_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    with example_run(tmp_path / "example") as store:
        before = dump_jsonl(store, tmp_path / "out").trajectories.read_bytes()
        (store.run_dir / "arrays" / "turns.bin").write_bytes(b"")
    with RunStore.open(tmp_path / "example") as store, pytest.raises(StoreError):
        dump_jsonl(store, tmp_path / "out")
    assert (tmp_path / "out" / "trajectories.jsonl").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "summary.json",
        "trajectories.jsonl",
    ]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with example_run(tmp_path / "example") as store, pytest.raises(StoreError, match="file"):
        dump_jsonl(store, tmp_path / "file" / "out")


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: record.pop("reward"), "reward: Field required"),
        (lambda record: record.update(more=1), "more: Extra inputs"),
        (lambda record: record.update(step="1"), "step: Input should be a valid integer"),
        (lambda record: record["outcome"].update(code="policy.odd"), "closed list"),
        (lambda record: record["outcome"].update({"class": "infra"}), "is not the class of"),
        (lambda record: record["reward"].update(counted=False), "reward.counted is False"),
        (lambda record: record["segments"][0]["tokens"].pop(), "different lengths"),
        (lambda record: record["segments"][0]["loss_mask"].pop(), "different lengths"),
        (lambda record: set_item(record, "loss_mask", 0, 2), "Input should be 0 or 1"),
        (lambda record: set_item(record, "loss_mask", 0, 1), "loss masks mark 5 tokens"),
        (lambda record: set_item(record, "logprobs", 3, None), "token 3 has logprob None"),
        (lambda record: set_item(record, "logprobs", 3, 0.5), "token 3 has logprob 0.5"),
        (lambda record: set_item(record, "logprobs", 0, -1.0), "was not sampled but"),
        (lambda record: set_item(record, "weight_versions", 3, -1), "weight version -1"),
        (lambda record: record["tokens"].update(trained=99), "trained 99 of 4"),
        (lambda record: record["turns"].pop(), "turns and tokens.sampled disagree"),
    ],
)
def test_a_broken_record_is_caught(dumped: Path, change: Change, says: str) -> None:
    records = lines(dumped)
    change(records[0])
    dumped.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = validate(dumped)
    assert found
    assert all(fault.startswith("line 1: ") for fault in found)
    assert any(says in fault for fault in found), found


def set_item(record: dict[str, Any], column: str, position: int, value: object) -> None:
    record["segments"][0][column][position] = value


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[:-1], "line 4: cut off"),
        (lambda text: text.replace("0.5", "NaN", 1), "line 1: not strict JSON"),
        (lambda text: text.replace("fixed", "\\ud800", 1), "line 1: not strict JSON"),
        (lambda text: "\n" + text, "line 1: not strict JSON"),
        (
            lambda text: text + text.splitlines()[0] + "\n",
            "line 5: train-000001-00-00 is on line 1",
        ),
    ],
)
def test_a_broken_file_is_caught(dumped: Path, damage: Callable[[str], str], says: str) -> None:
    dumped.write_text(damage(dumped.read_text()))
    assert any(fault.startswith(says) for fault in validate(dumped)), validate(dumped)


def test_a_file_broken_throughout_is_not_listed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_text("{}\n" * 1000)
    assert len(validate(path)) <= 101


def test_the_published_schema_is_the_generated_one() -> None:
    published = Path(trajectory.__file__).with_name("trajectory.schema.json")
    assert published.read_text() == trajectory.json_schema()


def test_a_conversation_is_rebuilt_from_its_turns() -> None:
    turns = [a_turn(index=0), a_turn(index=1)]
    rebuilt = messages(turns)
    assert [message["role"] for message in rebuilt] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    call = rebuilt[2]["tool_calls"][0]["function"]
    assert (rebuilt[2]["content"], call) == (
        "turn 0",
        {"name": "Bash", "arguments": {"command": "ls"}},
    )
    assert [tool["function"]["name"] for tool in tools(turns)] == ["Bash"]
    assert (messages([]), tools([])) == ([], [])


def test_history_sent_again_after_a_break_is_not_said_twice() -> None:
    first = a_turn(index=0)
    again = [*messages([first]), {"role": "user", "content": "go on"}]
    second = a_turn(index=1, segment=1, prompt_kept=0, request={"messages": again})
    assert messages([first, second])[:-1] == again


def test_a_rewritten_history_is_kept_beside_the_first(tmp_path: Path) -> None:
    first = a_turn(index=0)
    summary = {"role": "user", "content": "summary of what was"}
    system = messages([first])[0]
    wiped = {"messages": [system, summary]}
    second = a_turn(
        index=1, segment=1, prompt_kept=0, break_reason="history changed", request=wiped
    )
    said = messages([first, second])
    assert [message["role"] for message in said] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        store.add_session("train-000001-00-00-a0", {})
        store.add_turn(first)
        store.add_turn(second)
        store.put_rollout(a_rollout())
        path = dump_jsonl(store, tmp_path).trajectories
    assert [segment["kind"] for segment in lines(path)[0]["segments"]] == ["wipe", "final"]
    assert validate(path) == []


def test_hostile_text_makes_a_valid_line(tmp_path: Path) -> None:
    hostile = "{} %s \x00 \u2028 \ud800 \x1b[31m"
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        write_session(store, "train-000001-00-00-a0", 2)
        record = a_rollout(final_message=hostile, patch=hostile, verdict={hostile: hostile})
        store.put_rollout(replace(record, extra={"nan": float("nan"), "path": Path("/x")}))
        path = dump_jsonl(store, tmp_path).trajectories
    assert len(path.read_bytes().splitlines()) == 1
    assert validate(path) == []
