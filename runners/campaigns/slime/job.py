"""Do a job's steps before and after slime.

``python -m runners.campaigns.slime.job STEP RUN [CODE]``

``check`` lets the agent program take one turn from a sandbox, through a gateway at the address that
sandboxes use. ``begin`` reads the tasks, so that a malformed row is found before GPUs are taken.
``end`` records how the job ended, once the processes that wrote the run's store are gone, and
leaves a store that any machine can read.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from conf.errors import AgentrlError, ExitCode
from runners.campaigns.slime.checkpoints import remove_old_checkpoints
from runners.campaigns.slime.megatron.step_figures import move_figures
from runners.campaigns.slime.run_config import read_config
from runners.observe.figures import MetricsWriter, read_evaluations
from runners.observe.live import metrics_rows, read_store_status, write_document
from runners.records.checkpoints import CHECKPOINTS
from runners.records.store import STATUS_FILE, STORE_FILE, RunStore, State, read_status_file
from runners.system.processes.ledger import Ledger, reap
from runners.tasks.sets import load_tasks

SILENCE_S = 30.0
"""A worker without a heartbeat for so long is gone, even if it could not record its end."""
EXIT_DEADLINE_S = 60.0
POLL_S = 0.5


def check(run_dir: Path) -> None:
    """Let the run's agent program take a turn; raises AgentrlError if it cannot."""
    from conf.sections.harness import name_program
    from runners.campaigns.preflight.plugins import find_plugin_errors
    from runners.campaigns.preflight.run_check import check_run
    from runners.campaigns.preflight.start_check import refuse
    from runners.observe.sinks import find_sink_errors
    from runners.rollouts.harnesses.registry import install_harness

    config = read_config(run_dir)
    refuse([*find_plugin_errors(config), *find_sink_errors(config)])
    install_harness(config.harness)
    with TemporaryDirectory(prefix="agentrl-check-") as work:
        _, found = asyncio.run(check_run(config, Path(work), report=lambda findings: None))
    print(
        f"harness={name_program(config.harness)} has taken a turn in a sandbox "
        f"({found.seconds:.1f} s)",
        file=sys.stderr,
    )


def begin(run_dir: Path) -> None:
    """Read the tasks; raises AgentrlError, which names every malformed row."""
    tasks = [task for task in load_tasks(read_config(run_dir)) if task.split == "train"]
    print(f"{len(tasks):,} training tasks", file=sys.stderr)


def end(run_dir: Path, code: int) -> None:
    """Record in the run's store that the trainer exited with ``code``; raises StoreError."""
    if not (run_dir / STORE_FILE).is_file():
        return  # it ended before its first rollout
    _wait_for_driver_exit(run_dir)
    status = read_status_file(run_dir)
    if status is not None and status.get("state") == State.RUNNING:
        write_document(run_dir / STATUS_FILE, {**status, "state": State.INTERRUPTED})
    with RunStore.open(run_dir) as store:
        state = store.state()
        if state.state is not State.RUNNING:
            store.set_state(State.RUNNING, **state.info)
        fault = move_figures(store)  # training writes it and ends: nobody has read it yet
        message = f"training ended with exit code {code}: see logs/job.log" if code else ""
        store.set_state(
            State.FAILED if code else State.DONE,
            exit_code=int(ExitCode.FAILURE_BUDGET if code else ExitCode.DONE),
            message=f"routing replay: {fault}" if fault else message,
            wall_s=state.spent_s,
        )
        asyncio.run(reap(Ledger(store)))
        MetricsWriter(run_dir, tensorboard=False).rewrite(metrics_rows(store))
        write_document(run_dir / STATUS_FILE, read_store_status(store).to_dict())
        keep, rates = store.config()["run"]["keep_checkpoints"], dict(read_evaluations(store))
    remove_old_checkpoints(run_dir / CHECKPOINTS, keep=keep, rates=rates)


def _wait_for_driver_exit(run_dir: Path) -> None:
    """Wait until the process that drives the run is gone or silent, at most EXIT_DEADLINE_S."""
    until = time.monotonic() + EXIT_DEADLINE_S
    while time.monotonic() < until:
        status = read_status_file(run_dir) or {}
        silent_s = time.time() - float(status.get("updated_at") or 0.0)
        here = status.get("driver_host") == socket.gethostname()
        gone = here and not psutil.pid_exists(int(status.get("driver_pid") or 0))
        if status.get("state") != State.RUNNING or gone or silent_s > SILENCE_S:
            return
        time.sleep(POLL_S)


def main(arguments: list[str]) -> int:
    """Return the process's exit code."""
    try:
        match arguments:
            case ["check", run_dir]:
                check(Path(run_dir))
            case ["begin", run_dir]:
                begin(Path(run_dir))
            case ["end", run_dir, code]:
                end(Path(run_dir), int(code))
            case _:
                print(__doc__, file=sys.stderr)
                return int(ExitCode.USAGE)
    except AgentrlError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
