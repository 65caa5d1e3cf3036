"""What happened when: stages, turns of all branches, tools, switched weights and events."""

from __future__ import annotations

import re
from pathlib import Path

from runners.observe.export.page_assets import read_asset
from runners.observe.viewer.rollout_view import open_rollout
from runners.observe.viewer.timeline import EVENTS, TEXT, Moment, build_timeline
from runners.records.outcome import order_stages
from runners.records.store.run_store import RunStore
from tests.fakes.records import a_rollout, a_turn
from tests.runners.observe.viewer.conftest import TIMED, write_timed_rollout


def read(run_dir: Path) -> list[Moment]:
    with RunStore.open(run_dir, read_only=True) as store:
        return build_timeline(store, open_rollout(store, TIMED))


def test_everything_is_in_order_of_the_clock(run_dir: Path) -> None:
    write_timed_rollout(run_dir)
    moments = read(run_dir)
    assert [moment.at for moment in moments] == sorted(moment.at for moment in moments)
    told = [(each.at, each.text.partition(" ·")[0].partition(":")[0]) for each in moments[:-1]]
    assert told == [
        (997.5, "queue"),
        (999.5, "session"),
        (1000.0, "boot"),
        (1001.0, "the agent program works"),
        (1001.5, "turn 0"),
        (1002.5, "Bash"),
        (1003.0, "turn 1"),
        (1003.0, "weights 3 → 4"),
        (1004.0, "turn 2"),
        (1007.0, "patch"),
        (1007.2, "teardown"),
        (1007.5, "grade"),
    ]
    assert moments[-1].text.startswith("routing_refused")
    tools = next(each for each in moments if each.kind == "tools")
    assert (tools.seconds, tools.turn, tools.thread) == (1.5, 0, "main")


def test_waits_and_aborts_are_told_and_texts_are_bounded(run_dir: Path) -> None:
    write_timed_rollout(run_dir)
    by_turn = {each.turn: each for each in read(run_dir) if each.kind == "turn"}
    assert "0.75 s of it outside the engine" in by_turn[0].text
    assert (by_turn[0].fault, by_turn[2].fault) == (False, True)
    assert "finish: abort" in by_turn[2].text
    assert by_turn[1].thread == "helper"
    assert max(len(each.text) for each in read(run_dir)) <= TEXT
    assert not any("\x1b" in each.text for each in read(run_dir))


def test_of_many_tools_some_are_named_and_only_a_gap_between_turns_is_theirs(
    run_dir: Path,
) -> None:
    calls = [{"function": {"name": f"tool{number}"}} for number in range(8)]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    record = a_rollout(TIMED)
    with RunStore.open(run_dir) as store:
        store.add_session(record.session_id, {})
        for index, start in enumerate((10.0, 12.0, 12.5)):  # the third before the second has ended
            turn = a_turn(record.session_id, index, started_at=start, total_s=1.0, reply=said)
            store.add_turn(turn)
        store.put_rollout(record)
    tools = [(each.at, each.text) for each in read(run_dir) if each.kind == "tools"]
    assert tools == [(11.0, "tool0, tool1, tool2, tool3, tool4 and 3 more")]


def test_events_of_a_rollout_are_bounded(run_dir: Path) -> None:
    write_timed_rollout(run_dir)
    with RunStore.open(run_dir) as store:
        for number in range(EVENTS + 1):
            store.event("noted", {"rollout_id": TIMED, "number": number})
    assert sum(each.kind == "event" for each in read(run_dir)) == EVENTS


def test_the_page_knows_every_stage_and_has_a_colour_for_it() -> None:
    (colours,) = re.findall(r"const STAGES = \{ (.*) \};", read_asset("lanes.js"))
    found = dict(each.split(": ") for each in colours.split(", "))
    assert list(found) == order_stages({"patch"})
    assert len(set(found.values())) == len(found)
