"""Rules of asynchronous campaigns: what overlaps with training, and how old it may become."""

from __future__ import annotations

from collections.abc import Iterator

from conf.rules.rule import Rule
from conf.sections.rollout import RolloutConfig
from conf.sections.run import STALENESS, RunConfig
from conf.sections.training import LocalTrainerConfig, TrainerConfig


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
        not isinstance(trainer, LocalTrainerConfig),
        f"{chosen} is of trainer=local, and trainer={trainer.kind} takes turns: set "
        "run.overlap=none, or choose trainer=local",
    )
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
    if run.overlap == "step":
        yield (
            run.keep_checkpoints < 2,
            f"{chosen} and run.keep_checkpoints={run.keep_checkpoints}: a resumed run may need the "
            "weights of the last step but one; raise run.keep_checkpoints to 2",
        )
        return
    if run.window is not None:
        most = STALENESS if run.staleness is None else run.staleness
        yield (
            run.window > most,
            f"run.window={run.window} is more than run.staleness={most}: groups would be too old "
            "before their turn; lower run.window",
        )
