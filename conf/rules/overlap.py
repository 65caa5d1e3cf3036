"""Rules of asynchronous campaigns: what overlaps with training, and how old it may become."""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.rollout import RolloutConfig
from conf.sections.run import STALENESS, RunConfig
from conf.sections.training import SlimeTrainerConfig, TrainerConfig


def overlap_rules(run: RunConfig, rollout: RolloutConfig, trainer: TrainerConfig) -> Iterator[Rule]:
    """Yield the rules of ``run.overlap``: rollouts of older weights are corrected, and bounded."""
    chosen = f"run.overlap={run.overlap}"
    for name in ("staleness", "window"):
        value = getattr(run, name)
        yield (
            value is not None and run.overlap != "stream",
            f"run.{name}={value} is of run.overlap=stream alone: leave it out, or choose that",
        )
    if run.overlap == "none":
        return
    yield (
        trainer.correction.truncate == "none" and run.staleness != 0,
        f"{chosen} trains on rollouts of older weights, and trainer.correction.truncate=none does "
        "not correct for them: set trainer.correction.truncate=token",
    )
    yield (
        rollout.oversample_groups > 0,
        f"rollout.oversample_groups={rollout.oversample_groups} and {chosen}: groups of further "
        "steps run already; set rollout.oversample_groups=0",
    )
    if isinstance(trainer, SlimeTrainerConfig):
        yield from _slime_overlap_rules(run, trainer)
    elif run.overlap == "step":
        yield (
            run.keep_checkpoints < 2,
            f"{chosen} and run.keep_checkpoints={run.keep_checkpoints}: a resumed run may need the "
            "weights of the last step but one; raise run.keep_checkpoints to 2",
        )
    if run.overlap == "stream" and run.window is not None:
        most = STALENESS if run.staleness is None else run.staleness
        ahead = isinstance(trainer, SlimeTrainerConfig)  # of the batch that is asked for early
        yield (
            run.window > most - ahead,
            f"run.window={run.window} is more than run.staleness={most}{' − 1' if ahead else ''}: "
            "groups would be too old before their turn; lower run.window",
        )


def _slime_overlap_rules(run: RunConfig, trainer: SlimeTrainerConfig) -> Iterator[Rule]:
    """Yield the rules of ``train_async.py``: it refuses shared GPUs, and asks for a batch while it
    trains the one before.
    """
    yield (
        trainer.rollout_nodes == 0,
        f"run.overlap={run.overlap} samples while it trains, and trainer.rollout_nodes=0 lets both "
        "take turns on the same GPUs (colocated): set trainer.rollout_nodes to the number of nodes "
        "that sample, or run.overlap=none",
    )
    yield (
        run.overlap == "stream" and run.staleness == 0,
        "run.staleness=0, and trainer=slime asks for a batch while it trains the one before, so "
        "that it is one update old: raise run.staleness to 1, or set run.overlap=none",
    )
