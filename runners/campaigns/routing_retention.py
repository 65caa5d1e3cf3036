"""Delete the routing of steps that are trained, by ``routing_replay.keep_steps``.

Invariant: what a run needs that is resumed from its newest checkpoint, or from one that is up to
``keep_steps`` older, stays.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from conf.schema import Config
from conf.sections.training import RoutingRolloutConfig
from runners.campaigns.overlap.events import Admit, Batch, from_row
from runners.campaigns.overlap.run_schedule import find_place
from runners.campaigns.schedule import count_supervised
from runners.records.ids import parse_rollout_id, parse_session_id
from runners.records.store import RunStore

_log = logging.getLogger(__name__)


async def delete_old_routing(config: Config, store: RunStore, saved: int) -> None:
    """Delete the routing of steps before the last ``keep_steps`` of the newest checkpoint, which
    has ``saved`` steps; raises StoreError. A file that cannot be deleted is tried again next time.
    """
    replay = config.routing_replay
    if not isinstance(replay, RoutingRolloutConfig) or replay.keep_steps is None:
        return
    last = saved - replay.keep_steps
    if last < 1:
        return
    over = _find_trained(config, store, last) if store.has_schedule() else None

    def is_needed(session: str) -> bool:
        attempt = parse_session_id(session)
        place = None if attempt is None else parse_rollout_id(attempt[0])
        if place is None:
            return True  # no session of this campaign's
        split, step, group, _ = place
        # Without a schedule each step trains its own groups, as evaluations are of their steps.
        return step > last if over is None or split != "train" else (step, group) not in over

    await asyncio.to_thread(_delete, store.release_routing(is_needed))


def _delete(files: list[Path]) -> None:
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be deleted: %s", file, error)


def _find_trained(config: Config, store: RunStore, last: int) -> set[tuple[int, int]]:
    """Return step and number of the groups that the schedule's steps up to ``last`` have trained,
    or left out for others while one of those batches gathered.
    """
    over: set[int] = set()
    left_out: set[int] = set()
    for kind, body in store.schedule(("admit", "batch")):
        match from_row(kind, body):
            case Batch(number, groups) if number + count_supervised(config) <= last:
                over.update(groups, left_out)
                left_out.clear()
            case Admit(_, replaces) if replaces is not None:
                left_out.add(replaces)  # its step reads it too, and a rewound job may train it
    return {find_place(config, group) for group in over}
