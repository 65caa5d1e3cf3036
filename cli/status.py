"""``agentrl status``: show the state of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.arguments import Json, RunDir, examples

EXAMPLES = examples("agentrl status runs/20260101-120000-linear")


def status(run: RunDir, as_json: Json = False) -> None:
    """Show the state of a run: running or ended, here or on a cluster."""
    from cli.invocation import print_json, stdout
    from runners.observe.figures import read_run_cost, read_run_passes
    from runners.observe.live import read_remote_status, read_status, render

    if (waiting := _read_waiting_job(run)) is not None:
        if as_json:
            print_json(waiting)
        else:
            stdout().print(f"job {run.name}: {waiting['message']}", soft_wrap=True)
        return
    remote = read_remote_status(run)
    found = remote or read_status(run)
    passes = [] if remote is not None or found.benchmark is None else read_run_passes(run)
    cost = None if remote is not None else read_run_cost(run)  # its store is on another machine
    if as_json:
        figures = {"passes": [asdict(each) for each in passes], "cost": cost and cost.to_dict()}
        print_json(found.to_dict() | figures)
    else:
        table = render(found)
        for each in passes:
            low, high = (f"{100 * end:.1f}%" for end in each.interval)
            value = f"{each.value:.1%} ({low} to {high}, {each.tasks:,} tasks)"
            table.add_row(f"pass@{each.k}", value)
        for name, value in () if cost is None else cost.describe():
            table.add_row(name, value)
        stdout().print(table)


def _read_waiting_job(run: Path) -> dict[str, Any] | None:
    """Return the state of a job on a cluster that has no rollout yet; None for any other run."""
    from conf.sections.cluster import ClusterLaunchConfig
    from launch.job_follower import JobFollower
    from launch.running_job import LauncherError, find_running_job
    from runners.campaigns.jobs import cluster_config
    from runners.records.store import STORE_FILE

    config = None if (run / STORE_FILE).exists() else cluster_config(run)
    if config is None:
        return None
    launch = config.launch
    assert isinstance(launch, ClusterLaunchConfig)
    phase = JobFollower(launch, run).read_status().phase
    try:
        found = find_running_job(launch, run)
    except LauncherError as error:  # Only this machine cannot ask; the job may run.
        state, message = "created", f"last seen: {phase}; {error}"
    else:
        state = "created" if found is None else "running"
        ended = f"not running; last seen: {phase}"
        message = ended if found is None else f"{phase} ({found.what})"
    return {"run_dir": str(run), "state": state, "message": message, "steps_done": 0}
