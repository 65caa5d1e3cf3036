"""The task that rollouts of these tests work on."""

from tests.runners.rollouts.world import task

__all__ = ["task"]
