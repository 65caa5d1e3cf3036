"""Data of an attempt: all that goes into one and comes out, on whichever machine it runs.

In: the rollout to run, the context that all attempts share, the contract of a harness. Out: the
attempt's record with its outcome, and from a stored record the result that its grader received.
Names, seeds and sampling temperature of rollouts are derived from the configuration: one seed per
named thing of a run, so that what is drawn for one thing does not move another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from conf.errors import error_text
from conf.schema import Config
from conf.sections.rollout import DeadlinesConfig
from runners.gateway.client import GatewayAdmin
from runners.gateway.refusal import GatewayError
from runners.records import ids
from runners.records.ids import rollout_id
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import TASK_SET, RolloutRecord
from runners.records.session_summary import SessionSummary
from runners.rollouts.reward import ComputeReward, RolloutReward
from runners.sandboxes.contract import CommandResult, Sandbox, SandboxBackend, SandboxError
from runners.system.concurrency import TokenBucket
from runners.system.diagnostics import AttemptWatch
from runners.tasks.contract import DEFAULT_LIMITS, CaptureLimits, Task, Verdict, VerdictKind
from runners.tasks.grading import Grader, RolloutResult
from runners.tasks.patches.patch import decode_patch
from runners.tasks.repositories.task_repositories import use_repository_as_is

TAIL = 2000
"""Bytes of a program's output that its result keeps."""
AGENT_CODE = "agent_code"
"""Key of a record's ``extra``: the code with which the agent itself ended, once it is graded."""


@dataclass(frozen=True, slots=True)
class HarnessContext:
    """Input of one run of the agent program."""

    prompt: str
    """The task's statement, as ``harness.prompt`` has it."""
    api_key: str
    """Key of the gateway session."""
    model: str
    """Model name that the program sends; the gateway answers to any."""
    deadline_s: float


@dataclass(frozen=True, slots=True)
class HarnessResult:
    """The agent program's own account of its end. The tokens are not here: the gateway has them."""

    code: OutcomeCode
    """policy.finished, policy.gave_up, budget.turns, budget.wall, infra.harness, infra.gateway …"""
    final_message: str
    """The agent's last message, in full."""
    raw_finish_reason: str | None
    """The program's own word for why it ended."""
    exit_code: int
    duration_s: float
    output: str
    """Tail of what the program printed, for diagnosis."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further statements that the rollout's record keeps: its version, its own counts. JSON."""

    @classmethod
    def of_command(cls, result: CommandResult, *, final_message: str = "") -> HarnessResult:
        """Return the result of a program that has no words of its own for its end: finished if its
        exit code is 0, out of time if the deadline ended it, else a failure of the program.
        """
        code = OutcomeCode.POLICY_FINISHED if result.exit_code == 0 else OutcomeCode.INFRA_HARNESS
        return cls(
            code=OutcomeCode.BUDGET_WALL if result.timed_out else code,
            final_message=final_message,
            raw_finish_reason=None,
            exit_code=result.exit_code,
            duration_s=result.duration_s,
            output=(result.stdout + result.stderr)[-TAIL:].decode(errors="replace"),
        )


class Harness(Protocol):
    """One agent program."""

    def mounts(self) -> dict[str, Path]:
        """Return the read-only files it needs, by their paths inside the sandbox."""
        ...

    async def run(self, sandbox: Sandbox, context: HarnessContext) -> HarnessResult:
        """Run it to its end or deadline; raises only SandboxError (the sandbox is lost)."""
        ...


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """One rollout to run: its place in the run, its task, its seed."""

    rollout_id: str
    """Unique in the run; see ``runners.records.ids``."""
    split: str
    """"train" or "eval"."""
    step: int
    group: int
    member: int
    task: Task
    seed: int
    temperature: float


def make_spec(
    config: Config,
    split: str,
    step: int,
    group: int,
    member: int,
    task: Task,
    *,
    temperature: float | None = None,
) -> RolloutSpec:
    """Return a rollout of a run; ``temperature``: None is the configuration's for that split.

    An evaluation draws the same seeds whatever the step: before and after training only the policy
    differs.
    """
    name = rollout_id(split, step, group, member)
    evaluation = split == "eval"
    if temperature is None:
        sampling = config.sampling
        temperature = sampling.eval_temperature if evaluation else sampling.temperature
    eval_name = f"eval-{group}" + (f"-{member}" if member else "")
    return RolloutSpec(
        rollout_id=name,
        split=split,
        step=step,
        group=group,
        member=member,
        task=task,
        seed=derive_seed(config.seed, eval_name if evaluation else name),
        temperature=temperature,
    )


def derive_seed(seed: int, name: str) -> int:
    """Return a 31-bit seed (what every engine accepts) for one named thing of a run."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """Everything an attempt works with, on whichever machine it runs; shared by all attempts."""

    backend: SandboxBackend
    harness: Harness
    grader: Grader
    gateway: GatewayAdmin
    gateway_url: str | None
    """The one address at which sandboxes reach every session (``gateway.public_url``); None: that
    of the session's own gateway process.
    """
    gateway_control: Path | None
    """A control socket of this machine (a relay's); None: that of the session's own process."""
    deadlines: DeadlinesConfig
    reward: ComputeReward
    scenario: str
    """The scenario's kind; stored with each session."""
    sandbox_starts: TokenBucket
    watch: AttemptWatch
    capture: CaptureLimits = DEFAULT_LIMITS
    """Sizes beyond which a patch is refused."""
    max_turns: int | None = None
    """Limit of model calls per attempt, over all its agents; None: no limit."""
    ready: Callable[[Task], Awaitable[Task]] = use_repository_as_is
    """Builds a task's repository if it is missing; raises SandboxError."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of an attempt that has ended."""

    record: RolloutRecord
    """Not marked as final: only the pool knows whether another attempt follows."""
    pushed_back: bool
    """True if the engine or the sandboxes refused work because they are overloaded."""
    shared: bool = False
    """True if another attempt has reported the same failure: the loss of the node of both."""


Execute = Callable[[AttemptContext, RolloutSpec, int, float], Awaitable[AttemptResult]]
"""Runs attempt number n of a rollout, which has waited so many seconds; raises as ``Attempt.run``.
"""


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
