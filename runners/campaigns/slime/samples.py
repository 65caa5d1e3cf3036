"""Convert a rollout to slime's samples.

The response region of a sample begins at the first token that was sampled in its segment; a prefix
shared with a sibling is prompt. Invariants: ``loss_mask`` and ``rollout_log_probs`` are as long as
the region, routing has a row for every token but the last, and a rollout has at least one sample,
so that every column is there for all or for none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conf.sections.training import FanoutConfig
from runners.campaigns.slime.placeholder import constant_placeholder, prompt_placeholder
from runners.campaigns.slime.rewards import KEY
from runners.records.outcome import OutcomeClass
from runners.records.record import IdArray, RolloutRecord, Segment
from runners.records.routing import Routing, RoutingError, RoutingShape
from runners.training.routing import find_routing_fault
from runners.training.sample import Sample
from runners.training.step_samples import StoredRollout, fan_out


@dataclass(frozen=True, slots=True)
class SampleConfig:
    """The settings of a run by which rollouts become samples."""

    fanout: FanoutConfig
    train_unfinished: bool
    decode: Callable[[list[int]], str]
    """The tokenizer's."""
    pad: int
    """Token id of placeholders."""
    shape: RoutingShape | None
    """Set if samples carry routing."""
    stops_at_bad_routing: bool = False
    """Impossible routing raises RoutingError, otherwise its sample has no weight."""


def to_slime_samples(
    base: Any, rollout: StoredRollout, config: SampleConfig, *, evaluation: bool
) -> list[Any]:
    """Return the samples of a rollout, copies of slime's ``base``; never an empty list.

    In an evaluation the final segment only, or the last one if there is no final one. A rollout
    without a grade, or of which no segment is trained, is a placeholder.
    """
    record = rollout.record
    kept: list[Segment] = []

    def routing(segment: Segment) -> Routing | None:
        kept.append(segment)  # fan_out asks once for each segment that it keeps, in order
        return rollout.routing(segment)

    fan = fan_out(record.rollout_id, rollout.segments, 1.0, config.fanout, routing)
    pairs = list(zip(kept, fan.samples, strict=True))
    if evaluation:
        finals = [pair for pair in pairs if pair[0].kind == "final"]
        pairs = finals or pairs[-1:]
    if not pairs or record.reward is None:
        prompt = rollout.turns[0].prompt_new if rollout.turns else None
        return [placeholder(base, record, config, prompt)]
    return [_to_sample(base, rollout, segment, row, config) for segment, row in pairs]


def make_base_sample(sample_class: Any, record: RolloutRecord, group: int, index: int) -> Any:
    """Return slime's ``Sample`` of a rollout, numbered over the whole job, before anything is
    sampled; its samples are copies of it.
    """
    return sample_class(
        group_index=group,
        index=index,
        rollout_id=index,
        prompt="",
        label=record.task_id,
        metadata={"instance_id": record.task_id},
    )


def placeholder(
    base: Any, record: RolloutRecord | None, config: SampleConfig, prompt: IdArray | None = None
) -> Any:
    """Return the sample of a rollout of which nothing is trained.

    ``prompt``: int32 [n], the rollout's first one; without it the sample is a constant, which
    needs nothing that could fail.
    """
    name = record.rollout_id if record is not None else ""
    row = (
        constant_placeholder(name, config.pad, config.shape)
        if prompt is None
        else prompt_placeholder(name, prompt, config.pad, config.shape)
    )
    sample = copy.copy(base)
    graded = record is not None and record.reward is not None
    sample.status = _status(base, "failed")
    sample.response = ""
    sample.weight_versions = []
    sample.reward = record.reward if record is not None and graded else 0.0
    sample.remove_sample = True
    metadata = {"graded": graded, "share": 0.0, "kind": "placeholder"}
    if record is not None:
        metadata |= _metadata(record)
    return _fill_columns(sample, base, row, len(row.tokens) - 1, metadata)


def _to_sample(
    base: Any, rollout: StoredRollout, segment: Segment, row: Sample, config: SampleConfig
) -> Any:
    record, start = rollout.record, int(np.argmax(row.loss_mask))
    own_turns = [rollout.turns[index] for index in segment.own_turns]
    sample = copy.copy(base)
    outcome_class = record.outcome.code.outcome_class
    out_of_budget = outcome_class is OutcomeClass.BUDGET
    cut = len(row.tokens) < len(segment.tokens)
    truncated = cut or own_turns[-1].finish_reason == "length" or out_of_budget
    sample.status = _status(base, "truncated" if truncated else "completed")
    sample.response = config.decode(row.tokens[start:].tolist())
    sample.reward = record.reward
    sample.weight_versions = [str(turn.weight_version) for turn in own_turns]
    routing = _check_routing(row, config)
    unfinished = out_of_budget and not config.train_unfinished
    untrained = unfinished or not record.outcome.meaning.trained
    # slime replays routing for whole samples only: one row that is missing takes the sample out.
    sample.remove_sample = untrained or bool(routing["missing"]) or routing["fault"] is not None
    metadata = {
        "graded": True,
        "share": row.advantage,
        "kind": segment.kind,
        "segment": segment.index,
        "thread": segment.thread,
        "routing": routing,
        **_metadata(record),
    }
    return _fill_columns(sample, base, row, start, metadata)


def _check_routing(row: Sample, config: SampleConfig) -> dict[str, Any]:
    """Return what is wrong with a sample's routing: the number of rows that are ``missing``, of
    ``rows``, and the ``fault`` that makes the others impossible. That they belong to these tokens
    was checked when they were read.
    """
    if row.routing is None or config.shape is None:
        return {"rows": 0, "missing": 0, "fault": None}
    fault = find_routing_fault(row, config.shape)
    if fault is not None and config.stops_at_bad_routing:
        raise RoutingError(f"{row.rollout_id} {fault}")
    valid = row.routing.valid[:-1]
    return {"rows": len(valid), "missing": int((~valid).sum()), "fault": fault}


def _fill_columns(sample: Any, base: Any, row: Sample, start: int, metadata: dict[str, Any]) -> Any:
    """Fill the columns that slime trains on; the response region begins at token ``start``."""
    sample.rollout_id = base.index if base.rollout_id is None else base.rollout_id
    sample.session_id = metadata.get("session", getattr(base, "session_id", None))
    sample.tokens = row.tokens.tolist()
    sample.response_length = len(row.tokens) - start
    sample.loss_mask = row.loss_mask[start:].astype(int).tolist()
    sample.rollout_log_probs = row.logprobs[start:].tolist()
    sample.rollout_routed_experts = _routing_array(row.routing)
    sample.metadata = {**(base.metadata or {}), KEY: metadata}
    return sample


def _routing_array(routing: Routing | None) -> np.ndarray | None:
    """Return routing in slime's layout, int32 [T − 1, layers, top_k].

    The last token was sampled and never run, so it has no row.
    """
    return None if routing is None else routing.experts[:-1].astype(np.int32)


def _metadata(record: RolloutRecord) -> dict[str, Any]:
    return {
        "rollout": record.rollout_id,
        "step": record.step,
        "session": record.session_id,
        "task": record.task_id,
        "outcome": record.outcome.code.value,
        "solved": record.solved,
        "parts": record.reward_parts,
    }


def _status(base: Any, value: str) -> Any:
    """Return a value of slime's ``Sample.Status``, an enumeration that is not imported."""
    return type(base.status)(value)
