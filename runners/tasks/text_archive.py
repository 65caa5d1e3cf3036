"""Text archives (Go's txtar): several small files in one that a person can read."""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"^-- (\S+) --\n", re.MULTILINE)


def read_archive(file: Path) -> dict[str, str]:
    """Return the parts of an archive by name; ``-- NAME --`` begins each part."""
    _, *found = _PART.split(file.read_text("utf-8"))
    return dict(zip(found[::2], found[1::2], strict=True))
