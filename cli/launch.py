"""``agentrl launch``: write the scripts of a job on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.arguments import ConfigDir, Json, Overrides, examples
from cli.invocation import print_json, stderr, stdout

if TYPE_CHECKING:
    from launch.plan import JobPlan

_TASKS = "task=jsonl task.path=/shared/tasks.jsonl"
EXAMPLES = examples(
    "agentrl launch trainer=slime launch=slurm launch.shared_dir=/shared "
    f"model=glm4_7_355b_a32b model.path=/shared/GLM-4.7 {_TASKS} --out glm",
    "agentrl launch trainer=slime launch=ssh launch.hosts_file=/shared/hosts "
    "launch.shared_dir=/shared model=qwen3_6_35b_a3b model.path=/shared/Qwen3.6-35B-A3B "
    f"{_TASKS} --out qwen",
)


def launch(
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory to write to.", show_default=False),
    ],
    overrides: Overrides = None,
    _config_dir: ConfigDir = None,
    as_json: Json = False,
) -> None:
    """Write the scripts of a job on a cluster, with its plan and its memory.

    Every rule between nodes, GPUs, model and batch is checked, every flag is compared with slime's
    own parsers, and the GPU memory is estimated; a job that cannot work is refused. Nothing is
    started: the path on stdout is the script that starts the job. Started again, it continues from
    the last checkpoint.
    """
    from conf.compose import compose
    from launch.job_files import write_job
    from launch.job_preflight import find_job_cautions
    from launch.plan import plan_job
    from runners.observe.console import report_warning

    lines = overrides or []
    plan = plan_job(compose(lines))
    start = write_job(plan, out, command=["agentrl", "launch", *lines, "--out", str(out)])
    for caution in find_job_cautions(plan):
        report_warning(caution)
    show_job(plan, start, as_json=as_json)


def show_job(plan: JobPlan, start: Path, *, as_json: bool) -> None:
    """Print the plan to stderr, and the path of the start script to stdout."""
    from launch.plan_table import render_job
    from runners.observe.console import report_warning

    for fault in plan.memory.faults:
        report_warning(fault)
    if as_json:
        print_json({**plan.to_dict(), "start": str(start), "exit_code": 0})
        return
    stderr().print(render_job(plan))
    stdout().print(str(start), soft_wrap=True)
