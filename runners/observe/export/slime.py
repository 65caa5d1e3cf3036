"""Writes ``slime/``: samples for slime's trainer (``slime.utils.types.Sample``), without pickle.

``samples.jsonl`` has a line per segment with the fields of ``Sample``, save its arrays; those lie
in ``arrays-00000.npz``, ``arrays-00001.npz``, …, one entry per sample and field::

    {"index": 7, "group_index": 2, "rollout_id": 5, "prompt": [...], "response_length": 31,
     "reward": 1.0, "status": "completed", "remove_sample": false, "metadata": {...},
     "arrays": "arrays-00000.npz"}

    7/tokens             int32   [T]  the leading prompt, then the response region
    7/loss_mask          uint8   [response_length]  1 exactly on the tokens sampled in this segment
    7/rollout_log_probs  float32 [response_length]  0.0 where the mask is 0
    7/rollout_routed_experts  int32 [T - 1, layers, top_k]  if the run has routing

``read_samples`` yields each as one dictionary; in slime, ``Sample.from_dict`` takes it as it is,
after ``.tolist()`` on the arrays. The response region begins at the first token that was sampled
in the segment; a prefix shared with a sibling is prompt. Siblings share ``rollout_id`` and carry
the rollout's whole reward: how it is shared is the trainer's choice. ``remove_sample`` marks what
must not be trained: rollouts without a grade, and side queries.

slime's trainer wants routing for all samples or for none. A token without routing gets distinct
experts, all experts equally often, which its validator and its dispatchers accept.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runners.observe.export.contract import AddRollout, ExportedRollout, ExportedRun
from runners.observe.export.conversation import join_messages
from runners.records.outcome import OutcomeClass
from runners.records.record import RolloutRecord, Segment, Turn
from runners.records.routing import RoutingShape, TurnRouting, build_segment_routing
from runners.records.text import dumps, loads

ROLLOUTS_PER_FILE = 64
"""The directory of an open zip file is held in memory, about 10 kB per rollout."""
_STATUS = {
    OutcomeClass.POLICY: "completed",
    OutcomeClass.BUDGET: "truncated",
    OutcomeClass.INFRA: "failed",
    OutcomeClass.GRADER: "failed",
    OutcomeClass.CANCELLED: "aborted",
    OutcomeClass.INTERNAL: "failed",
}
_ARRAYS = ("tokens", "loss_mask", "rollout_log_probs")
_ROUTING = "rollout_routed_experts"

Array = NDArray[Any]


@contextmanager
def write_slime(folder: Path, run: ExportedRun) -> Iterator[AddRollout]:
    """Write a line per segment, and its arrays."""
    place = folder / "slime"
    place.mkdir()
    shards = _Shards(place)
    with (place / "samples.jsonl").open("wb") as index:
        samples, rollouts, group = 0, 0, -1
        last: tuple[int, str, int] | None = None

        def add(rollout: ExportedRollout) -> None:
            nonlocal samples, rollouts, group, last
            record = rollout.record
            key = (record.step, record.split, record.group)
            if key != last:  # groups come one after the other
                group, last = group + 1, key
            turns = rollout.routing() if run.routing is not None else {}
            for chain in rollout.chains:
                if not chain.loss_mask.any():
                    continue
                line, arrays = _sample(record, chain, rollout, run)
                if run.routing is not None:
                    arrays[_ROUTING] = _routed_experts(chain, turns, run.routing)
                shard = shards.write(rollouts // ROLLOUTS_PER_FILE, samples, arrays)
                head = {"index": samples, "group_index": group, "rollout_id": rollouts}
                index.write(dumps({**head, **line, "arrays": shard}).encode() + b"\n")
                samples += 1
            rollouts += 1

        try:
            yield add
        finally:
            shards.close()


def read_samples(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the samples of a ``slime`` directory as ``Sample`` fields, arrays as numpy."""
    with (folder / "samples.jsonl").open("rb") as index:
        for shard, lines in groupby(map(loads, index), itemgetter("arrays")):
            with np.load(folder / shard, allow_pickle=False) as arrays:
                for line in lines:
                    del line["arrays"]
                    fields = {field: f"{line['index']}/{field}" for field in (*_ARRAYS, _ROUTING)}
                    yield line | {
                        field: arrays[entry] for field, entry in fields.items() if entry in arrays
                    }


def _sample(
    record: RolloutRecord, chain: Segment, rollout: ExportedRollout, run: ExportedRun
) -> tuple[dict[str, Any], dict[str, Array]]:
    start = int(np.argmax(chain.loss_mask))
    own = [rollout.turns[index] for index in chain.own_turns]
    before = [rollout.turns[index] for index in chain.turns[: -len(own)]]
    prompt = [*join_messages(before), *own[0].request.get("messages", [])]
    outcome = record.outcome
    line: dict[str, Any] = {
        "prompt": prompt,
        "response": run.decode(chain.tokens[start:].tolist()) if run.decode else "",
        "response_length": len(chain.tokens) - start,
        "label": None,
        "reward": record.reward,
        "weight_versions": [str(turn.weight_version) for turn in own],
        "remove_sample": not outcome.meaning.trained or chain.kind == "side",
        "status": _status(record, own),
        "session_id": record.session_id,
        "metadata": {
            "rollout": record.rollout_id,
            "task": record.task_id,
            "step": record.step,
            "split": record.split,
            "member": record.member,
            "segment": chain.index,
            "kind": chain.kind,
            "thread": chain.thread,
            "parent_thread": chain.parent_thread,
            "outcome": outcome.code,
            "solved": record.solved,
            "advantage": record.advantage,
        },
    }
    arrays: dict[str, Array] = {
        "tokens": chain.tokens,
        "loss_mask": chain.loss_mask[start:].astype(np.uint8),
        "rollout_log_probs": chain.logprobs[start:],
    }
    return line, arrays


def _routed_experts(chain: Segment, turns: Mapping[int, TurnRouting], shape: RoutingShape) -> Array:
    """Return a chain's routing in slime's layout: the last token never went through the model."""
    return build_segment_routing(chain, turns, shape).experts[:-1].astype(np.int32)


def _status(record: RolloutRecord, own: list[Turn]) -> str:
    status = _STATUS[record.outcome.code.outcome_class]
    cut = own[-1].finish_reason == "length"
    return "truncated" if cut and status == "completed" else status


class _Shards:
    """Writes the array files, entry by entry, with one file open at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._file: zipfile.ZipFile | None = None

    def write(self, number: int, sample: int, arrays: dict[str, Array]) -> str:
        """Append a sample's arrays; returns the file's name."""
        name = f"arrays-{number:05}.npz"
        if name != self._name:
            self.close()
            self._name, self._file = name, zipfile.ZipFile(self._folder / name, "w")
        assert self._file is not None
        for field, array in arrays.items():
            with self._file.open(f"{sample}/{field}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)
        return name

    def close(self) -> None:
        """Finish the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None
