"""Records as a small campaign writes them, and runs made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord, Turn
from runners.records.store.run_store import RunStore

CONFIG = {"run": {"steps": 3}, "scenario": {"kind": "linear"}}

_SYSTEM = {"role": "system", "content": "You repair programs."}
_TASK = {"role": "user", "content": "The sum is wrong. {} %s ünïcode"}
_TOOLS = [{"type": "function", "function": {"name": "Bash", "parameters": {}}}]


def a_turn(session_id: str = "train-000001-00-00-a0", index: int = 0, **changes: Any) -> Turn:
    """Return a turn of 3 (then 2) new prompt tokens and 2 sampled ones."""
    first = index == 0
    turn = Turn(
        session_id=session_id,
        index=index,
        thread="main",
        parent_thread=None,
        branch="main",
        segment=0,
        parent=None if first else index - 1,
        prompt_kept=0 if first else 5 + 4 * (index - 1),
        prompt_new=np.array([1, 2, 3] if first else [4, 5], np.int32),
        output_ids=np.array([100 + index, 7], np.int32),
        output_logprobs=np.array([-0.25, -0.1], np.float32),
        weight_version=3,
        finish_reason="stop",
        break_reason=None,
        malformed_calls=0,
        request={"messages": [_SYSTEM, _TASK], "tools": _TOOLS, "max_tokens": 64}
        if first
        else {"messages": [{"role": "tool", "tool_call_id": f"c{index - 1}", "content": "ok"}]},
        reply={
            "role": "assistant",
            "content": f"turn {index}",
            "tool_calls": [
                {
                    "type": "function",
                    "id": f"c{index}",
                    "function": {"name": "Bash", "arguments": {"command": "ls"}},
                }
            ],
        },
        usage={"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 0},
        started_at=1000.5 + index,
        engine_s=0.25,
        total_s=0.5,
    )
    return replace(turn, **changes)


def append_turn(turns: list[Turn], session_id: str, parent: int | None, **changes: Any) -> None:
    """Add a session's next turn, whose prompt goes on where turn ``parent`` ended."""
    before = None if parent is None else turns[parent]
    kept = 0 if before is None else before.prompt_tokens + before.output_tokens
    turn = a_turn(session_id, len(turns), parent=parent, prompt_kept=kept, **changes)
    usage = {"prompt_tokens": turn.prompt_tokens, "completion_tokens": turn.output_tokens}
    turns.append(replace(turn, usage=usage))


def run_with_parts(run_dir: Path, credit: float) -> RunStore:
    """Return a run in which one rollout of four, and one evaluated rollout, solved a part."""
    store = RunStore.create(run_dir, {**CONFIG, "reward": {"partial_credit": credit}})
    finding = {"fail_to_pass_share": 0.25, "solved_in_part": True}
    for name, changes in (
        ("train-000001-00-00", {}),
        ("train-000001-00-01", {"solved": False, "verdict": finding}),
        ("train-000001-00-02", {"solved": False, "verdict": {"fail_to_pass_share": 0.5}}),
        ("train-000001-00-03", {"solved": None, "reward": None, "verdict": None}),
        ("eval-000001-00-00", {"solved": False, "verdict": {**finding, "fail_to_pass_share": 0.5}}),
    ):
        store.put_rollout(a_rollout(name, **changes))
    return store


def a_rollout(rollout_id: str = "train-000001-00-00", **changes: Any) -> RolloutRecord:
    """Return a solved training rollout of two turns that counts."""
    split, step, group, member = rollout_id.split("-")
    record = RolloutRecord(
        rollout_id=rollout_id,
        attempt=0,
        step=int(step),
        split=split,
        group=int(group),
        member=int(member),
        task_id="sum-of-squares-001",
        session_id=f"{rollout_id}-a0",
        counts=True,
        outcome=Outcome(OutcomeCode.POLICY_FINISHED, Stage.GRADE, "", "submitted"),
        reward=1.0,
        solved=True,
        advantage=0.5,
        turns=2,
        sampled_tokens=4,
        trained_tokens=4,
        final_message="fixed",
        patch="--- a/x.py\n+++ b/x.py\n",
        verdict={"passed": ["test_sum"], "failed": []},
        timings={"boot": 0.1, "harness": 2.0, "total": 3.0},
    )
    return replace(record, **changes)


LOST = Outcome(OutcomeCode.INFRA_SANDBOX_LOST, Stage.HARNESS, "gone: {} %s \x00", None)


def write_session(store: RunStore, session_id: str, turns: int) -> None:
    """Store a session of so many turns."""
    store.add_session(session_id, {"scenario": "linear"})
    for index in range(turns):
        store.add_turn(a_turn(session_id, index))


