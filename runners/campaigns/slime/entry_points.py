"""Functions that slime calls: gather a batch of rollouts, compare rewards in their group, evaluate.

    --rollout-function-path            runners.campaigns.slime.entry_points.generate_rollout
    --data-source-path                 runners.campaigns.slime.data_source.RunDataSource
    --custom-reward-post-process-path  runners.campaigns.slime.entry_points.post_process_rewards
    --eval-function-path               runners.campaigns.slime.entry_points.evaluate

The run directory, with the run's ``config.json``, is named by ``AGENTRL_RUN_DIR`` or by
``agentrl_run_dir`` in slime's ``--custom-config-path``. slime loads this module in its driver too,
so nothing heavy is imported before the first call, and it may be loaded by its file's path.

Invariant: a batch always has the configured number of groups and rollouts, each a list of samples
of one shape. A rollout that fails becomes a sample without weight, never an exception, unless no
rollout could work: a wrong configuration, a store that cannot be written, too many failures in a
row.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

Samples = list[Any]
"""Of slime's ``Sample``."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Return the groups that slime trains in its step ``rollout_id`` (counted from 0), as its
    ``RolloutFnTrainOutput``: a list of groups, of rollouts, of samples.

    The samples of a rollout share its ``rollout_id``; ``metadata["agentrl"]`` has its outcome. With
    ``run.overlap`` slime asks for a batch while it trains the one before, and with ``stream``
    groups go on after the return. Raises AgentrlError if no further rollout could work.
    """
    _ensure_importable()
    from slime.rollout.base_types import RolloutFnTrainOutput
    from slime.utils.types import Sample

    from runners.campaigns.slime.loop import run_in_loop
    from runners.campaigns.slime.run_config import find_run_dir
    from runners.campaigns.slime.worker import get_worker

    async def gather() -> tuple[list[list[Samples]], dict[str, float]]:
        worker = await get_worker(args, find_run_dir(args), data_source.first_rollout)
        return await worker.gather(Sample, rollout_id)

    samples, metrics = run_in_loop(gather())
    return RolloutFnTrainOutput(samples=samples, metrics=metrics)


def post_process_rewards(args: Any, samples: Samples) -> tuple[list[float], list[float]]:
    """Return each sample's raw reward, and what it is trained with: its share of its rollout's
    advantage within the prompt's group.

    slime calls it when it has a batch, so it also tells the run that the batch is handed over.
    Raises ValueError for samples that ``generate_rollout`` did not make.
    """
    _ensure_importable()
    from conf.sections.task import find_part_weights
    from runners.campaigns.slime.rewards import compute_rewards
    from runners.campaigns.slime.run_config import find_run_dir, read_config
    from runners.campaigns.slime.worker import note_handed_over
    from runners.training.advantages import make_estimator

    run_dir = find_run_dir(args)
    config = read_config(run_dir)
    estimator = make_estimator(config.trainer, find_part_weights(config.reward))
    rewards = compute_rewards(samples, estimator, min_group=config.trainer.min_group)
    note_handed_over(run_dir)
    return rewards


def evaluate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = True) -> Any:
    """Measure the policy on the run's held-out tasks; return slime's dictionary of data sets.

    Rollouts without a grade are left out of the rewards, and counted as ``agentrl_failed``.
    """
    _ensure_importable()
    from slime.utils.types import Sample

    from runners.campaigns.slime.loop import run_in_loop
    from runners.campaigns.slime.run_config import find_run_dir
    from runners.campaigns.slime.worker import get_worker

    async def measure() -> dict[str, dict[str, Any]]:
        worker = await get_worker(args, find_run_dir(args), data_source.first_rollout)
        return await worker.evaluate(Sample, rollout_id)

    return run_in_loop(measure())


def _ensure_importable() -> None:
    """Make our packages importable if this file was loaded by its path."""
    if importlib.util.find_spec("runners") is None:
        sys.path.append(str(Path(__file__).resolve().parents[3]))
