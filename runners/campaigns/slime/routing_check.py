"""Count what the routing of a batch's samples lacks, before slime gets them (``r3/…``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runners.campaigns.slime.rewards import KEY


@dataclass(slots=True)
class RoutingCheck:
    """Counts over the samples of one batch."""

    rows: int = 0
    """Tokens that were run."""
    missing: int = 0
    """Those without routing."""
    refused: int = 0
    """Samples with impossible routing, and rollouts with that of other tokens."""

    def add(self, samples: Iterable[Any]) -> None:
        """Add samples of ``to_slime_samples``; placeholders have no routing of their own."""
        for sample in samples:
            found = sample.metadata[KEY].get("routing")
            if found is not None:
                self.rows += found["rows"]
                self.missing += found["missing"]
                self.refused += found["fault"] is not None

    def metrics(self) -> dict[str, float | int]:
        """Return the figures; none if samples carry no routing."""
        if not self.rows and not self.refused:
            return {}
        captured = (self.rows - self.missing) / self.rows if self.rows else 0.0
        return {
            "r3/captured": captured,
            "r3/invalid_rows": self.missing,
            "r3/refused_samples": self.refused,
        }
