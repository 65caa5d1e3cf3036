"""Turn pydantic's errors into lines a user can act on.

Imports nothing heavy: the process checks its settings before it loads torch.
"""

from __future__ import annotations

from pydantic import ValidationError


def describe_errors(error: ValidationError) -> list[str]:
    """Return one line per error: the key and what is wrong with it."""
    lines = []
    for detail in error.errors(include_url=False):
        key = ".".join(str(part) for part in detail["loc"])
        unknown = detail["type"] == "extra_forbidden"
        lines.append(f"{key}: {'unknown key' if unknown else detail['msg']}")
    return lines
