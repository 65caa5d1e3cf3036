"""A whole evaluation in E2B sandboxes: command line, engine, gateway, SDK, grading."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.e2b.box import boxes_work
from tests.fakes.e2b.threaded import threaded_e2b_server


@pytest.mark.slow
def test_an_evaluation_runs_in_e2b_sandboxes(tmp_path: Path) -> None:
    if not boxes_work():
        pytest.skip("this machine cannot make the boxes that stand for E2B's machines")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with threaded_e2b_server(tmp_path / "boxes") as server:
        keys = {
            "sandbox": "e2b",
            "sandbox.api_url": server.url,
            "sandbox.sandbox_url": server.url,
            "gateway.port": port,
            "gateway.public_url": f"http://127.0.0.1:{port}",
            "rollout.deadlines.boot_s": 60,
            "rollout.deadlines.guard_s": 400,
            "rollout.concurrency": 4,
            "run.dir": tmp_path / "run",
            "run.steps": 0,
            "run.eval_tasks": 4,
        }
        argv = [f"{key}={value}" for key, value in keys.items()]
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", "run", "--json", *argv],
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert json.loads(done.stdout)["rollouts"] == 4
        assert len(server.ended) == 8  # an agent's and a grader's each
        assert not server.machines
