"""What crosses between driver and workers arrives as it was sent, or as the store would keep it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.compose import compose
from runners.ray_workers.wire import (
    RECORD,
    RESULT,
    SPEC,
    SUMMARY,
    WorkerSettings,
    dump,
)
from runners.rollouts.attempt_record import make_record
from runners.rollouts.context import AttemptResult
from runners.rollouts.spec import RolloutSpec
from runners.store.json_text import dumps, loads
from runners.tasks.contract import Grading, Origin, ScriptGrading, Task, UnittestIds
from runners.trajectory.outcome import Outcome, OutcomeCode, Stage
from runners.trajectory.session_summary import SessionSummary, TurnReply, summarize_session
from tests.fakes.hostile import TEXTS

TASK = Task(
    "t", "train", Path("/repo"), "c" * 40, "fix ä", ("a", "b"), ("c",), ("tests",), "diff", "bug"
)
GRADINGS: list[Grading] = [
    UnittestIds(),
    ScriptGrading("pytest", "s", "/testbed", "{}"),
    ScriptGrading("swebench", "s", "/testbed", "{}"),
    ScriptGrading("log_parser", "s", "/app", "p", missing_passes=True),
    ScriptGrading("eval_cmd", "true", "/w"),
    ScriptGrading("f2p_script", "print()", "/w"),
]


def spec(task: Task = TASK) -> RolloutSpec:
    return RolloutSpec("train-000001-000-00", "train", 1, 0, 0, task, 7, 0.5)


def cross(value: Any) -> Any:
    """Return JSON values as the other side reads them."""
    return loads(dumps(value))


@pytest.mark.parametrize("grading", GRADINGS)
def test_a_task_crosses_with_its_grading(grading: Grading) -> None:
    origin = Origin("https://example.org/r.git", "0" * 40, ("make",), image="python:3.12")
    sent = spec(replace(TASK, grading=grading, origin=origin, image="i", workdir="/w"))
    assert SPEC.validate_python(cross(dump(SPEC, sent))) == sent


def test_a_result_crosses_with_everything_that_the_store_keeps() -> None:
    outcome = Outcome(OutcomeCode.POLICY_FINISHED, Stage.END, "done", "stop")
    record = replace(
        make_record(spec(), 2, outcome, SessionSummary()),
        reward=0.25, solved=True, patch="+ä\n", verdict={"kind": "solved", "log": "ok"},
        timings={"boot": 0.125, "total": 3.0}, extra={"agent_code": "policy.finished", "n": [1]},
    )  # fmt: skip
    for result in (AttemptResult(record, pushed_back=True), AttemptResult(record, False, True)):
        assert RESULT.validate_python(cross(dump(RESULT, result))) == result


def test_what_an_agent_said_keeps_no_result_from_crossing() -> None:
    hostile: dict[Any, Any] = {
        "output": "\ud800",
        "raw": b"\xff",
        "many": {1, 2},
        5: float("nan"),
        "big": 2**70,
    }
    outcome = Outcome(OutcomeCode.POLICY_FINISHED, Stage.END)
    record = replace(
        make_record(spec(), 0, outcome, SessionSummary()), final_message="\udcff", extra=hostile
    )
    found = RECORD.validate_python(cross(dump(RECORD, record)))
    assert found.final_message == "\ufffd"
    assert found.extra == cross(hostile)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_summary_of_a_session_crosses_as_it_is(text: str) -> None:
    turn = TurnReply(
        turn=3, thread=text, branch="main", finish_reason=text, malformed_calls=1, sampled_tokens=5,
        reply={"content": text, "tool_calls": [{"function": {"name": text, "arguments": {}}}]},
        usage={"prompt_tokens": 7, "cached_tokens": 2},
    )  # fmt: skip
    summary = summarize_session([turn])
    assert SUMMARY.validate_python(cross(dump(SUMMARY, summary))) == summary
    assert SUMMARY.validate_python(cross(dump(SUMMARY, SessionSummary()))) == SessionSummary()


def test_settings_cross_with_the_whole_configuration() -> None:
    config = compose(["executor=ray", "rollout.concurrency=3"])
    settings = WorkerSettings(
        config=config,
        gateway_url="http://a:1",
        admin_key="k",
        sandbox_gateway_url="b",
        run_tag=None,
    )
    assert WorkerSettings.model_validate(cross(settings.model_dump(mode="json"))) == settings
    assert "k" not in repr(settings).split("admin_key")
