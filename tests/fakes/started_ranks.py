"""A trainer in several processes, as a run starts it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from conf.sections.training import RoutingReplayConfig
from runners.records.checkpoints import Checkpoint
from runners.records.store.run_store import RunStore
from runners.system.processes.ledger import Ledger
from runners.system.processes.service import ServiceError, ServiceStarter
from runners.training import checkpoint
from runners.training.local import NATIVE, LocalTrainer
from runners.training.ranks.client import TrainerRanks, start_ranks
from runners.training.ranks.settings import RankSettings
from tests.fakes.local_trainer import make_trainer


class StartedRanks:
    """Starts trainers for a run, and keeps the ends that nobody asked for."""

    def __init__(self, run_dir: Path, weights: Path) -> None:
        self.weights = self.made = weights
        """What the ranks load, and what their settings are made with."""
        self.store = RunStore.create(run_dir, {})
        self.ledger = Ledger(self.store)
        self.exits = AsyncExitStack()
        self.gone: list[ServiceError] = []
        self.starter = ServiceStarter(run_dir, self.exits, self.gone.append, self.ledger)

    async def start(
        self,
        saved: Checkpoint | None = None,
        routing: RoutingReplayConfig = NATIVE,
        ranks: int = 2,
        exchange_s: float = 300.0,
        **changes: Any,
    ) -> TrainerRanks:
        shard = changes.pop("shard", "none")  # nothing is divided in this process
        config = make_trainer(self.made, **changes).config
        settings = RankSettings(
            trainer=config.model_copy(update={"devices": ranks, "shard": shard}),
            routing=routing,
            weights=self.weights,
            temperature=0.7,
            seed=0,
            merges_adapters=True,
            checkpoint=saved.path if saved else None,
            step=saved.step if saved else 0,
            ranks=ranks,
            exchange_s=exchange_s,
        )
        return await start_ranks(settings, self.starter)


def save_ranks(trainer: TrainerRanks | LocalTrainer, root: Path, step: int) -> Checkpoint:
    options: dict[str, Any] = {"run_id": "x", "tokenizer": None}
    if isinstance(trainer, TrainerRanks):
        return trainer.save(root, step=step, state={"metrics": {"a": 1.5}}, **options)
    return checkpoint.save(trainer, root, step=step, state={"metrics": {"a": 1.5}}, **options)
