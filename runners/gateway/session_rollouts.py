"""Keep the sessions of a gateway that serves alone as rollouts of its run, so that every export
reads them. In a campaign the driver keeps the rollouts, and this is not used.

Invariant: a session that a service failed, or that made no model call, has no reward, whatever the
caller says: a failure of the infrastructure is not a reward of 0.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runners.gateway.session import Session
from runners.gateway.turn_log import AsyncTurnLog
from runners.trajectory.counters import STORED_COUNTERS
from runners.trajectory.outcome import Outcome, OutcomeCode, Stage
from runners.trajectory.record import RolloutRecord

_FAILED_SERVICE = {"engine": OutcomeCode.INFRA_MODEL, "gateway": OutcomeCode.INFRA_GATEWAY}


@dataclass(frozen=True, slots=True)
class RolloutPlace:
    """Place of a session among the rollouts of the run."""

    task: str
    group: int
    member: int
    began: float = field(default_factory=time.monotonic)


class SessionRollouts:
    """The rollouts of one gateway's run; changed by its registry."""

    def __init__(self, turn_log: AsyncTurnLog) -> None:
        self._turn_log = turn_log
        self._groups: dict[str, int] = {}
        """By task."""
        self._members: Counter[str] = Counter()

    def take_place(self, task: str) -> RolloutPlace:
        """Return the next place in the task's group."""
        group = self._groups.setdefault(task, len(self._groups))
        self._members[task] += 1
        return RolloutPlace(task, group, self._members[task] - 1)

    async def keep(
        self,
        session: Session,
        place: RolloutPlace,
        stats: Mapping[str, Any],
        reward: float | None,
        unfinished: OutcomeCode | None = None,
    ) -> RolloutRecord:
        """Store a session that has ended as a rollout, again if its reward has changed; return its
        record. ``unfinished``: its end, unless a service failed before; None: it was finished.
        """
        if unfinished is None or session.failures.latest is not None:
            outcome = decide_outcome(session)
        else:
            outcome = Outcome(unfinished, Stage.HARNESS, "it ended before it was finished")
        summary = await self._turn_log.session_summary(session.id)
        record = RolloutRecord(
            step=0,
            split="train",
            group=place.group,
            member=place.member,
            rollout_id=session.id,
            attempt=0,
            session_id=session.id,
            task_id=place.task,
            counts=True,
            outcome=outcome,
            reward=reward if outcome.meaning.reward_counts else None,
            solved=None,
            advantage=None,
            turns=summary.turns,
            sampled_tokens=summary.usage.sampled_tokens,
            trained_tokens=0,
            timings={"total": time.monotonic() - place.began},
            final_message=summary.final_message,
            patch="",
            verdict=None,
            tool_turns=summary.tool_turns,
            extra={"session": {name: stats[name] for name in STORED_COUNTERS}},
        )
        await self._turn_log.put_rollout(record)
        return record


def decide_outcome(session: Session) -> Outcome:
    """Return the end of a session that its caller has finished: what the gateway itself knows."""
    counters = session.counters
    if (failed := session.failures.latest) is not None:
        text = f"the {failed} failed, and no later turn has made it good"
        return Outcome(_FAILED_SERVICE[failed], Stage.HARNESS, text)
    if not counters.turns:
        return Outcome(OutcomeCode.INFRA_HARNESS, Stage.HARNESS, "no model call was answered")
    if counters.refused_turns:
        text = f"{counters.refused_turns} requests were refused: it has had its turns"
        return Outcome(OutcomeCode.BUDGET_TURNS, Stage.HARNESS, text)
    return Outcome(OutcomeCode.POLICY_FINISHED, Stage.HARNESS)
