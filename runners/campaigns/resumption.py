"""Refuse to resume a run whose store, arrays and checkpoints do not belong together.

Without this a run whose checkpoints were lost would go on from the starting policy, or from older
weights, and count as the run that it no longer is.
"""

from __future__ import annotations

from runners.campaigns.overlap.run_schedule import find_staleness
from runners.records.checkpoints import (
    CHECKPOINTS,
    OPTIMIZER,
    Checkpoint,
    CheckpointError,
    directory_name,
    find_latest,
)
from runners.records.store import RunStore, StoreError

REPLAY = "replay"
"""Event of a run that replays another one's schedule."""


def check_resumable(store: RunStore, *, rewind: bool = False) -> None:
    """Raise StoreError or CheckpointError (exit code 5) unless the local trainer can continue the
    run exactly where its store ends.

    The newest checkpoint must be that of the last finished step, or of the step after it: a
    checkpoint is written before its step's row. With ``rewind`` it may be an older one, or none.
    """
    if store.events(REPLAY):
        raise StoreError(
            f"{store.run_dir} replays the schedule of another run, which is done from its start: "
            "give --replay-schedule again, with another run.dir"
        )
    store.verify_arrays(find_staleness(store.config().get("run", {})))
    done, saved = _last_step(store), find_latest(store.run_dir / CHECKPOINTS)
    if saved is not None:
        _check_origin(saved, store)
        if saved.step > done + 1:
            raise CheckpointError(
                f"the newest checkpoint is {saved.path}, but the store ends with step {done}: the "
                "store is an older copy; restore the run directory as a whole, or start a new run "
                f"with model.path={saved.path}"
            )
    last = 0 if saved is None else saved.step
    if last < done and rewind and store.schedule():
        raise CheckpointError(
            f"--rewind drops the steps after {last}, and rollouts of this run's run.overlap belong "
            f"to their weights: copy {directory_name(done)} back, or start a new run with "
            "model.path set to the newest checkpoint"
        )
    if last < done and not rewind:
        newest = "there is no checkpoint" if saved is None else f"the newest is {saved.path}"
        raise CheckpointError(
            f"the store has {done} finished steps, but of their checkpoints {newest}: copy "
            f"{directory_name(done)} back to {store.run_dir / CHECKPOINTS}, or add --rewind, which "
            f"drops the steps after {last} and repeats them"
        )


def rewind_store(store: RunStore) -> None:
    """Drop the steps after the newest checkpoint, so that they are repeated."""
    saved = find_latest(store.run_dir / CHECKPOINTS)
    last, done = 0 if saved is None else saved.step, _last_step(store)
    if last < done:
        store.rewind(last, _find_lost(store, last))
        store.event("rewound", {"from_step": done, "to_step": last})


def _find_lost(store: RunStore, last: int) -> list[str]:
    """Return the sessions of rollouts that are made anew after ``last`` steps: those after the next
    step, and of that one those whose routing was deleted (``routing_replay.keep_steps``).
    """
    replayed = store.config().get("routing_replay", {}).get("kind") == "rollout"
    routed = store.routed_sessions()
    return [
        record.session_id
        for record in store.rollouts(split="train", counts=True)
        if record.step > last + 1
        or (
            replayed
            and record.step == last + 1
            and record.reward is not None
            and record.session_id not in routed
        )
    ]


def _check_origin(saved: Checkpoint, store: RunStore) -> None:
    """Raise CheckpointError for a checkpoint that is damaged, or another run's."""
    run_id = saved.run_id()
    if run_id is not None and run_id != store.run_id:
        raise CheckpointError(
            f"checkpoint {saved.path} was written by another run than the one in "
            f"{store.run_dir}: put this run's own checkpoints and store together again, or start "
            f"a new run with model.path={saved.path}"
        )
    if not (saved.path / OPTIMIZER).is_file():
        raise CheckpointError(
            f"checkpoint {saved.path} is damaged (no {OPTIMIZER}): restore it from a copy, or "
            "remove it and add --rewind"
        )


def _last_step(store: RunStore) -> int:
    return max(store.finished_steps(), default=0)
