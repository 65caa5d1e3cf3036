"""An alarm: an illness of a run that an engineer should know of, with its evidence and its fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Alarm:
    """One illness, seen after one step."""

    name: str
    """``flat_groups``, ``dead_grader``, …: the same illness has the same name in every run."""
    evidence: str
    """Numbers, and the steps in which they were found."""
    fix: str
    """Advice that names the keys."""

    def to_dict(self) -> dict[str, str]:
        """Return the document of ``metrics.jsonl`` and ``--json``."""
        return asdict(self)


def share(part: float, whole: float) -> str:
    """Return ``37 of 61 (61 %)``."""
    return f"{part:,.0f} of {whole:,.0f} ({100 * part / whole:.0f} %)" if whole else f"{part:,.0f}"
