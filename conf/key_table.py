"""The table by which a TAB knows the keys, without an import of Hydra or pydantic."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from conf.cached_table import read_table


@cache
def read_key_table() -> dict[str, Any]:
    """Return the groups, the default choices, and each key's choices, values and words of help."""
    return read_table("keys", [Path(__file__).parent], _render)


def _render() -> str:
    from conf.write_reference import render_table

    return render_table()
