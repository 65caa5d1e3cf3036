"""Compare the mismatch with replay with the mismatch without it, in every step.

The latter takes a forward pass without replay, the shadow, and is measured every few steps. Replay
brings training closer to the rollout; rows of other tokens take it far away. Invariant: an alarm is
about the same tokens and weights with and without replay.
"""

from __future__ import annotations

from runners.records.routing import RoutingError
from runners.training.mismatch import Mismatch

WORSE = 10.0
"""Replay that makes k3 so many times larger replays other tokens' or layers' rows."""
SMALLEST = 1e-8
"""A k3 below it is rounding."""
ERRORS = 3.0
"""Standard errors that are granted to a k3 of other tokens: a few of them make most of it."""


class ShadowComparison:
    """The mismatch without replay, as last measured; changed by ``compare``."""

    def __init__(self) -> None:
        self.native: tuple[float, float] | None = None
        """k3 and its standard error; None: not measured yet."""

    def suspects(self, replayed: Mismatch) -> bool:
        """Return whether a step's mismatch is so far above the last one without replay that the
        step's own has to be measured, too: the policy may have changed since.
        """
        found = replayed.estimate_k3()
        if found is None or self.native is None:
            return False
        k3, error = self.native
        return found[0] > WORSE * max(k3 + ERRORS * error, SMALLEST)

    def compare(self, replayed: Mismatch, native: Mismatch | None) -> None:
        """Compare a step's mismatch with that without replay, None: not measured in this step.

        Raises RoutingError if replay makes k3 more than ten times as large.
        """
        found = replayed.estimate_k3()
        shadow = None if native is None else native.estimate_k3()
        if found is None or shadow is None:
            return
        self.native = shadow
        if found[0] > WORSE * max(shadow[0], SMALLEST):
            raise RoutingError(
                f"training differs more from the rollout with its routing (k3 {found[0]:.2e}) than "
                f"without ({shadow[0]:.2e}): the rows belong to other tokens or layers"
            )
