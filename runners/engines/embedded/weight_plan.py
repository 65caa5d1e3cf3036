"""The weights that are to sample each token of planned requests: those of a recorded run.

A planned request waits, as a retracted one does, while the engine has older weights than its next
token is to have. What it samples is a function of weights, prefix and seed, so a run whose requests
follow the plan of another one has that one's tokens, whatever the timing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from runners.engines.contract import EngineError, session_id_of
from runners.records.ids import parse_session_id
from runners.records.record import IdArray

Plans = dict[str, dict[str, list[list[int]]]]
"""By rollout and by hash of a prompt: for each request with it, in order, the versions of its
tokens as runs, ``[version, tokens, version, tokens, …]``.
"""


class WeightPlan:
    """The plans of an engine's requests; a request that has none is free."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    @classmethod
    def read(cls, path: Path) -> WeightPlan:
        """Read a file of ``write_plans``; raises EngineError."""
        try:
            return cls(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot read the plan of weights {path}: {error}") from error

    def take(self, rid: str, prompt: IdArray) -> IdArray | None:
        """Return the versions of a request's tokens, int32 [m]; None: it is free.

        A prompt that a rollout sends again after a failure has the same plan.
        """
        session = parse_session_id(session_id_of(rid))
        if session is None:
            return None
        plans = self._plans.get(session[0], {}).get(hash_prompt(prompt))
        if not plans:
            return None
        runs = np.array(plans.pop(0) if len(plans) > 1 else plans[0], np.int32)
        return np.repeat(runs[0::2], runs[1::2])


def write_plans(path: Path, requests: Iterable[tuple[str, IdArray, IdArray]]) -> None:
    """Write the plans of ``(rollout, prompt, versions)``, int32 [n] and int32 [m > 0], in order."""
    plans: Plans = {}
    for rollout, prompt, versions in requests:
        starts = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1))
        runs = np.stack([versions[starts], np.diff(starts, append=len(versions))], 1)
        known = plans.setdefault(rollout, {}).setdefault(hash_prompt(prompt), [])
        known.append(runs.ravel().tolist())
    path.write_text(json.dumps(plans))


def hash_prompt(prompt: IdArray) -> str:
    """Return the key of a prompt, int32 [n]."""
    return hashlib.sha256(np.ascontiguousarray(prompt, np.int32).tobytes()).hexdigest()[:24]
