"""What slime calls: rollouts by agents, rewards compared within their prompt group, evaluation.

    --custom-generate-function-path    runners.slime.entry_points.generate
    --custom-reward-post-process-path  runners.slime.entry_points.post_process_rewards
    --eval-function-path               runners.slime.entry_points.evaluate

The run directory, with the run's ``config.json``, is named by ``AGENTRL_RUN_DIR`` or by
``agentrl_run_dir`` in slime's ``--custom-config-path``. slime loads this module in its driver too,
so nothing heavy is imported before the first call, and it may be loaded by its file's path.

Invariant: ``generate`` always returns a list of samples of one shape; what fails becomes a sample
without weight, never an exception, unless nothing could ever work: a configuration that is wrong, a
store that cannot keep anything, failures in a row.
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

    All share the ``rollout_id``; ``metadata["agentrl"]`` says what became of it. Raises
    AgentrlError if it is no use to go on, and CancelledError when slime gives the rollout up, after
    its sandbox is gone and its record is stored.
    """
    _importable()
    from runners.slime.worker import rig

    ready = await rig(args, run_dir(args))
    return await ready.rollout(
        sample, temperature=sampling_params["temperature"], evaluation=evaluation
    )


def post_process_rewards(args: Any, samples: Samples) -> tuple[list[float], list[float]]:
    """Return each sample's raw reward, and what it is trained with: its share of its rollout's
    advantage within the prompt's group.

    slime calls it when a step's rollouts are complete: so the run learns that they are trained now.
    """
    _importable()
    from runners.slime.rewards import raw_and_trained
    from runners.slime.worker import handed_over, read_config

    trainer = read_config(run_dir(args)).trainer
    found = raw_and_trained(
        samples, min_group=trainer.min_group, normalize_std=trainer.normalize_std
    )
    handed_over(run_dir(args), samples)
    return found


def evaluate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = True) -> Any:
    """Measure the policy on the held-out tasks of the run; slime's evaluation function.

    Rollouts without a grade are left out of the rewards, and counted as ``agentrl_failed``.
    """
    _importable()
    from slime.utils.async_utils import run
    from slime.utils.types import Sample

    from runners.slime.worker import rig

    async def measured() -> dict[str, dict[str, Any]]:
        return await (await rig(args, run_dir(args))).evaluation(Sample, rollout_id)

    return run(measured())


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


def _importable() -> None:
    """Make our packages importable where this file was loaded by its path."""
    if importlib.util.find_spec("runners") is None:
        sys.path.append(str(Path(__file__).resolve().parents[2]))
