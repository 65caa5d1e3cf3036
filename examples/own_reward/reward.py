"""A reward that reads the diff."""

from agentrl import RolloutResult


def small_diff(result: RolloutResult, *, per_line: float = 0.01) -> float:
    """Pay 1 for a solved task, less a price for every added or removed line, but at least 0."""
    assert result.verdict is not None
    lines = result.patch.diff.splitlines()
    changed = [
        line for line in lines if line[:1] in (b"+", b"-") and line[:3] not in (b"+++", b"---")
    ]
    return max(0.0, 1.0 - per_line * len(changed)) if result.verdict.kind == "solved" else 0.0
