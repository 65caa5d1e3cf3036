"""The record of an attempt: its fields, the outcome of an exception, the mark of the final one, and
back from a record to the result that is graded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conf.errors import error_text
from runners.gateway.gateway_error import GatewayError
from runners.records import ids
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import TASK_SET, RolloutRecord
from runners.records.session_summary import SessionSummary
from runners.rollouts.reward import RolloutReward
from runners.rollouts.spec import RolloutSpec
from runners.sandboxes.contract import SandboxError
from runners.tasks.contract import Verdict, VerdictKind
from runners.tasks.patches.patch_record import decode_patch
from runners.tasks.rollout_result import RolloutResult

AGENT_CODE = "agent_code"
"""Key of a record's ``extra``: the code with which the agent itself ended, once it is graded."""


def make_record(
    spec: RolloutSpec, attempt: int, outcome: Outcome, summary: SessionSummary
) -> RolloutRecord:
    """Return the record of an attempt without a grade; it is not final."""
    return RolloutRecord(
        rollout_id=spec.rollout_id,
        attempt=attempt,
        step=spec.step,
        split=spec.split,
        group=spec.group,
        member=spec.member,
        task_id=spec.task.id,
        session_id=ids.session_id(spec.rollout_id, attempt),
        counts=False,
        outcome=outcome,
        reward=None,
        solved=None,
        advantage=None,
        turns=summary.turns,
        tool_turns=summary.tool_turns,
        tool_calls=summary.tool_calls_total,
        sampled_tokens=summary.usage.sampled_tokens,
        trained_tokens=0,
        final_message="",
        patch="",
        verdict=None,
        timings={},
        extra={TASK_SET: spec.task.set_name} if spec.task.set_name else {},
    )


def with_reward(record: RolloutRecord, reward: RolloutReward | None) -> RolloutRecord:
    """Return the record of a rollout that was paid so; None: it was not."""
    if reward is None:
        return record
    return replace(
        record, reward=reward.value, reward_parts=reward.parts, turn_rewards=reward.turns
    )


def mark_final(record: RolloutRecord) -> RolloutRecord:
    """Return the record marked as the one attempt of its rollout that counts."""
    return replace(record, counts=True)


def classify_error(error: BaseException, stage: Stage) -> Outcome:
    """Return the outcome of an attempt that ended with an exception in a stage."""
    if stage is Stage.GRADE:
        code = OutcomeCode.GRADER_ERROR
    elif isinstance(error, GatewayError):
        code = OutcomeCode.INFRA_GATEWAY
    elif isinstance(error, SandboxError):
        booting = stage is Stage.BOOT
        code = OutcomeCode.INFRA_SANDBOX_START if booting else OutcomeCode.INFRA_SANDBOX_LOST
    else:
        code = OutcomeCode.INTERNAL_ERROR
    return Outcome(code, stage, f"{type(error).__name__}: {error_text(error)}")


def conclude(outcome: Outcome, verdict: Verdict) -> Outcome:
    """Return the outcome of an attempt whose agent ended with ``outcome``, after its grading."""
    if verdict.kind is VerdictKind.INFRA:
        return Outcome(OutcomeCode.GRADER_ERROR, Stage.GRADE, verdict.reason)
    if verdict.tampered:
        return Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, verdict.tampered)
    if verdict.kind is VerdictKind.SOLVED and outcome.code is OutcomeCode.POLICY_GAVE_UP:
        # An agent that stops without handing in has given up only if nothing was achieved.
        return replace(outcome, code=OutcomeCode.POLICY_FINISHED)
    return outcome


def rebuild_result(record: RolloutRecord, summary: SessionSummary) -> RolloutResult:
    """Return the result that the grader of a stored attempt received.

    ``summary`` is that of its session. The attempt reached its grading, so its ``extra`` names the
    agent's own end, which a failed grading or a verdict may have replaced since; records of older
    runs do not all name it.
    """
    graded = record.outcome.meaning.reward_counts
    replaced = not graded or record.outcome.code is OutcomeCode.POLICY_TAMPERED
    own = record.extra.get(AGENT_CODE, None if replaced else record.outcome.code)
    outcome = Outcome(
        OutcomeCode(own or OutcomeCode.POLICY_FINISHED),
        Stage.HARNESS,
        record.final_message if replaced else record.outcome.message,
        None if replaced else record.outcome.raw_finish_reason,
    )
    return RolloutResult(outcome, summary, decode_patch(record.patch, record.extra))


def verdict_to_dict(verdict: Verdict | None) -> dict[str, object] | None:
    """Return a verdict in the form that is stored with a record."""
    if verdict is None:
        return None
    return {
        "kind": verdict.kind.value,
        "reason": verdict.reason,
        "fail_to_pass": [verdict.fail_to_pass_passed, verdict.fail_to_pass_total],
        "pass_to_pass": [verdict.pass_to_pass_passed, verdict.pass_to_pass_total],
        "fail_to_pass_share": verdict.fail_to_pass_share,
        "pass_to_pass_share": verdict.pass_to_pass_share,
        "solved_in_part": verdict.solved_in_part,
        "tests": _results_to_dict(verdict),
        "rewards": dict(verdict.rewards),
        "timed_out": verdict.timed_out,
        "tampered": verdict.tampered,
        "official": verdict.official,
        "unverified": verdict.unverified,
        "signs": list(verdict.signs),
        "duration_s": verdict.duration_s,
        "log": verdict.log,
    }


def rebuild_verdict(stored: Mapping[str, Any], *, solved: bool) -> Verdict:
    """Return a verdict of ``verdict_to_dict``, without the names of tests: of those that passed not
    all are stored. ``solved`` is the record's; older runs do not have every part.
    """
    kind = VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED
    failing, passing = (stored.get(name) or (0, 0) for name in ("fail_to_pass", "pass_to_pass"))
    return Verdict(
        kind=kind,
        fail_to_pass_passed=failing[0],
        fail_to_pass_total=failing[1],
        pass_to_pass_passed=passing[0],
        pass_to_pass_total=passing[1],
        reason=stored.get("reason", ""),
        log=stored.get("log", ""),
        duration_s=stored.get("duration_s", 0.0),
        timed_out=stored.get("timed_out", False),
        tampered=stored.get("tampered", ""),
        rewards=tuple((stored.get("rewards") or {}).items()),
        official=stored.get("official"),
        unverified=stored.get("unverified", ""),
        signs=tuple(stored.get("signs", ())),
    )


def _results_to_dict(verdict: Verdict) -> dict[str, list[str]]:
    """Return the tests by their result; a pass-to-pass test that passed, of which a task may have
    thousands, is left out.
    """
    results: dict[str, list[str]] = {}
    for test in verdict.tests:
        if test.test_set == "fail_to_pass" or test.result != "passed":
            results.setdefault(test.result, []).append(test.name)
    return results
