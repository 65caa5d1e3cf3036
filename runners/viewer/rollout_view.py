"""Reads one rollout for a viewer: any attempt of it, with its turns and chains, as exporters do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runners.export.contract import ExportedRollout
from runners.export.dump import describe_run, read_rollout
from runners.store.run_store import RunStore
from runners.trajectory.record import RolloutRecord
from runners.viewer.filters import ViewError


@dataclass(frozen=True, slots=True)
class ViewedRollout:
    """One attempt of a rollout, and what else there is of the rollout."""

    exported: ExportedRollout
    attempts: list[dict[str, Any]]
    """Each attempt: attempt, counts, code, message."""

    @property
    def record(self) -> RolloutRecord:
        """The attempt's record."""
        return self.exported.record


def open_rollout(store: RunStore, rollout_id: str, attempt: int | None = None) -> ViewedRollout:
    """Return a rollout's attempt, by default the one that counts, else the last; raises ViewError
    if there is none, and ChainError if its turns contradict each other.
    """
    records = store.attempts(rollout_id)
    if not records:
        raise ViewError(
            f"there is no rollout {rollout_id}: `agentrl rollouts {store.run_dir}` lists them"
        )
    wanted = [record for record in records if attempt is None or record.attempt == attempt]
    if not wanted:
        raise ViewError(
            f"rollout {rollout_id} has no attempt {attempt}: it has "
            f"{', '.join(str(record.attempt) for record in records)}"
        )
    record = next((each for each in wanted if each.counts), wanted[-1])
    return ViewedRollout(
        read_rollout(store, record, describe_run(store, None)),
        [
            {
                "attempt": each.attempt,
                "counts": each.counts,
                "code": each.outcome.code,
                "message": each.outcome.message,
            }
            for each in records
        ],
    )
