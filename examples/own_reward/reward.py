"""A reward that reads the diff."""

from agentrl import RolloutResult


def small_diff(result: RolloutResult, *, per_line: float = 0.01) -> float:
    """Pay 1 for a solved task, less a price for every added or removed line, but at least 0."""
    assert result.verdict is not None
    price = per_line * result.patch.changed_lines
    return max(0.0, 1.0 - price) if result.verdict.kind == "solved" else 0.0
