"""Registers the export formats, one module each."""

from __future__ import annotations

from runners.export.atif import write_atif
from runners.export.contract import Exporter
from runners.export.html import write_html
from runners.export.jsonl import write_jsonl
from runners.export.parquet import write_parquet
from runners.export.png import write_png
from runners.export.slime import write_slime

FORMATS: dict[str, Exporter] = {
    "jsonl": write_jsonl,
    "atif": write_atif,
    "parquet": write_parquet,
    "slime": write_slime,
    "html": write_html,
    "png": write_png,
}
"""Each writes files of its own names into one directory."""
