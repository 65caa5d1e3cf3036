"""Export of a run: ``trajectories.jsonl``, one strict JSON object per rollout; ``summary.json``.

Failures are in it; attempts that another replaced are not. One rollout is in memory at a time, and
a file appears under its name only when it is complete.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydantic import ValidationError

from conf.errors import ExitCode
from runners.trajectory.conversation import messages, tools
from runners.trajectory.jsontext import dumps, loads
from runners.trajectory.record import RolloutRecord, Segment, Turn
from runners.trajectory.segments import segments
from runners.trajectory.store import RunStore
from runners.trajectory.store_error import StoreError, store_error
from runners.trajectory.trajectory import SCHEMA_VERSION, Trajectory, faults

Decode = Callable[[Sequence[int]], str]
"""A tokenizer's ``decode``, special tokens kept."""

ONLY: dict[str, Callable[[RolloutRecord], bool]] = {
    "train": lambda record: record.split == "train",
    "eval": lambda record: record.split == "eval",
    "solved": lambda record: record.solved is True,
    "unsolved": lambda record: record.solved is False,
    "failed": lambda record: not record.outcome.meaning.reward_counts,
}
"""What ``--only`` can choose; "failed" are those whose reward does not count."""

_MAX_FAULTS = 100
"""A file with more is broken as a whole; the rest adds nothing."""


@dataclass(frozen=True, slots=True)
class DumpReport:
    """What was written."""

    trajectories: Path
    summary: Path
    rollouts: int
    bytes: int


def dump_jsonl(
    store: RunStore, out_dir: Path, *, only: str | None = None, decode: Decode | None = None
) -> DumpReport:
    """Write a run's trajectories and their summary to ``out_dir``; raises StoreError."""
    if only is not None and only not in ONLY:
        raise StoreError(f"--only {only}: choose one of {', '.join(ONLY)}", ExitCode.USAGE)
    keep = ONLY[only] if only else lambda _: True
    scenario = str(store.config().get("scenario", {}).get("kind", "linear"))
    run = store.run_dir.resolve().name
    summary = _Summary()
    lines, aside = out_dir / "trajectories.jsonl", out_dir / "summary.json"
    with _replacing(lines) as file:
        for record in store.each_rollout(counts=True):
            if keep(record):
                line = trajectory(record, store.turns(record.session_id), run, scenario, decode)
                file.write(dumps(line).encode() + b"\n")
                summary.add(record)
        size = file.tell()
    with _replacing(aside) as file:
        head = {"schema_version": SCHEMA_VERSION, "run": run, "only": only}
        evaluations = [{"step": row.step, **row.result} for row in store.evaluations()]
        file.write(dumps({**head, **summary.result(), "evaluations": evaluations}).encode() + b"\n")
    return DumpReport(lines, aside, summary.rollouts, size)


def trajectory(
    record: RolloutRecord, turns: list[Turn], run: str, scenario: str, decode: Decode | None = None
) -> dict[str, Any]:
    """Return the record of one attempt, in the form of ``Trajectory``, arrays as numpy."""
    chains = segments(turns)
    prompt = turns[0].prompt_new if turns else np.zeros(0, np.int32)
    sampled = sum(len(turn.output_ids) for turn in turns)
    outcome = record.outcome
    return {
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "step": record.step,
        "split": record.split,
        "group": record.group,
        "member": record.member,
        "rollout_id": record.rollout_id,
        "attempt": record.attempt,
        "session_id": record.session_id,
        "task": record.task_id,
        "scenario": scenario,
        "outcome": {
            "class": outcome.code.outcome_class,
            "code": outcome.code,
            "stage": outcome.stage,
            "message": outcome.message,
            "raw_finish_reason": outcome.raw_finish_reason,
        },
        "reward": {
            "score": record.reward,
            "solved": record.solved,
            "counted": outcome.meaning.reward_counts and record.reward is not None,
        },
        "advantage": record.advantage,
        "messages": messages(turns),
        "tools": tools(turns),
        "raw_prompt": {"ids": prompt, "text": decode(prompt.tolist()) if decode else None},
        "segments": [_segment(chain) for chain in chains],
        "turns": [_turn(turn) for turn in turns],
        "tokens": {
            "prompt": len(prompt),
            "sampled": sampled,
            "trained": record.trained_tokens,
            "context": sum(len(chain.tokens) for chain in chains) - sampled,
        },
        "usage": _usage(turns),
        "timings": record.timings,
        "final_message": record.final_message,
        "patch": record.patch,
        "verdict": record.verdict,
        "extra": record.extra,
    }


