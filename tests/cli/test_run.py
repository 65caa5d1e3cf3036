"""Real runs of ``agentrl run``: a sweep goes on after a failure, ends at ctrl-C, is compared."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.errors import ExitCode
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.cli.conftest import REPOSITORY, Agentrl
from tests.fakes.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

SMALL = [
    *("run.steps=1", "run.tasks_per_step=2", "run.rollouts_per_task=2", "run.eval_tasks=0"),
    *("task.train_tasks=4", "task.held_out_tasks=2", "rollout.concurrency=4"),
    *("harness.max_turns=2", "sampling.max_new_tokens=24"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the overrides that choose an untrained policy."""
    directory = tmp_path_factory.mktemp("policy")
    write_tiny_tokenizer(directory)
    write_tiny_model(directory, vocab_size=tiny_tokenizer().get_vocab_size())
    return [f"model.path={directory}", f"model.tokenizer={directory}"]


async def test_a_run_that_fails_and_one_that_cannot_start_do_not_stop_the_sweep(
    agentrl_process: Agentrl, policy: list[str], tmp_path: Path
) -> None:
    RunStore.create(tmp_path / "all" / "001-seed=1", {}).close()
    async with ScriptedEngine() as engine:
        served = ["engine=sglang", f"engine.url={engine.url}", "model=tiny", *policy]
        engine.always = Completion("ab<|im_end|>", weight_version="abc")
        sweep = [*SMALL, *served, "run.dir=all", "seed=0,1,2", "--json"]
        done = await asyncio.to_thread(agentrl_process, "run", *sweep)
    assert done.code == ExitCode.PREFLIGHT, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["label"] for run in runs] == ["seed=0", "seed=1", "seed=2"]
    assert "already holds a run" in done.stderr
    assert "continue with" not in done.stderr, "it would be refused again"
    for run, seed in ((runs[0], 0), (runs[2], 2)):
        assert run["exit_code"] == ExitCode.PREFLIGHT
        assert "--weight-version 0" in run["message"]
        stored = json.loads((tmp_path / run["run_dir"] / "config.json").read_text())
        assert stored["seed"] == seed


def test_a_dead_engine_is_refused_before_anything_is_made(
    agentrl: Agentrl, policy: list[str]
) -> None:
    nobody = ["engine=sglang", "engine.url=http://127.0.0.1:9", "model=tiny", *policy]
    for options in ([], ["--dry-run"]):
        done = agentrl("run", *SMALL, *nobody, "run.dir=all", "seed=0,1", *options)
        assert done.code == ExitCode.SERVICE_GONE
        said = " ".join((done.stderr + done.stdout).split())
        assert "Start the server that engine.url names" in said
        assert "--resume" not in said
        assert list(Path.cwd().iterdir()) == []


def test_the_first_ctrl_c_drains_the_run_and_ends_the_sweep(
    policy: list[str], tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cli.main",
            "run",
            *SMALL,
            *policy,
            "run.dir=all",
            "seed=0,1",
            "--json",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_for_a_session(tmp_path / "all" / "000-seed=0", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED, err
    (run,) = json.loads(out)["runs"]
    assert run["exit_code"] in (ExitCode.DONE, ExitCode.INTERRUPTED)  # its one step may be drained
    assert "1 of 2 runs were not started" in err
    assert not (tmp_path / "all" / "001-seed=1").exists()


def _wait_for_a_session(run_dir: Path, process: subprocess.Popen[str]) -> None:
    while True:
        assert process.poll() is None, process.communicate()
        try:
            with RunStore.open(run_dir, read_only=True) as store:
                if store.sessions():
                    return
        except StoreError:
            pass  # not made yet
        time.sleep(0.05)
