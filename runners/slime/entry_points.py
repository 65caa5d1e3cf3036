"""Functions that slime calls: run a rollout, compare rewards in their prompt group, evaluate.

    --custom-generate-function-path    runners.slime.entry_points.generate
    --custom-reward-post-process-path  runners.slime.entry_points.post_process_rewards
    --eval-function-path               runners.slime.entry_points.evaluate

The run directory, with the run's ``config.json``, is named by ``AGENTRL_RUN_DIR`` or by
``agentrl_run_dir`` in slime's ``--custom-config-path``. slime loads this module in its driver too,
so nothing heavy is imported before the first call, and it may be loaded by its file's path.

Invariant: ``generate`` always returns a list of samples of one shape. A rollout that fails becomes
a sample without weight, never an exception, unless no rollout could work: a wrong configuration, a
store that cannot be written, too many failures in a row.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

VARIABLE = "AGENTRL_RUN_DIR"

Samples = list[Any]
"""Of slime's ``Sample``, whose module is not imported: new ones are copies of the one given."""


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Samples:
    """Let the agent work on the sample's task; return a sample per segment, one in an evaluation.

    All share the ``rollout_id``; ``metadata["agentrl"]`` has the rollout's outcome. Raises
    AgentrlError if no further rollout could work, and CancelledError when slime cancels the
    rollout, after its sandbox is closed and its record is stored.
    """
    _ensure_importable()
    from runners.slime.worker import get_worker

    worker = await get_worker(args, run_dir(args))
    return await worker.run_rollout(
        sample, temperature=sampling_params["temperature"], evaluation=evaluation
    )


def post_process_rewards(args: Any, samples: Samples) -> tuple[list[float], list[float]]:
    """Return each sample's raw reward, and what it is trained with: its share of its rollout's
    advantage within the prompt's group.

    slime calls it when a step's rollouts are complete, so it also tells the run that their training
    begins. Raises ValueError for samples that ``generate`` did not make.
    """
    _ensure_importable()
    from conf.sections.task import find_part_weights
    from runners.slime.rewards import compute_rewards
    from runners.slime.worker import note_training_started, read_config
    from runners.training.estimators import make_estimator

    config = read_config(run_dir(args))
    estimator = make_estimator(config.trainer, find_part_weights(config.reward))
    rewards = compute_rewards(samples, estimator, min_group=config.trainer.min_group)
    note_training_started(run_dir(args), samples)
    return rewards


def evaluate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = True) -> Any:
    """Measure the policy on the run's held-out tasks; return slime's dictionary of data sets.

    Rollouts without a grade are left out of the rewards, and counted as ``agentrl_failed``.
    """
    _ensure_importable()
    from slime.utils.async_utils import run
    from slime.utils.types import Sample

    from runners.slime.worker import get_worker

    async def measure() -> dict[str, dict[str, Any]]:
        worker = await get_worker(args, run_dir(args))
        return await worker.evaluate(Sample, rollout_id)

    return run(measure())


def run_dir(args: Any) -> Path:
    """Return the run's directory; raises ConfigError if nothing names it."""
    from conf.errors import ConfigError

    named = getattr(args, "agentrl_run_dir", None) or os.environ.get(VARIABLE)
    if not named:
        raise ConfigError(
            [
                f"slime does not know the run's directory: set {VARIABLE} in the job's "
                "environment, or agentrl_run_dir in the file of --custom-config-path"
            ]
        )
    return Path(named)


def _ensure_importable() -> None:
    """Make our packages importable if this file was loaded by its path."""
    if importlib.util.find_spec("runners") is None:
        sys.path.append(str(Path(__file__).resolve().parents[2]))
