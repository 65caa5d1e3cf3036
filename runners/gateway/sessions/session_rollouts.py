"""Keep the sessions of a gateway that serves alone as rollouts of its run, so that every export
reads them. In a campaign the driver keeps the rollouts, and this is not used.

Invariant: a session that a service failed, or that made no model call, has no reward, whatever the
caller says: a failure of the infrastructure is not a reward of 0.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runners.gateway.sessions.session import Session
from runners.gateway.sessions.turn_log import AsyncTurnLog
from runners.gateway.settings import ReplicaSettings
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord
from runners.records.session_summary import STORED_COUNTERS, SessionSummary
from runners.records.store import RunStore

_FAILED_SERVICE = {"engine": OutcomeCode.INFRA_MODEL, "gateway": OutcomeCode.INFRA_GATEWAY}


@dataclass(frozen=True, slots=True)
class RolloutPlace:
    """Place of a session among the rollouts of the run."""

    task: str
    group: int
    member: int
    replica: int = 0
    """Number of its gateway process."""
    began: float = field(default_factory=time.monotonic)

    def to_facts(self) -> dict[str, Any]:
        """Return what is stored with the session, so that its rollout can be kept without us."""
        return {"place": [self.task, self.group, self.member, self.replica]}


class RolloutPlaces:
    """Gives the sessions of a gateway their places, those of a task in one group.

    Invariant: the processes of one gateway, which know nothing of each other, give the sessions of
    a task the same group and different members, also those that were started again.
    """

    def __init__(self, replica: ReplicaSettings | None = None) -> None:
        self._number, self._of = (replica.number, replica.of) if replica else (0, 1)
        self._groups: dict[str, int] = {}
        """By task."""
        self._members: Counter[str] = Counter()

    def recall(self, sessions: Iterable[Mapping[str, Any]]) -> None:
        """Note the places that this process gave before it was started again."""
        for facts in sessions:
            task, group, _, number = facts["place"]
            if number == self._number:
                self._groups[task] = group
                self._members[task] += 1

    def take(self, task: str) -> RolloutPlace:
        """Return the next place in the task's group."""
        group = self._groups.setdefault(task, self._make_group(task))
        member = self._members[task] * self._of + self._number
        self._members[task] += 1
        return RolloutPlace(task, group, member, self._number)

    def _make_group(self, task: str) -> int:
        if self._of == 1:
            return len(self._groups)
        # 48 bits: exact in JSON, and two tasks of a run have never the same
        return int.from_bytes(hashlib.sha256(task.encode()).digest()[:6])


class SessionRollouts:
    """The rollouts of one gateway's run; changed by its registry."""

    def __init__(self, turn_log: AsyncTurnLog, places: RolloutPlaces) -> None:
        self.places = places
        self._turn_log = turn_log

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
        record = make_record(session.id, place, outcome, summary)
        if outcome.meaning.reward_counts:
            record = replace(record, reward=reward)
        extra = {"session": {name: stats[name] for name in STORED_COUNTERS}}
        record = replace(record, extra=extra)
        await self._turn_log.put_rollout(record)
        return record


def make_record(
    session_id: str, place: RolloutPlace, outcome: Outcome, summary: SessionSummary
) -> RolloutRecord:
    """Return the rollout that a session becomes, without a reward."""
    return RolloutRecord(
        step=0,
        split="train",
        group=place.group,
        member=place.member,
        rollout_id=session_id,
        attempt=0,
        session_id=session_id,
        task_id=place.task,
        counts=True,
        outcome=outcome,
        reward=None,
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
        tool_calls=summary.tool_calls_total,
    )


def keep_lost(run_dir: Path, replica: int) -> None:
    """Store the sessions of a gateway process that has died as rollouts, with the turns that it had
    stored; those that it had ended are kept already. Blocks; raises StoreError.
    """
    text = "its process of the gateway died before it was finished"
    outcome = Outcome(OutcomeCode.INFRA_GATEWAY, Stage.HARNESS, text)
    with RunStore.open(run_dir) as store:
        for session_id, facts in store.sessions().items():
            task, group, member, number = facts["place"]
            if number == replica and store.rollout(session_id) is None:
                began = time.monotonic() - (time.time() - facts["created_at"])
                place = RolloutPlace(task, group, member, number, began)
                summary = store.session_summary(session_id)
                store.put_rollout(make_record(session_id, place, outcome, summary))


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
