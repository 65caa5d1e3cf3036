"""Counts of a run's groups and tokens over its finished steps: one source for all who show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runners.records.store import StepRow


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Groups of rollouts."""

    total: int = 0
    flat: int = 0
    """Those whose rewards are all equal: they have no gradient."""
    dropped: int = 0
    """Those with too few graded rollouts for a baseline."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of graded training rollouts, and of examples."""

    sampled: int = 0
    in_loss: int | None = 0
    """Those over whose losses a step averages; None in runs of older versions."""
    trained: int = 0
    """Those with a gradient; in runs of older versions, those in the loss."""
    examples: int = 0
    """Tokens that supervised steps trained, which nobody sampled."""


@dataclass(frozen=True, slots=True)
class TrainingCounts:
    """Sums over the finished steps of a run."""

    groups: GroupCounts
    tokens: TokenCounts

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and values of a table's rows."""
        groups, tokens = self.groups, self.tokens
        if tokens.examples:
            yield "tokens of examples trained", f"{tokens.examples:,}"
            if not groups.total:
                return
        yield "groups", f"{groups.total:,}"
        if groups.flat:
            yield "  flat: no gradient", _with_share(groups.flat, groups.total)
        if groups.dropped:
            yield "  without a baseline", _with_share(groups.dropped, groups.total)
        yield "tokens sampled", f"{tokens.sampled:,}"
        if tokens.in_loss is not None:
            yield "tokens in the loss", _with_share(tokens.in_loss, tokens.sampled)
        yield "tokens trained", _with_share(tokens.trained, tokens.sampled)


def count_training(steps: Iterable[StepRow]) -> TrainingCounts:
    """Return the counts of those of a run's steps that are finished."""
    done = [row.metrics for row in steps if row.state == "done"]

    def total(name: str) -> int:
        return sum(int(metrics.get(name) or 0) for metrics in done)

    old = any("tokens/trained" in each and "tokens/in_loss" not in each for each in done)
    return TrainingCounts(
        GroupCounts(
            total("rollout/groups"), total("rollout/groups_flat"), total("rollout/groups_dropped")
        ),
        TokenCounts(
            total("tokens/sampled"),
            None if old else total("tokens/in_loss"),
            total("tokens/trained"),
            total("sft/tokens"),
        ),
    )


def count_trained(tokens: Mapping[str, Any]) -> int:
    """Return how many tokens a run trained, sampled or not, of the document of ``TokenCounts``."""
    return int(tokens["trained"]) + int(tokens.get("examples") or 0)


def _with_share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else f"{part:,}"
