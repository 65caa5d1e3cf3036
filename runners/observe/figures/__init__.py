"""Names that the other districts may import."""

from __future__ import annotations

from runners.observe.figures.cost import ITEMS, format_amount, read_run_cost
from runners.observe.figures.curves import SOLVE_RATE, Curve, read_evaluations
from runners.observe.figures.labelled_table import LabelledTable
from runners.observe.figures.metrics import MetricsWriter
from runners.observe.figures.passes import read_run_passes
from runners.observe.figures.statistics import (
    bootstrap_interval,
    pass_at_k,
    summarize_values,
    task_interval,
    wilson_interval,
)
from runners.observe.figures.task_rates import TaskRate, read_task_rates
from runners.observe.figures.terminal_plot import COLOURS, overlay_rates
from runners.observe.figures.training_counts import count_trained

__all__ = [
    "COLOURS",
    "ITEMS",
    "SOLVE_RATE",
    "Curve",
    "LabelledTable",
    "MetricsWriter",
    "TaskRate",
    "bootstrap_interval",
    "count_trained",
    "format_amount",
    "overlay_rates",
    "pass_at_k",
    "read_evaluations",
    "read_run_cost",
    "read_run_passes",
    "read_task_rates",
    "summarize_values",
    "task_interval",
    "wilson_interval",
]
