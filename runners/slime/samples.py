"""A rollout as slime's samples.

The response region of a sample begins at the first token that was sampled in its segment; a prefix
shared with a sibling is prompt. Invariants: ``loss_mask`` and ``rollout_log_probs`` are as long as
the region, routing has a row for every token but the last, and a rollout has at least one sample,
so that every column is there for all or for none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conf.sections.training import FanoutConfig
from runners.slime.rewards import KEY
from runners.training.fanout import fan_out
from runners.training.placeholder import minimal, placeholder
from runners.training.sample import Sample
from runners.trajectory.outcome import OutcomeClass
from runners.trajectory.record import RolloutRecord, Segment, Turn
from runners.trajectory.routing import Routing, RoutingShape


@dataclass(frozen=True, slots=True)
class Making:
    """How samples are made in a run."""

    fanout: FanoutConfig
    train_unfinished: bool
    decode: Callable[[list[int]], str]
    pad: int
    """Token of placeholders."""
    shape: RoutingShape | None
    """Set if samples carry routing."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What is stored of an attempt."""

    record: RolloutRecord
    turns: Sequence[Turn]
    chains: Sequence[Segment]
    routing: Callable[[Segment], Routing | None]


def made(base: Any, taken: Taken, making: Making, *, evaluation: bool) -> list[Any]:
    """Return the samples of a rollout, copies of ``base``; in an evaluation its final one only."""
    record = taken.record
    chains: list[Segment] = []

    def routing(chain: Segment) -> Routing | None:
        chains.append(chain)  # asked once for each segment that is kept, in order
        return taken.routing(chain)

    fan = fan_out(record.rollout_id, taken.chains, 1.0, making.fanout, routing)
    pairs = list(zip(chains, fan.samples, strict=True))
    if evaluation:
        finals = [pair for pair in pairs if pair[0].kind == "final"]
        pairs = finals or pairs[-1:]
    if not pairs or record.reward is None:
        prompt = taken.turns[0].prompt_new if taken.turns else None
        return [stand_in(base, record, making, prompt)]
    return [_segment(base, taken, chain, sample, making) for chain, sample in pairs]


def stand_in(base: Any, record: RolloutRecord | None, making: Making, prompt: Any = None) -> Any:
    """Return the sample of a rollout of which nothing is trained; without a prompt a constant one,
    which cannot fail.
    """
    name = record.rollout_id if record is not None else ""
    row = (
        minimal(name, making.pad, making.shape)
        if prompt is None
        else placeholder(name, prompt, making.pad, making.shape)
    )
    sample = copy.copy(base)
    graded = record is not None and record.reward is not None
    sample.status = _status(base, "aborted")
    sample.response = ""
    sample.weight_versions = []
    sample.reward = record.reward if record is not None and graded else 0.0
    sample.remove_sample = True
    about = {"graded": graded, "share": 0.0, "kind": "placeholder"}
    if record is not None:
        about |= _about(record)
    return _with_row(sample, base, row, len(row.tokens) - 1, about)


def _segment(base: Any, taken: Taken, chain: Segment, row: Sample, making: Making) -> Any:
    record, start = taken.record, int(np.argmax(row.loss_mask))
    own = [taken.turns[index] for index in chain.own_turns]
    sample = copy.copy(base)
    kind = record.outcome.code.outcome_class
    cut = own[-1].finish_reason == "length" or kind is OutcomeClass.BUDGET
    sample.status = _status(base, "truncated" if cut else "completed")
    sample.response = making.decode(row.tokens[start:].tolist())
    sample.reward = record.reward
    sample.weight_versions = [str(turn.weight_version) for turn in own]
    unrouted = row.routing is not None and not row.routing.valid[:-1].all()
    unfinished = kind is OutcomeClass.BUDGET and not making.train_unfinished
    sample.remove_sample = unrouted or unfinished or not record.outcome.meaning.trained
    about = {
        "graded": True,
        "share": row.advantage,
        "kind": chain.kind,
        "segment": chain.index,
        "thread": chain.thread,
        "unrouted": unrouted,
        **_about(record),
    }
    return _with_row(sample, base, row, start, about)


def _with_row(sample: Any, base: Any, row: Sample, start: int, about: dict[str, Any]) -> Any:
    sample.rollout_id = base.index if getattr(base, "rollout_id", None) is None else base.rollout_id
    sample.session_id = about.get("session", getattr(base, "session_id", None))
    sample.tokens = row.tokens.tolist()
    sample.response_length = len(row.tokens) - start
    sample.loss_mask = row.loss_mask[start:].astype(int).tolist()
    sample.rollout_log_probs = row.logprobs[start:].tolist()
    sample.rollout_routed_experts = _routed(row.routing)
    sample.metadata = {**(base.metadata or {}), KEY: about}
    return sample


def _routed(routing: Routing | None) -> np.ndarray | None:
    """Return routing in slime's layout: int32, a row for every token but the last, which was
    sampled and never run.
    """
    return None if routing is None else routing.experts[:-1].astype(np.int32)


def _about(record: RolloutRecord) -> dict[str, Any]:
    return {
        "rollout": record.rollout_id,
        "step": record.step,
        "session": record.session_id,
        "task": record.task_id,
        "outcome": record.outcome.code.value,
        "solved": record.solved,
    }


def _status(base: Any, value: str) -> Any:
    """Return a value of slime's ``Sample.Status``."""
    return type(base.status)(value)
