"""The schedule of a finished run, which another run replays.

It gives what timing decided: which groups were trained together, which were replaced, the weights
with which each began, and those that sampled each token. The rest is a function of the
configuration, so the replayed run has the recorded one's checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from conf.schema import Config
from conf.sections.engine import EmbeddedEngineConfig
from runners.campaigns.overlap.events import (
    Admit,
    Batch,
    ScheduleError,
    Start,
    from_row,
    read_deals,
)
from runners.engines.embedded.weight_plan import write_plans
from runners.records.graph import TurnGraph
from runners.records.record import IdArray
from runners.records.store import RunStore


class RecordedSchedule:
    """Schedule that a run is to repeat; read once."""

    def __init__(self, run_dir: Path, config: Config, plan: Path) -> None:
        """Read the run in ``run_dir``, and write the weights of its tokens to ``plan``.

        Raises ScheduleError unless it is a finished asynchronous run of as many steps, StoreError.
        """
        self.run_dir = run_dir
        self.batches: dict[int, Batch] = {}
        self.starts: dict[int, int] = {}
        """Version of each group's first weights, counted as the schedule does."""
        self.replaced: set[int] = set()
        self.left_out: dict[int, tuple[int, ...]] = {}
        """Groups that were replaced while each batch gathered."""
        self.tokens: Counter[int] = Counter()
        """Tokens of training rollouts by the version of their weights."""
        if not isinstance(config.engine, EmbeddedEngineConfig):
            raise ScheduleError(
                f"{run_dir} cannot be replayed: engine={config.engine.kind} does not compute a "
                "token with the same bits in any batch, as engine=embedded does"
            )
        with RunStore.open(run_dir, read_only=True) as store:
            done = len(store.finished_steps())
            rows = store.schedule()
            if not rows or done != config.run.steps:
                raise ScheduleError(
                    f"{run_dir} cannot be replayed: it has {done} finished steps of "
                    f"run.steps={config.run.steps} and {len(rows)} rows of a schedule; "
                    "name a finished run of run.overlap=step or stream"
                )
            self.deals = read_deals(rows)
            """Tasks of each step; none in a run from before they were logged."""
            if config.run.sampler != "epoch" and not self.deals:
                raise ScheduleError(
                    f"{run_dir} cannot be replayed: run.sampler={config.run.sampler} chose its "
                    "tasks by what was solved before it was asked, and the schedule of this older "
                    "run does not name them"
                )
            replaced: list[int] = []
            for kind, body in rows:
                match from_row(kind, body):
                    case Batch() as batch:
                        self.batches[batch.number] = batch
                        self.left_out[batch.number], replaced = tuple(replaced), []
                    case Start(group, version):
                        self.starts[group] = version
                    case Admit(_, replaces) if replaces is not None:
                        replaced.append(replaces)
                        self.replaced.add(replaces)
            write_plans(plan, self._requests(store))

    def _requests(self, store: RunStore) -> Iterator[tuple[str, IdArray, IdArray]]:
        """Yield rollout, prompt and versions of each training turn that counts."""
        for record in store.each_rollout(split="train", counts=True):
            graph = TurnGraph(store.turns(record.session_id))
            for node in graph.nodes:
                versions = node.output_versions
                if len(versions):
                    self.tokens.update(versions.tolist())
                    whole = node.tokens()
                    yield record.rollout_id, whole[: len(whole) - len(versions)], versions