def example_run(run_dir: Path) -> RunStore:
    """Make a run with one finished step: a solved rollout, an unsolved, a retried, a lost."""
    store = RunStore.create(run_dir, CONFIG)
    store.finish_evaluation(0, {"solve_rate": 0.25, "tasks": 4})
    store.begin_step(1, ["sum-of-squares-001"])
    solved = a_rollout()
    unsolved = a_rollout("train-000001-00-01", reward=0.0, solved=False, advantage=-0.5)
    failed = a_rollout("train-000001-00-02", outcome=LOST, counts=False, reward=None, solved=None)
    retried = replace(failed, attempt=1, session_id="train-000001-00-02-a1", counts=True)
    retried = replace(retried, outcome=solved.outcome, reward=1.0, solved=True)
    lost = a_rollout(
        "train-000001-00-03",
        outcome=LOST,
        reward=None,
        solved=None,
        advantage=None,
        turns=0,
        sampled_tokens=0,
        trained_tokens=0,
        final_message="",
        patch="",
        verdict=None,
    )
    for record in (solved, unsolved, failed, retried, lost):
        write_session(store, record.session_id, record.turns)
        store.put_rollout(record)
    metrics = {"train/reward_mean": 2 / 3, "train/solve_rate": 2 / 3, "loss/policy": -0.01}
    metrics |= {"tokens/sampled": 12, "tokens/in_loss": 12, "tokens/trained": 8}
    store.finish_step(1, metrics)
    store.finish_evaluation(1, {"solve_rate": 0.75, "tasks": 4})
    return store


def branched_turns(session_id: str = "train-000001-00-00-a0") -> list[Turn]:
    """Return a session with a title query, a sub-agent, a rollback and a compaction.

    Chains: 0 side, 1 main until its history is summed up (wipe), 2 sub-agent, 3 a try of the main
    thread that it took back (wipe), 4 the summary (compaction), 5 main from the summary (final).
    """
    talk = _Session(session_id)
    talk.say(0, None, "side", [_SYSTEM, _user("Write a title.")], "A wrong sum")
    dispatch = [_call("d1", "Agent", prompt="Look at sum.py.", subagent_type="explorer")]
    talk.say(1, None, "main", [_SYSTEM, _TASK], "I ask an explorer.", dispatch, tools=_TOOLS)
    asked = [{"role": "system", "content": "You explore."}, _user("Look at sum.py.")]
    agent: dict[str, Any] = {"thread": "agent-7", "parent_thread": "main"}
    reads = [_call("e1", "Bash", command="cat sum.py")]
    hint = {"agent_type": "explorer", "tools": _TOOLS[:1]}
    talk.say(2, None, "subagent", asked, "", reads, hint, **agent)
    found = [_result("e1", "</script><script>alert(1)</script> & <b>def sum</b>")]
    talk.say(2, 2, "subagent", found, "It squares twice.", **agent)
    talk.say(1, 1, "main", [_result("d1", "It squares twice.")], "I edit.")
    talk.say(
        3, 1, "main", [_result("d1", "It squares.")], "Not so.", break_reason="edit: taken back"
    )
    talk.say(4, 4, "compaction", [_user("Sum up.")], "The sum squares twice.")
    again = [_SYSTEM, _TASK, _user("So far: the sum squares twice.")]
    talk.say(5, None, "main", again, "Done.", break_reason="compaction: summed up")
    return talk.turns


class _Session:
    """Turns whose tokens are numbered through."""

    def __init__(self, session_id: str) -> None:
        self._id = session_id
        self.turns: list[Turn] = []
        self._next = 10

    def say(
        self,
        segment: int,
        parent: int | None,
        branch: str,
        sent: list[dict[str, Any]],
        reply: str,
        calls: list[dict[str, Any]] | None = None,
        hint: dict[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        """Add a turn of 2 new prompt tokens per message and 3 sampled ones."""
        offered = {"tools": changes.pop("tools")} if "tools" in changes else {}
        append_turn(
            self.turns,
            self._id,
            parent,
            branch=branch,
            segment=segment,
            prompt_new=self._ids(2 * len(sent)),
            output_ids=self._ids(3),
            output_logprobs=np.array([-0.05, -0.7, -2.5], np.float32),
            request={"messages": sent, "max_tokens": 64, **offered, **(hint or {})},
            reply={"role": "assistant", "content": reply}
            | ({"tool_calls": calls} if calls else {}),
            **changes,
        )

    def _ids(self, count: int) -> np.ndarray:
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int32)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _call(call: str, name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "id": call, "function": function}


def _result(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def branched_run(run_dir: Path, rollouts: int = 1) -> RunStore:
    """Make a run of branched rollouts, eight to a group."""
    store = RunStore.create(run_dir, CONFIG | {"scenario": {"kind": "mixed"}})
    for number in range(rollouts):
        record = a_rollout(
            f"train-000001-{number // 8:02}-{number % 8:02}", turns=8, sampled_tokens=24
        )
        store.add_session(record.session_id, {})
        for turn in branched_turns(record.session_id):
            store.add_turn(turn)
        store.put_rollout(record)
    return store
