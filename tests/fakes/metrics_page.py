"""The metrics that ``docs/metrics.md`` defines."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def documented_metrics() -> set[str]:
    """Return the names in the first column of the tables of metrics; NAME and K stand for any."""
    metrics = PAGE.read_text("utf-8").partition("\n## Alarms\n")[0]
    rows = re.findall(r"^\| (`.*?`) \| ", metrics, re.M)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def undocumented(names: set[str]) -> set[str]:
    """Return those of a step's metrics that the page does not define."""
    patterns = [
        re.escape(name).replace("NAME", ".+").replace("@K", r"@\d+")
        for name in documented_metrics()
    ]
    return {name for name in names if not any(re.fullmatch(each, name) for each in patterns)}
