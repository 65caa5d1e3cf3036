"""Steps of runs in one small file: the samples without their run, for a machine that has none.

An npz file. What training does not need of a sample for its speed (routing, versions) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from runners.training.sample import Rollout, Sample


def save_steps(file: Path, steps: Iterable[tuple[str, list[Rollout]]]) -> None:
    """Write steps with their names to a file."""
    arrays: dict[str, np.ndarray] = {}
    for number, (name, rollouts) in enumerate(steps):
        samples = [sample for rollout in rollouts for sample in rollout]
        arrays |= {
            f"{number}/name": np.array(name),
            f"{number}/rollouts": np.array([len(rollout) for rollout in rollouts]),
            f"{number}/ids": np.array([sample.rollout_id for sample in samples]),
            f"{number}/lengths": np.array([len(sample.tokens) for sample in samples]),
            f"{number}/tokens": np.concatenate([sample.tokens for sample in samples]),
            f"{number}/mask": np.concatenate([sample.loss_mask for sample in samples]),
            f"{number}/logprobs": np.concatenate([sample.logprobs for sample in samples]),
            f"{number}/advantages": np.array([sample.advantage for sample in samples]),
        }
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load_steps(file: Path) -> Iterator[tuple[str, list[Rollout]]]:
    """Yield the steps of a file, as they were saved."""
    with np.load(file, allow_pickle=False) as saved:
        numbers = sorted({int(key.split("/")[0]) for key in saved.files})
        for number in numbers:
            part = {
                key.split("/")[1]: saved[key] for key in saved.files if key.startswith(f"{number}/")
            }
            ends = np.cumsum(part["lengths"])[:-1]
            fields = [np.split(part[name], ends) for name in ("tokens", "mask", "logprobs")]
            samples = iter(
                Sample(str(name), tokens, mask, logprobs, float(advantage))
                for name, tokens, mask, logprobs, advantage in zip(
                    part["ids"], *fields, part["advantages"], strict=True
                )
            )
            yield str(part["name"]), [[next(samples) for _ in range(n)] for n in part["rollouts"]]
