"""The counters of a gateway session that outlive it, by name.

``RolloutRecord.extra["session"]`` holds ``STORED_COUNTERS``; a step's metrics hold the sums of
``SUMMED_COUNTERS``. Whoever reads a store sees today's names only, whatever names the run was
written with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SUMMED_COUNTERS = (
    *("forks", "ambiguous", "retokenization_mismatches", "parser_fallbacks", "routing_missing"),
    *("engine_retries", "pushed_back", "unknown_keys", "compactions_missed"),
    "recovered_calls",
)
"""Their sum over a step's rollouts (``rollout/NAME`` of its metrics) is 0 when all is well."""

STORED_COUNTERS = (
    *SUMMED_COUNTERS,
    *("branches", "breaks", "retries", "tools_changed", "ignored", "over_limit"),
    *("failed_service", "recovered_kinds"),
)
"""Part of a rollout's record: they cannot be computed from its stored turns, or only at a cost."""

EARLIER_NAMES = {
    "unread": "parser_fallbacks",
    "tito_mismatches": "retokenization_mismatches",
}
"""Names in stores that were written before 2026-11-22, with today's."""


def rename_counters(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a stored mapping with today's names of counters; ``prefix`` precedes each.

    >>> rename_counters({"rollout/unread": 2, "train/loss": 0.1}, "rollout/")
    {'rollout/parser_fallbacks': 2, 'train/loss': 0.1}
    """
    today = {prefix + before: prefix + now for before, now in EARLIER_NAMES.items()}
    return {today.get(name, name): value for name, value in record.items()}


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean; None of nothing."""
    return sum(values) / len(values) if values else None
