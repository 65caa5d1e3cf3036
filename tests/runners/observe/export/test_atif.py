from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from runners.observe.export.atif import build_document
from runners.observe.export.build import build_trajectory
from runners.observe.export.contract import ExportedRun
from runners.observe.export.run_dump import dump
from runners.records.record import Turn
from runners.records.text import dumps
from tests.fakes.records import (
    LOST,
    a_rollout,
    a_turn,
    branched_run,
    branched_turns,
    example_run,
)
from tests.fakes.turn_graphs import sessions
from tests.runners.observe.export.rules import Step, Trajectory

RUN = ExportedRun("run", {"harness": {"kind": "claude_code"}, "model": {"kind": "tiny"}}, None)


def export_document(turns: list[Turn], **changes: Any) -> Trajectory:
    document = build_document(build_trajectory(a_rollout(**changes), turns, RUN), RUN)
    return Trajectory.model_validate_json(dumps(document))


def texts(steps: list[Step]) -> list[tuple[str, str]]:
    return [(step.source, step.message) for step in steps]


def test_the_main_thread_is_in_order_past_rollback_and_compaction() -> None:
    root = export_document(branched_turns())
    assert texts(root.steps) == [
        ("system", "You repair programs."),
        ("user", "The sum is wrong. {} %s ünïcode"),
        ("agent", "I ask an explorer."),
        ("agent", "I edit."),
        ("system", "edit: taken back"),
        ("system", "It squares."),
        ("agent", "Not so."),
        ("system", "compaction: summed up"),
        ("system", "You repair programs."),
        ("user", "The sum is wrong. {} %s ünïcode"),
        ("user", "So far: the sum squares twice."),
        ("agent", "Done."),
    ]
    assert [step.step_id for step in root.steps if step.is_copied_context] == [9, 10]
    assert root.agent.name == "claude_code"
    assert root.agent.tool_definitions is not None
    assert root.extra is not None
    assert root.extra["reward"] == {"score": 1.0, "solved": True, "counted": True}


def test_a_result_refers_to_the_sub_agent_that_its_call_started() -> None:
    root = export_document(branched_turns())
    kinds = [(one.trajectory_id, (one.extra or {})["kind"]) for one in root.subagent_trajectories]
    assert kinds == [
        ("train-000001-00-00/agent-7", "subagent"),
        ("train-000001-00-00/side-0", "side"),
        ("train-000001-00-00/compaction-4", "compaction"),
    ]
    assert root.steps[2].observation is not None
    (result,) = root.steps[2].observation.results
    assert (result.source_call_id, result.content) == ("d1", "It squares twice.")
    assert result.subagent_trajectory_ref is not None
    assert result.subagent_trajectory_ref[0].trajectory_id == "train-000001-00-00/agent-7"
    agent = root.subagent_trajectories[0]
    assert texts(agent.steps)[0] == ("system", "You explore.")
    assert agent.extra == {"kind": "subagent", "after_turn": None, "agent_type": "explorer"}


def test_the_summary_is_referred_to_where_the_history_begins_with_it() -> None:
    step = export_document(branched_turns()).steps[7]
    assert step.observation is not None
    assert step.observation.results[0].subagent_trajectory_ref is not None
    (ref,) = step.observation.results[0].subagent_trajectory_ref
    assert ref.trajectory_id == "train-000001-00-00/compaction-4"


def test_a_nested_sub_agent_is_embedded_in_its_parent() -> None:
    inner = a_turn(
        index=8,
        thread="agent-9",
        parent_thread="agent-7",
        branch="subagent",
        segment=6,
        parent=None,
        prompt_kept=0,
    )
    root = export_document([*branched_turns(), inner])
    (agent,) = (one for one in root.subagent_trajectories if one.trajectory_id.endswith("agent-7"))
    assert [one.trajectory_id for one in agent.subagent_trajectories] == [
        "train-000001-00-00/agent-9"
    ]


@given(sessions())
def test_every_sampled_token_of_any_session_is_in_a_valid_document_once(
    session: tuple[list[Turn], list[tuple[list[int], list[int]]]],
) -> None:
    turns, seen = session
    steps = [step for one in export_document(turns).all() for step in one.steps if step.metrics]
    by_turn = {(step.extra or {})["turn"]: step.metrics for step in steps}
    assert len(by_turn) == len(steps) == len(turns)
    for turn, (prompt, output) in zip(turns, seen, strict=True):
        metrics = by_turn[turn.index]
        assert metrics is not None
        assert metrics.completion_token_ids == output
        if turn.parent is None:
            assert metrics.prompt_token_ids == prompt
        else:
            assert metrics.extra is not None
            kept = metrics.extra["prompt_tokens_kept"]
            assert metrics.extra["prompt_token_ids_added"] == prompt[kept:]


def test_a_rollout_without_a_model_call_is_a_document_too() -> None:
    root = export_document([], outcome=replace(LOST, message="gone"), reward=None, solved=None)
    assert texts(root.steps) == [("system", "no model call: infra.sandbox_lost: gone")]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            {"id": "a", "function": {"name": "Bash", "arguments": {"x": 1}}},
            ("a", "Bash", {"x": 1}),
        ),
        ({"function": {"name": "Bash", "arguments": "{"}}, ("turn-0-0", "Bash", {"unparsed": "{"})),
        ("nonsense", ("turn-0-0", "", {"unparsed": None})),
    ],
)
def test_any_call_that_a_policy_made_is_in_the_document(
    call: Any, expected: tuple[str, str, Any]
) -> None:
    reply = {"role": "assistant", "content": [{"text": "a"}, {"type": "image"}]}
    root = export_document(
        [a_turn(reply={**reply, "tool_calls": [call], "reasoning_content": "hm"})]
    )
    step = root.steps[-1]
    assert step.tool_calls is not None
    (made_call,) = step.tool_calls
    assert (made_call.tool_call_id, made_call.function_name, made_call.arguments) == expected
    assert (step.message, step.reasoning_content) == ("a\n[image]", "hm")


def test_each_rollout_is_a_file(tmp_path: Path) -> None:
    for make in (example_run, branched_run):
        with make(tmp_path / make.__name__) as store:
            report = dump(store, tmp_path / f"{make.__name__}-out", formats=("atif",))
        files = [file.path for file in report.files if file.format == "atif"]
        assert len(files) == report.rollouts
        for file in files:
            assert Trajectory.model_validate_json(file.read_bytes()).trajectory_id == file.stem
