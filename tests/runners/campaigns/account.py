"""The account of a run, for comparison with another run of the same configuration.

Left out is what differs between two undisturbed runs: times, pids, and which attempt counts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from runners.observe.export.jsonl import validate
from runners.observe.export.run_dump import dump
from runners.observe.live.result import metrics_rows
from runners.records.store.run_store import RunStore

_TIMED = (
    *("time/", "tokens/per_s", "disk/", "alarms"),
    *("rollout/retried", "rollout/engine_retries", "rollout/pushed_back"),
)
"""Metrics that depend on the clock, or on the number of attempts."""


def account(store: RunStore) -> dict[str, Any]:
    """Return what must be equal; raises AssertionError for what contradicts itself."""
    records = store.rollouts(counts=True)
    lines = (store.run_dir / "metrics.jsonl").read_text().splitlines()
    return {
        "state": (store.state().state.value, store.state().exit_code),
        "steps": [(row.step, row.state, row.tasks) for row in store.steps()],
        "evaluations": [(row.step, row.result) for row in store.evaluations()],
        "metrics": [_metrics(row) for row in metrics_rows(store)],
        "metrics.jsonl": [_metrics(json.loads(line)) for line in lines],
        "rollouts": {record.rollout_id: _rollout(store, record) for record in records},
        "rollouts that count twice": [
            rollout_id
            for rollout_id, count in Counter(record.rollout_id for record in records).items()
            if count > 1
        ],
        "checkpoints": {
            path.name: _digests(path) for path in (store.run_dir / "checkpoints").iterdir()
        },
        "integrity": store.query("PRAGMA integrity_check")[0][0],
        "broken": broken(store, store.run_dir / "dump"),
    }


def broken(store: RunStore, out: Path) -> list[str]:
    """Return what is wrong with a store for itself; dumps it to ``out``."""
    found = []
    for session_id in store.sessions():
        indices = [turn.index for turn in store.turns(session_id)]
        if indices != list(range(len(indices))):
            found.append(f"{session_id} has the turns {indices}")
    for record in store.rollouts():
        if not record.sampled_tokens:
            continue  # never came to its end
        turns = store.turns(record.session_id)
        sampled = sum(len(turn.output_ids) for turn in turns)
        if sampled != record.sampled_tokens or len(turns) != record.turns:
            found.append(f"{record.session_id} has {sampled} tokens, {record.sampled_tokens} said")
    dump(store, out)
    return found + validate(out / "trajectories.jsonl")


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return where two accounts differ."""
    return list(_differ("", wanted, found))


def assert_nothing_twice(store: RunStore) -> None:
    """Every step, rollout and evaluation of a miniature is there once, as is each line of metrics.

    The miniature is the one of ``conftest.py``, unchanged: two steps, and an evaluation before them
    and after.
    """
    lines = (store.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert [(row.step, row.state) for row in store.steps()] == [(1, "done"), (2, "done")]
    assert [row.step for row in store.evaluations()] == [0, 2]
    ids = Counter(record.rollout_id for record in store.rollouts(counts=True))
    assert len(ids) == 2 * 2 * 4 + 2 * 4
    assert set(ids.values()) == {1}


def _differ(where: str, wanted: Any, found: Any) -> list[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            line
            for key in dict.fromkeys([*wanted, *found])
            for line in _differ(f"{where}/{key}", wanted.get(key, "?"), found.get(key, "?"))
        ]
    return [] if wanted == found else [f"{where[1:]}: {found!r}, not {wanted!r}"]


def _digests(checkpoint: Path) -> dict[str, str]:
    """Return the digest of each tensor file: weights and optimizer state are equal bit for bit."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        for file in sorted(checkpoint.glob("*.safetensors"))
    }


def _metrics(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(_TIMED)}


def _rollout(store: RunStore, record: Any) -> dict[str, Any]:
    digest = hashlib.sha256()
    for turn in store.turns(record.session_id):
        digest.update(turn.prompt_new.tobytes() + b"|" + turn.output_ids.tobytes())
        digest.update(turn.output_logprobs.tobytes())
    return {
        "task": record.task_id,
        "outcome": record.outcome.code.value,
        "reward": record.reward,
        "advantage": record.advantage,
        "turns": record.turns,
        "sampled": record.sampled_tokens,
        "trained": record.trained_tokens,
        "patch": record.patch,
        "tokens and logprobs": digest.hexdigest()[:12],
    }
