"""slime's data source of a run.

The groups of a step follow from configuration and step (``campaign.schedule``), so where a resumed
job continues follows from its checkpoint alone: there is no offset that could run ahead of it, and
nothing is saved.
"""

from __future__ import annotations

from typing import Any, NoReturn


class RunDataSource:
    """The seam by which slime says where a job begins: ``--data-source-path``."""

    def __init__(self, args: Any) -> None:
        """Begin with slime's rollout 0, until ``load``."""
        self.first_rollout = 0
        """The job's first rollout, counted from 0: the number of steps in its checkpoint."""

    def load(self, rollout_id: int | None = None) -> None:
        """Continue after slime's rollout ``rollout_id``, -1 in a new job."""
        self.first_rollout = 0 if rollout_id is None else rollout_id + 1

    def save(self, rollout_id: int) -> None:
        """Do nothing: see the module."""

    def get_samples(self, num_samples: int) -> NoReturn:
        """Refuse: another rollout function than ours would sample tasks that the run does not know.

        Raises RuntimeError.
        """
        raise RuntimeError(
            "agentrl deals the groups of a step itself: leave --rollout-function-path at "
            "runners.campaigns.slime.entry_points.generate_rollout"
        )

    def add_samples(self, samples: list[Any]) -> NoReturn:
        """Refuse, as ``get_samples``: no rollout of ours is given back half done."""
        self.get_samples(len(samples))

    def __len__(self) -> int:
        """Return 0: slime counts the groups of an epoch only without ``--num-rollout``."""
        return 0