def validate(path: Path) -> list[str]:
    """Return what is wrong in a ``trajectories.jsonl``, with line numbers; empty if nothing."""
    found: list[str] = []
    seen: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                found += [f"line {number}: {fault}" for fault in _line_faults(line, number, seen)]
                if len(found) > _MAX_FAULTS:
                    return [*found[:_MAX_FAULTS], "… and more"]
    except OSError as error:
        raise store_error(error, path) from error
    return found


def _line_faults(line: bytes, number: int, seen: dict[str, int]) -> list[str]:
    if not line.endswith(b"\n"):
        return ["cut off (no newline at its end)"]
    try:
        loads(line)  # stricter than pydantic: no NaN, no lone surrogates
        record = Trajectory.model_validate_json(line)
    except ValidationError as error:
        return [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)[:5]
        ]
    except ValueError as error:
        return [f"not strict JSON: {error}"]
    first = seen.setdefault(record.rollout_id, number)
    again = [] if first == number else [f"{record.rollout_id} is on line {first} already"]
    return again + faults(record)


def _segment(chain: Segment) -> dict[str, Any]:
    return {
        "index": chain.index,
        "kind": chain.kind,
        "tokens": chain.tokens,
        "loss_mask": chain.loss_mask.astype(np.uint8),
        "logprobs": chain.logprobs,
        "weight_versions": chain.weight_versions,
        "turns": chain.turns,
    }


def _usage(turns: list[Turn]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for turn in turns:
        total.update(turn.usage)  # unlike a sum of counters, this keeps zeros
    return dict(total)


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "index": turn.index,
        "branch": turn.branch,
        "segment": turn.segment,
        "prompt_tokens": turn.prompt_kept + len(turn.prompt_new),
        "cached_tokens": turn.usage.get("cached_tokens", 0),
        "output_tokens": len(turn.output_ids),
        "weight_version": turn.weight_version,
        "finish_reason": turn.finish_reason,
        "break_reason": turn.break_reason,
        "malformed_calls": turn.malformed_calls,
        "started_at": turn.started_at,
        "engine_s": turn.engine_s,
        "total_s": turn.total_s,
    }


@dataclass(slots=True)
class _Summary:
    """Sums over the dumped rollouts; mutated by ``add``."""

    rollouts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    solved: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    turns: int = 0

    def add(self, record: RolloutRecord) -> None:
        self.rollouts += 1
        self.outcomes[record.outcome.code] += 1
        self.turns += record.turns
        self.tokens.update(sampled=record.sampled_tokens, trained=record.trained_tokens)
        if record.reward is not None and record.outcome.meaning.reward_counts:
            self.rewards.setdefault(record.split, []).append(record.reward)
            self.solved[record.split] += record.solved is True

    def result(self) -> dict[str, Any]:
        return {
            "rollouts": self.rollouts,
            "outcomes": dict(sorted(self.outcomes.items())),
            "turns_mean": self.turns / self.rollouts if self.rollouts else None,
            "tokens": {"sampled": self.tokens["sampled"], "trained": self.tokens["trained"]},
            "reward": {
                split: {
                    "count": len(rewards),
                    "mean": float(np.mean(rewards)),
                    "std": float(np.std(rewards)),
                    "min": min(rewards),
                    "max": max(rewards),
                    "solve_rate": self.solved[split] / len(rewards),
                }
                for split, rewards in sorted(self.rewards.items())
            },
        }


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that appears under its name complete, or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise store_error(error, path) from error
