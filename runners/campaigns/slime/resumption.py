"""Take a run back to the checkpoint that slime has loaded.

slime saves every ``trainer.save_every`` steps; what it trained after that is lost with its weights.
Versions are counted as steps, over all executions of a job: version v are the weights after v
steps. Invariant: a rollout is kept only if no token of it was sampled by weights that are lost, and
none is older than ``run.overlap`` allows.
"""

from __future__ import annotations

from conf.schema import Config
from conf.sections.training import RoutingRolloutConfig
from runners.campaigns.overlap.events import Admit, Batch, Ready, Start, from_row
from runners.campaigns.overlap.run_schedule import find_staleness
from runners.records.record import UNKNOWN_VERSION, RolloutRecord
from runners.records.store import RunStore


def rewind_job(config: Config, store: RunStore, done: int) -> None:
    """Drop what came after the first ``done`` steps; raises StoreError."""
    ranges = store.version_ranges()
    if config.run.overlap == "stream":
        store.rewind_schedule(done)
    trained, ready, begun = _read_schedule(store)
    routed = None
    if isinstance(config.routing_replay, RoutingRolloutConfig):
        # That of trained steps may be deleted (routing_replay.keep_steps).
        routed = store.routed_sessions()

    def is_unrouted(record: RolloutRecord) -> bool:
        return routed is not None and record.reward is not None and record.session_id not in routed

    def find_group(record: RolloutRecord) -> int:
        return (record.step - 1) * config.run.tasks_per_step + record.group

    def is_kept(record: RolloutRecord) -> bool:
        oldest, newest = ranges.get(record.session_id, (UNKNOWN_VERSION, UNKNOWN_VERSION))
        usable = record.reward is not None and oldest > UNKNOWN_VERSION and newest <= done
        usable = usable and not is_unrouted(record)
        if config.run.overlap == "stream":
            group = find_group(record)
            return group in trained | ready or (group in begun and usable)
        age = record.step - 1 - oldest
        staleness = find_staleness({"overlap": config.run.overlap})
        return record.step <= done or (usable and age <= staleness)

    found = store.rollouts(split="train", counts=True)
    # A complete group whose batch is lost, of a checkpoint older than keep_steps covers.
    if reopened := (ready - trained) & {find_group(each) for each in found if is_unrouted(each)}:
        store.drop_ready(reopened)
        ready -= reopened
    store.rewind(done, [record.session_id for record in found if not is_kept(record)])


def _read_schedule(store: RunStore) -> tuple[set[int], set[int], set[int]]:
    """Return the groups of the schedule that are trained or replaced, ready, and begun."""
    trained: set[int] = set()
    ready: set[int] = set()
    begun: set[int] = set()
    for kind, body in store.schedule():
        match from_row(kind, body):
            case Admit(_, replaces) if replaces is not None:
                trained.add(replaces)
            case Start(group):
                begun.add(group)
            case Ready(group):
                ready.add(group)
            case Batch(_, groups):
                trained.update(groups)
    return trained, ready, begun
