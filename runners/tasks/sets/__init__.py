"""Names that the other districts may import."""

from __future__ import annotations

from runners.tasks.sets.curriculum import Curriculum
from runners.tasks.sets.custom_reader import DatasetReader
from runners.tasks.sets.dataset_report import DatasetReport, Progress, hash_dataset, read_dataset
from runners.tasks.sets.exclusions import find_file
from runners.tasks.sets.listing import TaskFilter, TaskListing, list_dataset
from runners.tasks.sets.mixture import draws
from runners.tasks.sets.readiness import State
from runners.tasks.sets.row_conversion import convert_rows
from runners.tasks.sets.suite_export import export_suite
from runners.tasks.sets.task_sampler import StepCount, TaskDraw, TaskHistory, TaskSampler
from runners.tasks.sets.task_sets import check_sets, load_tasks

__all__ = [
    "Curriculum",
    "DatasetReader",
    "DatasetReport",
    "Progress",
    "State",
    "StepCount",
    "TaskDraw",
    "TaskFilter",
    "TaskHistory",
    "TaskListing",
    "TaskSampler",
    "check_sets",
    "convert_rows",
    "draws",
    "export_suite",
    "find_file",
    "hash_dataset",
    "list_dataset",
    "load_tasks",
    "read_dataset",
]
