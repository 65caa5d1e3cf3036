"""A finished run whose rollouts are drawn, and paid, compared and recorded as a campaign does it.

No model samples and no program runs: turns and verdicts are drawn from a seed. What follows from
them, and lies in the store, was computed by the functions that a campaign calls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from conf.compose import compose
from conf.schema import Config
from runners.records.outcome import Outcome, OutcomeCode, Stage
from runners.records.record import RolloutRecord, Turn
from runners.records.store.run_store import RunStore
from runners.rollouts.contract import AGENT_CODE, verdict_to_dict, with_reward
from runners.rollouts.reward import make_reward
from runners.tasks.contract import Verdict, VerdictKind
from runners.tasks.grading import RolloutResult
from runners.tasks.patches.patch import decode_patch
from runners.training.advantages import StepGroups
from runners.training.step_samples import build_samples, load_rollout
from tests.fakes.records import LOST, a_rollout, append_turn

BUDGET = Outcome(OutcomeCode.BUDGET_TURNS, Stage.HARNESS, "too many turns", None)
TAMPERED = Outcome(OutcomeCode.POLICY_TAMPERED, Stage.GRADE, "the tests were changed", None)


def train_run(
    run_dir: Path,
    overrides: Sequence[str] = (),
    *,
    steps: int = 2,
    groups: int = 3,
    members: int = 4,
    tokens: int = 6,
    seed: int = 0,
) -> RunStore:
    """Make a run of ``run.overlap=none``; ``tokens``: those of a prompt and of an answer."""
    given = (f"run.steps={steps}", f"run.tasks_per_step={groups}", f"run.dir={run_dir}", *overrides)
    config = compose(["trainer.min_group=2", *given])
    store = RunStore.create(run_dir, config.model_dump(mode="json"))
    for step in range(1, steps + 1):
        store.begin_step(step, [f"task-{group}" for group in range(groups)])
        records = draw_step(store, config, step, groups, members, tokens, seed)
        finish_step(store, config, step, records)
    return store


def draw_step(
    store: RunStore, config: Config, step: int, groups: int, members: int, tokens: int, seed: int
) -> list[RolloutRecord]:
    """Store the sessions of a step; return its rollouts with their rewards."""
    drawn = [
        _draw_rollout(store, f"train-{step:06}-{group:02}-{member:02}", tokens, seed)
        for group in range(groups)
        for member in range(members)
    ]
    return asyncio.run(_pay(config, drawn))


def finish_step(
    store: RunStore, config: Config, step: int, records: Sequence[RolloutRecord]
) -> None:
    """Record the advantages of a step's rollouts, as ``StepTraining`` does, and finish it."""
    load = partial(load_rollout, store, None)
    for record in build_samples(StepGroups(config, records), load, config).records:
        store.put_rollout(record)
    store.finish_step(step, {"step": step})


def _draw_rollout(
    store: RunStore, rollout_id: str, tokens: int, seed: int
) -> tuple[RolloutRecord, RolloutResult | None]:
    rng = random.Random(f"{seed}:{rollout_id}")
    record = a_rollout(rollout_id, reward=None, advantage=None, trained_tokens=0)
    turns = _draw_turns(record.session_id, rng, tokens)
    store.add_session(record.session_id, {})
    for turn in turns:
        store.add_turn(turn)
    summary = store.session_summary(record.session_id)
    record = replace(
        record,
        turns=len(turns),
        sampled_tokens=summary.usage.sampled_tokens,
        patch="",
        extra={AGENT_CODE: OutcomeCode.POLICY_FINISHED},
    )
    kind = rng.choice(
        ("solved", "solved", "unsolved", "unsolved", "part", "budget", "tampered", "lost")
    )
    if kind == "lost":
        return replace(record, outcome=LOST, solved=None, verdict=None), None
    outcome = {"budget": BUDGET, "tampered": TAMPERED}.get(kind, record.outcome)
    verdict = draw_verdict(kind, rng)
    record = replace(
        record,
        outcome=outcome,
        solved=verdict.kind is VerdictKind.SOLVED,
        verdict=verdict_to_dict(verdict),
    )
    return record, RolloutResult(outcome, summary, decode_patch("", {}), verdict)


def draw_verdict(kind: str, rng: random.Random) -> Verdict:
    """Return a verdict of four fail-to-pass tests."""
    solved = kind == "solved"
    passed = 4 if solved else rng.randrange(1, 4) if kind == "part" else 0
    return Verdict(
        VerdictKind.SOLVED if solved else VerdictKind.UNSOLVED,
        *(passed, 4, 3, 3),
        reason="all tests pass" if solved else f"{4 - passed} of 4 fail",
        log="a log",
        duration_s=0.5,
        tampered="the tests were changed" if kind == "tampered" else "",
    )


async def _pay(
    config: Config, drawn: Sequence[tuple[RolloutRecord, RolloutResult | None]]
) -> list[RolloutRecord]:
    pay = make_reward(config.reward)
    return [
        record if result is None else with_reward(record, await pay(result, 60.0))
        for record, result in drawn
    ]


def _draw_turns(session_id: str, rng: random.Random, tokens: int) -> list[Turn]:
    """Return a session of a main thread, sometimes with a sub-agent, a side request and a summary
    that replaces the history.
    """
    talk = _Talk(session_id, rng, tokens)
    if rng.random() < 0.3:
        talk.say("side")
    for number in range(rng.randrange(1, 6)):
        talk.say("main")
        if number == 1 and rng.random() < 0.5:
            talk.say("subagent", thread="agent-1", parent_thread="main")
            talk.say("subagent", thread="agent-1", parent_thread="main")
        if number == 2 and rng.random() < 0.5:
            talk.say("compaction")
            talk.begin_anew("main")
    return talk.turns


class _Talk:
    """The turns of a session, whose branches are chains."""

    def __init__(self, session_id: str, rng: random.Random, tokens: int) -> None:
        self.turns: list[Turn] = []
        self._id, self._rng, self._tokens = session_id, rng, tokens
        self._last: dict[str, int] = {}
        """Newest turn of each branch that goes on."""
        self._chains = 0

    def say(self, branch: Any, **changes: Any) -> None:
        """Add a turn that continues its branch, or begins it."""
        index, parent = len(self.turns), self._last.get(branch)
        before = None if parent is None else self.turns[parent]
        segment, self._chains = (
            (self._chains, self._chains + 1) if before is None else (before.segment, self._chains)
        )
        prompt, output = self._draw(), self._draw()
        append_turn(
            self.turns,
            self._id,
            parent,
            branch=branch,
            segment=segment,
            prompt_new=prompt,
            output_ids=output,
            output_logprobs=np.full(len(output), -0.5, np.float32),
            malformed_calls=int(self._rng.random() < 0.1),
            **changes,
        )
        self._last[branch] = index

    def begin_anew(self, branch: str) -> None:
        """Let the next turn of a branch begin a new chain."""
        del self._last[branch]

    def _draw(self) -> np.ndarray:
        count = self._rng.randrange(1, 2 * self._tokens)
        return np.asarray([self._rng.randrange(1000)] * count, np.int32)
