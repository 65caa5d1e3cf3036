"""A dump holds what the store holds, in a published form that a validator enforces."""

from __future__ import annotations

import json
import math
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from conf.errors import ExitCode
from runners.observe.export import trajectory
from runners.observe.export.build import build_trajectory
from runners.observe.export.contract import ExportedRun
from runners.observe.export.conversation import join_messages, latest_tools
from runners.observe.export.formats import FORMATS
from runners.observe.export.jsonl import NAME, validate
from runners.observe.export.run_dump import (
    ONLY,
    DumpError,
    RolloutFilter,
    dump,
    parse_filter,
    parse_formats,
)
from runners.observe.export.slime import ROLLOUTS_PER_FILE
from runners.observe.export.validation import find_contradictions
from runners.records.record import Turn
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.text import dumps
from tests.fakes.records import (
    CONFIG,
    a_rollout,
    a_turn,
    branched_run,
    branched_turns,
    example_run,
    write_session,
)
from tests.fakes.turn_graphs import sessions

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    with example_run(tmp_path / "example") as store:
        dump(store, tmp_path / "out")
    return tmp_path / "out" / NAME


@pytest.fixture
def branched(tmp_path: Path) -> Path:
    with branched_run(tmp_path / "branched") as store:
        dump(store, tmp_path / "out")
    return tmp_path / "out" / NAME


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_dump_of_a_known_run_is_the_golden_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for name, make in (("example", example_run), ("branched", branched_run)):
        with make(tmp_path / name) as store:
            dump(store, tmp_path)
        for file, kept in ((NAME, f"{name}.jsonl"), ("summary.json", f"{name}-summary.json")):
            if request.config.getoption("--update-golden"):
                (GOLDEN / kept).write_text((tmp_path / file).read_text())
            assert (tmp_path / file).read_text() == (GOLDEN / kept).read_text()
        assert validate(tmp_path / NAME) == []


def test_every_branch_is_named_and_has_its_conversation(branched: Path) -> None:
    (record,) = lines(branched)
    named = [(b["kind"], b["thread"], b["agent_type"], b["turns"]) for b in record["branches"]]
    assert named == [
        ("side", "main", None, [0]),
        ("edit", "main", None, [1, 4]),
        ("subagent", "agent-7", "explorer", [2, 3]),
        ("wipe", "main", None, [1, 5]),
        ("compaction", "main", None, [1, 4, 6]),
        ("final", "main", None, [7]),
    ]
    said = [[message["content"] for message in b["messages"]] for b in record["branches"]]
    assert said[3][2:] == ["I ask an explorer.", "It squares.", "Not so."]
    assert said[4][-2:] == ["Sum up.", "The sum squares twice."]
    assert record["messages"] == record["branches"][5]["messages"]
    assert [turn["parent"] for turn in record["turns"]] == [None, None, None, 2, 1, 1, 4, None]
    assert record["branches"][3]["break_reason"] == "edit: taken back"
    assert record["raw_prompt"]["ids"] == record["segments"][1]["tokens"][:4]


def test_a_prefix_that_chains_share_is_masked_in_once(branched: Path) -> None:
    (record,) = lines(branched)
    shared, own = record["segments"][1], record["segments"][3]
    assert shared["tokens"][:7] == own["tokens"][:7]
    assert shared["loss_mask"] == [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1]
    assert own["loss_mask"] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert (shared["own_turns"], own["own_turns"]) == ([1, 4], [5])


@given(sessions())
def test_the_trajectory_of_any_session_has_no_contradiction(
    session: tuple[list[Turn], list[tuple[list[int], list[int]]]],
) -> None:
    turns, _ = session
    made = build_trajectory(
        a_rollout(trained_tokens=0), turns, ExportedRun("run", {}, None)
    ).trajectory
    assert find_contradictions(trajectory.Trajectory.model_validate_json(dumps(made))) == []


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
        dump(store, tmp_path)
    (record,) = lines(tmp_path / NAME)
    (segment,) = record["segments"]
    assert segment["tokens"] == [1, 2, 3, *ids.tolist()]
    assert segment["loss_mask"] == [0, 0, 0, 1, 1, 1, 1]
    assert np.array_equal(np.array(segment["logprobs"][3:], np.float32), logprobs)
    assert segment["weight_versions"] == [-1, -1, -1, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("selection", "members"),
    [
        (RolloutFilter(), [0, 1, 2, 3]),
        (RolloutFilter(only="failed"), [3]),
        (RolloutFilter(only="solved"), [0, 2]),
        (RolloutFilter(only="unsolved"), [1]),
        (RolloutFilter(only="train"), [0, 1, 2, 3]),
        (RolloutFilter(only="eval"), []),
        (RolloutFilter(steps=range(1, 2)), [0, 1, 2, 3]),
        (RolloutFilter(steps=range(2, 9)), []),
        (RolloutFilter(tasks=("sum-of-squares-001",)), [0, 1, 2, 3]),
        (RolloutFilter(tasks=("other", "sum-*")), [0, 1, 2, 3]),
        (RolloutFilter(tasks=("sum",)), []),
        (RolloutFilter(only="failed", tasks=("sum-*",)), [3]),
    ],
)
def test_filters_select_rollouts(
    tmp_path: Path, selection: RolloutFilter, members: list[int]
) -> None:
    assert selection.only is None or selection.only in ONLY
    with example_run(tmp_path / "example") as store:
        report = dump(store, tmp_path / "out", selection=selection)
    assert [record["member"] for record in lines(tmp_path / "out" / NAME)] == members
    assert report.rollouts == len(members)
    assert report.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["rollouts"] == len(members)


