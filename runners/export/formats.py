"""The formats that a run can be exported in: one file each, registered here."""

from __future__ import annotations

from runners.export.atif import atif
from runners.export.contract import Exporter
from runners.export.html import html
from runners.export.jsonl import jsonl
from runners.export.parquet import parquet
from runners.export.png import png
from runners.export.slime import slime

FORMATS: dict[str, Exporter] = {
    "jsonl": jsonl,
    "atif": atif,
    "parquet": parquet,
    "slime": slime,
    "html": html,
    "png": png,
}
"""Each writes files of its own names into one directory."""
