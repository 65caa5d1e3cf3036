"""``agentrl status``: how a run stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from cli.arguments import Json, RunDir, examples

EXAMPLES = examples("agentrl status runs/20260101-120000-linear")


def status(context: typer.Context, run: RunDir, as_json: Json = False) -> None:
    """Show how a run stands, whether it runs now or not, here or on a cluster."""
    context.obj.json = as_json
    from cli.invocation import print_json, stdout
    from runners.observe.remote_status import read_remote_status
    from runners.observe.status import read_status, render

    if (waiting := _before_its_store(run)) is not None:
        if as_json:
            print_json(waiting)
        else:
            stdout().print(f"job {run.name}: {waiting['message']}", soft_wrap=True)
        return
    found = read_remote_status(run) or read_status(run)
    if as_json:
        print_json(found.to_dict())
    else:
        stdout().print(render(found))


def _before_its_store(run: Path) -> dict[str, Any] | None:
    """Return how a job on a cluster stands before its first rollout; None of any other run."""
    from cli.jobs import cluster_config
    from conf.sections.cluster import ClusterLaunchConfig
    from launch.job_follower import JobFollower
    from launch.running_job import LauncherError, find_running_job
    from runners.store.run_store import STORE_FILE

    config = None if (run / STORE_FILE).exists() else cluster_config(run)
    if config is None:
        return None
    launch = config.launch
    assert isinstance(launch, ClusterLaunchConfig)
    phase = JobFollower(launch, run).read_status().phase
    try:
        found = find_running_job(launch, run)
    except LauncherError as error:  # another machine can ask
        state, message = "created", f"the last that was seen of it: {phase}; {error}"
    else:
        state = "created" if found is None else "running"
        ended = f"not running; the last that was seen of it: {phase}"
        message = ended if found is None else f"{phase} ({found.what})"
    return {"run_dir": str(run), "state": state, "message": message, "steps_done": 0}