def test_filters_are_parsed() -> None:
    assert parse_filter() == RolloutFilter()
    assert parse_filter("eval", "5") == RolloutFilter(only="eval", steps=range(5, 6))
    assert parse_filter(None, "3-7", ["a", "b*"]) == RolloutFilter(
        steps=range(3, 8), tasks=("a", "b*")
    )
    assert parse_formats("html, jsonl,html") == ("html", "jsonl")


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda: parse_filter("faild"), "--only faild: did you mean failed?"),
        (lambda: parse_filter("x"), "choose one of train, eval"),
        (lambda: parse_filter(None, "7-3"), "--step 7-3: give a step"),
        (lambda: parse_filter(None, "last"), "--step last: give a step"),
        (lambda: parse_filter(None, "9" * 5000), "give a step"),
        (lambda: parse_filter(min_reward=math.nan), "--min-reward nan: give a number"),
        (lambda: parse_formats("jsonl,parket"), "--format parket: did you mean parquet?"),
        (lambda: parse_formats(""), "choose one of jsonl, atif, parquet, slime, sft, html"),
        (lambda: parse_formats("png"), "--format png is gone: --format html draws the same"),
    ],
)
def test_an_unknown_filter_names_the_known_ones(read: Callable[[], object], says: str) -> None:
    with pytest.raises(DumpError) as caught:
        read()
    assert says in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE


def test_the_first_prompt_is_decoded_if_there_is_a_tokenizer(tmp_path: Path) -> None:
    with example_run(tmp_path / "example") as store:
        dump(store, tmp_path, decode=lambda ids: f"<{len(ids)}>")
    assert lines(tmp_path / NAME)[0]["raw_prompt"] == {"ids": [1, 2, 3], "text": "<3>"}


def test_a_dump_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    with example_run(tmp_path / "example") as store:
        dump(store, tmp_path / "out", formats=tuple(FORMATS))
        before = contents(tmp_path / "out")
        (store.run_dir / "arrays" / "turns.bin").write_bytes(b"")
    with RunStore.open(tmp_path / "example") as store, pytest.raises(StoreError):
        dump(store, tmp_path / "out", formats=tuple(FORMATS))
    assert contents(tmp_path / "out") == before


def test_a_dump_replaces_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "out" / "mine").mkdir(parents=True)
    with example_run(tmp_path / "example") as store:
        dump(store, tmp_path / "out", formats=("atif", "slime"))
        assert len(list((tmp_path / "out" / "atif").iterdir())) == 4
        report = dump(
            store,
            tmp_path / "out",
            formats=("atif", "slime"),
            selection=RolloutFilter(only="failed"),
        )
    written = sorted(path.name for path in (tmp_path / "out").rglob("*.*"))
    assert written == ["samples.jsonl", "summary.json", "train-000001-00-03.json"]
    assert sorted(file.path.name for file in report.files) == written
    assert [place.name for place in report.paths] == ["atif", "slime", "summary.json"]
    assert (tmp_path / "out" / "mine").is_dir()


def test_a_directory_that_no_export_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out" / "atif").mkdir(parents=True)
    (tmp_path / "out" / "atif" / "thesis.tex").touch()
    with example_run(tmp_path / "example") as store, pytest.raises(DumpError, match=r"thesis\.tex"):
        dump(store, tmp_path / "out", formats=("atif",))
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["atif", "thesis.tex"]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with example_run(tmp_path / "example") as store, pytest.raises(DumpError) as caught:
        dump(store, tmp_path / "file" / "out")
    assert str(tmp_path / "file" / "out") in str(caught.value)
    assert "choose another --out" in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("form", FORMATS)
def test_an_exporter_keeps_no_rollout_that_it_has_taken(tmp_path: Path, form: str) -> None:
    most = {"parquet": 256}.get(form, 1)  # a row group
    seen: list[weakref.ref[np.ndarray]] = []
    run = ExportedRun("run", {}, lambda ids: "x" * len(ids))
    with FORMATS[form](tmp_path, run) as add:
        for number in range(most + 50):
            record = a_rollout(f"train-000001-{number:03}-00")
            rollout = build_trajectory(record, branched_turns(record.session_id), run)
            seen.append(weakref.ref(rollout.chains[0].tokens))
            add(rollout)
            del rollout
            assert sum(ref() is not None for ref in seen) <= most


