"""Miniature campaigns: real engine, gateway, sandboxes and trainer, with small numbers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.fakes.tiny_model import write_tiny_model

SMALL = [
    "run.steps=2", "seed=2", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=4",
    "task.train_tasks=8", "task.held_out_tasks=4", "rollout.concurrency=8",
]  # fmt: skip


@dataclass
class Miniature:
    """One run directory, and the ways to start `agentrl run` (or ``command``) on it."""

    run_dir: Path
    cache: Path
    policy: Path
    """Directory of an untrained policy and its tokenizer."""
    command: tuple[str, ...] = ("run",)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `agentrl run` in the background."""
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *self.command, "--json", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache)},
        )  # fmt: skip
        self.processes.append(process)
        return process

    def begin(self, *overrides: str) -> subprocess.Popen[bytes]:
        """Start a fresh run."""
        policy = [f"model.path={self.policy}", f"model.tokenizer={self.policy}"]
        return self.start(*SMALL, *policy, f"run.dir={self.run_dir}", *overrides)

    def resume(self, *overrides: str) -> subprocess.Popen[bytes]:
        """Start the continuation of the run."""
        return self.start("--resume", str(self.run_dir), *overrides)

    def store(self) -> RunStore:
        """Open the run's store."""
        return RunStore.open(self.run_dir, read_only=True)

    def wait_until(
        self, ready: Callable[[RunStore], bool], process: subprocess.Popen[bytes]
    ) -> None:
        """Wait until ``ready`` returns True for the store; fail if the process exits before."""
        while True:
            assert process.poll() is None, process.communicate()
            with (
                contextlib.suppress(StoreError),
                self.store() as store,
            ):  # refused while it is being made
                if ready(store):
                    return
            time.sleep(0.05)

    def finish(self, process: subprocess.Popen[bytes], code: int = 0) -> dict[str, Any]:
        """Wait for the end, check the exit code, return the JSON document."""
        out, err = process.communicate()
        assert process.returncode == code, err.decode()
        document: dict[str, Any] = json.loads(out)
        return document


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory of the tests' own."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def untrained_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that samples noise: what goes wrong in its rollouts is the policy's own doing."""
    directory = tmp_path_factory.mktemp("policy")
    write_tiny_tokenizer(directory)
    return write_tiny_model(directory, vocab_size=tiny_tokenizer().get_vocab_size())


@pytest.fixture
def miniature(tmp_path: Path, cache: Path, untrained_policy: Path) -> Iterator[Miniature]:
    """A miniature campaign; whatever it leaves running is ended."""
    mini = Miniature(tmp_path / "run", cache, untrained_policy)
    yield mini
    for process in mini.processes:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="session")
def finished(
    tmp_path_factory: pytest.TempPathFactory, cache: Path, untrained_policy: Path
) -> tuple[Miniature, dict[str, Any]]:
    """A finished campaign of two steps and its JSON document, for tests that only read it."""
    mini = Miniature(tmp_path_factory.mktemp("finished") / "run", cache, untrained_policy)
    return mini, mini.finish(mini.begin())
