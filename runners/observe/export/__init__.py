"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.export.build import build_trajectory
from runners.observe.export.contract import ExportedRollout, ExportedRun, ExporterPlugin
from runners.observe.export.decoding import find_decode, find_run_tokenizer
from runners.observe.export.filter_texts import describe_choices
from runners.observe.export.formats import FORMATS
from runners.observe.export.known_values import require_known
from runners.observe.export.run_dump import (
    DumpError,
    describe_run,
    dump,
    parse_filter,
    parse_formats,
    read_rollout,
    to_dump_error,
)
from runners.observe.export.sft import MessagesLine, TokensLine
from runners.observe.export.trajectory import Trajectory

__all__ = [
    "FORMATS",
    "DumpError",
    "ExportedRollout",
    "ExportedRun",
    "ExporterPlugin",
    "MessagesLine",
    "TokensLine",
    "Trajectory",
    "build_trajectory",
    "describe_choices",
    "describe_run",
    "dump",
    "find_decode",
    "find_run_tokenizer",
    "parse_filter",
    "parse_formats",
    "read_rollout",
    "require_known",
    "to_dump_error",
]