@pytest.mark.integration
def test_memory_does_not_grow_with_the_number_of_rollouts(tmp_path: Path) -> None:
    peaks = []
    for rollouts in (ROLLOUTS_PER_FILE, ROLLOUTS_PER_FILE + 40):  # both fill a file of slime's
        with branched_run(tmp_path / str(rollouts), rollouts) as store:
            tracemalloc.start()
            dump(store, tmp_path / "out", formats=("jsonl", "atif", "slime", "sft", "html"))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000, "40 rollouts of 25 kB"


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


def at(record: dict[str, Any], part: str, index: int) -> dict[str, Any]:
    found: dict[str, Any] = record[part][index]
    return found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: at(r, "segments", 3)["tokens"].__setitem__(0, 99), "segment 3: its first 7"),
        (lambda r: at(r, "segments", 3).update(own_turns=[1, 5]), "not each of 8 turns once"),
        (lambda r: at(r, "segments", 3).update(turns=[5, 1]), "are not the last of its turns"),
        (lambda r: at(r, "turns", 5).update(segment=1), "turn 5 is of segment 1, not 3"),
        (lambda r: at(r, "turns", 5).update(parent=4), "do not continue one another"),
        (lambda r: at(r, "turns", 5).update(prompt_tokens=8), "its last turn ends at 11 of 12"),
        (lambda r: at(r, "branches", 2).update(thread="main"), "not the same chains"),
        (lambda r: r["branches"].pop(), "not the same chains"),
        (lambda r: r["messages"].pop(), "not those of the final branch"),
        (lambda r: move_mask(r), "the mask is not on the outputs of its own turns"),
        (lambda r: r["tokens"].update(context=1), "tokens.context is 1"),
        (lambda r: r["raw_prompt"]["ids"].pop(), "raw_prompt has 3 ids, not 4"),
    ],
)
def test_branches_that_do_not_fit_together_are_caught(
    branched: Path, change: Change, says: str
) -> None:
    (record,) = lines(branched)
    change(record)
    branched.write_text(json.dumps(record) + "\n")
    found = validate(branched)
    assert any(says in fault for fault in found), found


def move_mask(record: dict[str, Any]) -> None:
    """Train a shared output in the chain that does not own it."""
    owner, other = record["segments"][1], record["segments"][3]
    for column, nothing in (("loss_mask", 0), ("logprobs", 0.0), ("weight_versions", -1)):
        other[column][4:7] = owner[column][4:7]
        owner[column][4:7] = [nothing] * 3


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


def test_a_conversation_is_rebuilt_from_its_turns() -> None:
    turns = [a_turn(index=0), a_turn(index=1)]
    rebuilt = join_messages(turns)
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
    assert [tool["function"]["name"] for tool in latest_tools(turns)] == ["Bash"]
    assert (join_messages([]), latest_tools([])) == ([], [])


def test_hostile_text_makes_a_valid_line(tmp_path: Path) -> None:
    hostile = "{} %s \x00 \u2028 \ud800 \x1b[31m"
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        write_session(store, "train-000001-00-00-a0", 2)
        record = a_rollout(final_message=hostile, patch=hostile, verdict={hostile: hostile})
        store.put_rollout(replace(record, extra={"nan": float("nan"), "path": Path("/x")}))
        dump(store, tmp_path / "out", formats=tuple(FORMATS))
    path = tmp_path / "out" / NAME
    assert len(path.read_bytes().splitlines()) == 1
    assert validate(path) == []


def without_versions(record: dict[str, Any]) -> None:
    """Make a record one of an engine that reports no weight version."""
    for turn in record["turns"]:
        turn["weight_version"] = -1
    for segment in record["segments"]:
        segment["weight_versions"] = [-1] * len(segment["tokens"])


def without_ids(record: dict[str, Any]) -> None:
    """Make a record one of an endpoint of texts."""
    without_versions(record)
    for turn in record["turns"]:
        turn["has_ids"] = False
    for segment in record["segments"]:
        for name in ("tokens", "loss_mask", "logprobs", "weight_versions"):
            segment[name] = []
    record["raw_prompt"].update(ids=[], text=None)
    record["tokens"].update(trained=0, context=0)


@pytest.mark.parametrize("change", [without_versions, without_ids])
def test_a_record_of_an_inexact_engine_is_valid(dumped: Path, change: Change) -> None:
    records = lines(dumped)
    for record in records:
        change(record)
    dumped.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert validate(dumped) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda record: record["turns"][0].update(has_ids=True),
            "some of the turns have token ids",
        ),
        (lambda record: record["raw_prompt"]["ids"].append(1), "its turns have none"),
        (lambda record: record["tokens"].update(sampled=99), "turns and tokens.sampled disagree"),
        (lambda record: record["tokens"].update(trained=1), "1 tokens without ids were trained"),
    ],
)
def test_a_contradiction_in_a_record_without_ids_is_caught(
    dumped: Path, change: Change, says: str
) -> None:
    records = lines(dumped)
    without_ids(records[0])
    change(records[0])
    dumped.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert any(says in fault for fault in validate(dumped))
