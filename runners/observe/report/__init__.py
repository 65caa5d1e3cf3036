"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.report.against import read_against
from runners.observe.report.comparison import compare_runs
from runners.observe.report.number_format import format_quantity, format_share, format_significant
from runners.observe.report.page import is_quick, write_comparison, write_report
from runners.observe.report.report_data import read_document
from runners.observe.report.seeds import pool_seeds

__all__ = [
    "compare_runs",
    "format_quantity",
    "format_share",
    "format_significant",
    "is_quick",
    "pool_seeds",
    "read_against",
    "read_document",
    "write_comparison",
    "write_report",
]
