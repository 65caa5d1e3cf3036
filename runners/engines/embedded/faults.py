"""What pydantic found wrong, in lines a user can act on; imports nothing heavy."""

from __future__ import annotations

from pydantic import ValidationError


def describe(error: ValidationError) -> list[str]:
    """Return one line per fault: the key and what is wrong with it."""
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"])
        unknown = fault["type"] == "extra_forbidden"
        lines.append(f"{key}: {'unknown key' if unknown else fault['msg']}")
    return lines
