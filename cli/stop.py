"""``agentrl stop``: end a run, here or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import Json, RunDir, examples

if TYPE_CHECKING:
    from conf.sections.cluster import ClusterLaunchConfig

EXAMPLES = examples(
    "agentrl stop runs/20260101-120000-linear", "agentrl stop /shared/agentrl --now"
)


def stop(
    run: RunDir,
    now: Annotated[
        bool, typer.Option("--now", help="Do not let rollouts in flight finish.")
    ] = False,
    as_json: Json = False,
) -> None:
    """End a run, and wait until it has ended; `agentrl run --resume` continues it.

    A run on this machine lets its rollouts in flight finish; stopped again, or with --now, it
    leaves at once, and is killed if it does not. A job on a cluster is ended by its launcher.
    ctrl-C stops waiting only. Exit code: 0 if nothing runs any more, 4 if it still runs.
    """
    from cli.invocation import print_json, stderr, stdout
    from conf.errors import ExitCode
    from conf.sections.cluster import ClusterLaunchConfig
    from runners.campaigns.jobs import cluster_config

    config = cluster_config(run)
    try:
        if config is None:
            found = _stop_here(run, now=now)
        else:
            assert isinstance(config.launch, ClusterLaunchConfig)
            found = _stop_job(config.launch, run, now=now)
    except KeyboardInterrupt:
        stderr().print("not waiting any more; the run has been told to stop")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    code = ExitCode.DONE if found["ended"] else ExitCode.SERVICE_GONE
    if as_json:
        print_json({"run_dir": str(run), **found, "exit_code": int(code)})
    else:
        stdout().print(found["message"], soft_wrap=True)
        if found["ended"]:
            stderr().print(f"continue with: agentrl run --resume {run}", soft_wrap=True)
    raise typer.Exit(code)


def _stop_here(run: Path, *, now: bool) -> dict[str, Any]:
    """Stop the process that drives the run on this machine; return the facts."""
    import socket

    from cli.invocation import stderr
    from runners.campaigns.jobs import JobError
    from runners.observe.live import read_status
    from runners.services.stop_signals import read_driver, stop_driver

    driver = read_driver(run)
    if driver is None:
        state = read_status(run).state
        return {"ended": True, "did": None, "message": f"{run} is not running ({state})"}
    if driver.host != socket.gethostname():
        raise JobError(
            f"{run} is driven by process {driver.pid} on {driver.host}: stop it there, with "
            f"`agentrl stop {run}`"
        )
    stderr().print(f"stopping process {driver.pid}", soft_wrap=True)
    with stderr().status("rollouts in flight finish first") as line:
        did = stop_driver(
            run, driver, now=now, show=lambda seconds: line.update(f"stopping, {seconds:.0f} s")
        )
    end = read_status(run)
    return {"ended": True, "did": did, "message": f"{run} has ended ({end.state}): {did}"}


def _stop_job(launch: ClusterLaunchConfig, run: Path, *, now: bool) -> dict[str, Any]:
    """Stop the job on a cluster; return the facts."""
    import shlex

    from cli.invocation import stderr
    from launch.running_job import find_running_job
    from launch.stop_job import END_S, find_stop_command, send_stop, wait_for_end

    running = find_running_job(launch, run)
    if running is None:
        return {"ended": True, "did": None, "message": f"the job in {run} is not running"}
    command = find_stop_command(launch, running, now=now)
    did = shlex.join(command)
    stderr().print(f"stopping {running.what}: {did}", soft_wrap=True)
    send_stop(command)
    with stderr().status(f"waiting for the end of {running.what}") as line:
        ended = wait_for_end(
            launch, run, lambda job: line.update(f"waiting for the end of {job.what} {job.state}")
        )
    if ended:
        return {"ended": True, "did": did, "message": f"{running.what} has ended"}
    again = f"`agentrl stop {run} --now` or `{running.stop}`"
    return {
        "ended": False,
        "did": did,
        "message": f"{running.what} still runs after {END_S:.0f} s: {again}",
    }
