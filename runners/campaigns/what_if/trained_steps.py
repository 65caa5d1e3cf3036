"""The rollouts that each finished step of a run was trained on, read back from its store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conf.schema import Config
from conf.sections.training import SlimeTrainerConfig
from runners.records.record import RolloutRecord
from runners.records.store import RunStore
from runners.training.advantages import GroupKey, key_of


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """A finished step, and its rollouts."""

    step: int
    records: list[RolloutRecord]
    """Group by group, as the step's advantages were computed from them."""


def find_trained_steps(store: RunStore, config: Config) -> Iterator[StepRollouts]:
    """Yield the finished steps that trained on rollouts, in order, one in memory at a time.

    ``config``: the run's own. Of an asynchronous campaign the schedule says which groups were
    trained together. Raises StoreError, and ScheduleError for a schedule that cannot be read.
    """
    batches = _read_batches(store, config)
    for row in store.steps():
        if row.state != "done":
            continue
        if batches is None:
            records = store.rollouts(step=row.step, split="train", counts=True)
            if isinstance(config.trainer, SlimeTrainerConfig):
                records = _choose_for_slime(config, row.step, records)
        else:
            records = _read_groups(store, batches.get(row.step, []))
        if records:
            yield StepRollouts(row.step, records)


def _read_batches(store: RunStore, config: Config) -> dict[int, list[GroupKey]] | None:
    """Return the groups of each step of an asynchronous campaign, those that were replaced while it
    gathered among them; None: every step has its own.
    """
    rows = store.schedule()
    if not rows:
        return None
    # Late: the campaign's modules take longer to import than most questions to answer.
    from runners.campaigns.overlap.events import Admit, Batch, from_row
    from runners.campaigns.overlap.run_schedule import find_place
    from runners.campaigns.schedule import count_supervised

    before, replaced = count_supervised(config), []
    found: dict[int, list[GroupKey]] = {}
    for kind, body in rows:
        match from_row(kind, body):
            case Admit(_, replaces) if replaces is not None:
                replaced.append(replaces)
            case Batch() as batch:
                groups = sorted((*batch.groups, *replaced))
                found[before + batch.number] = [find_place(config, group) for group in groups]
                replaced = []
    return found


def _read_groups(store: RunStore, groups: Iterable[GroupKey]) -> list[RolloutRecord]:
    """Return the rollouts of groups; those that were dealt for one step are read at once."""
    wanted = set(groups)
    return [
        record
        for dealt in sorted({step for step, _ in wanted})
        for record in store.rollouts(step=dealt, split="train", counts=True)
        if key_of(record) in wanted
    ]


def _choose_for_slime(
    config: Config, step: int, records: Iterable[RolloutRecord]
) -> list[RolloutRecord]:
    """Return the rollouts that slime got, which takes no more groups than a step has."""
    from runners.campaigns.slime.batches import choose_groups

    groups: dict[GroupKey, list[RolloutRecord]] = defaultdict(list)
    for record in records:
        groups[key_of(record)].append(record)
    return choose_groups(config, step, list(groups.values())).records
