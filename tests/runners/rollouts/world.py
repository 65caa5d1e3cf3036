"""A pool on a real gateway and store; sandboxes, agent and grader are fakes that fail on demand."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.completions import Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.sections.rollout import DeadlinesConfig
from conf.sections.task import VerdictRewardConfig
from runners.gateway.service import NO_HOOKS, GatewayHooks
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from runners.rollouts.attempt import execute_here
from runners.rollouts.contract import AttemptContext, Execute, RolloutSpec
from runners.rollouts.pool import Pool
from runners.rollouts.reward import make_reward
from runners.sandboxes.wrappers import RegisteredBackend
from runners.system.concurrency.limits import Admission, TokenBucket
from runners.system.diagnostics.attempt_progress import AttemptWatch
from runners.system.processes.ledger import Ledger, StoreRecorder
from runners.tasks.contract import Task
from tests.fakes.rollout_parts import (
    CallingHarness,
    FolderBackend,
    ListedGrader,
)
from tests.fakes.running_gateway import running_gateway


def git(repo: Path, *arguments: str) -> str:
    """Run git in a repository."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", str(repo), *identity, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A repository with one file."""
    repo = tmp_path_factory.mktemp("task") / "repo"
    repo.mkdir()
    git(repo, "init", "-q")
    (repo / "code.py").write_text("x = 1\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "base")
    return Task(
        "t",
        "train",
        repo,
        git(repo, "rev-parse", "HEAD"),
        "fix it",
        ("a",),
        ("b",),
        (),
        "",
        "operator",
    )


@dataclass
class World:
    """A pool on a real gateway and store, with everything else at a test's command."""

    backend: FolderBackend
    harness: CallingHarness
    grader: ListedGrader
    context: AttemptContext
    store: RunStore
    execute: Execute
    draining: asyncio.Event
    done: list[RolloutRecord]
    task: Task
    engine: ScriptedEngine

    def pool(
        self,
        *,
        attempts: int = 3,
        breaker: int = 100,
        concurrency: int = 4,
        admission: Admission | None = None,
    ) -> Pool:
        """A pool."""
        return Pool(
            self.context,
            self.store,
            self.execute,
            admission=admission or Admission(concurrency, adaptive=False),
            attempts=attempts,
            breaker=breaker,
            draining=self.draining,
            on_done=self.done.append,
        )

    def admission(self, most: int) -> Admission:
        """So many in flight."""
        return Admission(most, adaptive=False)

    def specs(self, count: int) -> list[RolloutSpec]:
        """So many rollouts of the task."""
        return [
            RolloutSpec(f"train-000001-000-{i:02d}", "train", 1, 0, i, self.task, i, 1.0)
            for i in range(count)
        ]

    def stored(self) -> dict[str, list[RolloutRecord]]:
        """Return the stored records, by rollout."""
        found: dict[str, list[RolloutRecord]] = {}
        for record in self.store.rollouts():
            found.setdefault(record.rollout_id, []).append(record)
        return found


@asynccontextmanager
async def world(
    tmp_path: Path, task: Task, *, hooks: GatewayHooks = NO_HOOKS, **changes: Any
) -> AsyncIterator[World]:
    """Start gateway and engine; everything else is made of fakes that keep their contracts."""
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    async with (
        ScriptedEngine() as engine,
        running_gateway(engine.url, tokenizer, tmp_path / "run", hooks=hooks, **changes) as gateway,
    ):
        engine.always = Completion("I am done.<|im_end|>")
        with RunStore.open(tmp_path / "run") as store:
            (tmp_path / "sandboxes").mkdir()
            backend, harness, grader = (
                FolderBackend(tmp_path / "sandboxes"),
                CallingHarness(),
                ListedGrader(),
            )
            ledger = Ledger(store)
            recorder = StoreRecorder(store, ledger)
            context = AttemptContext(
                backend=RegisteredBackend(backend, recorder),
                harness=harness,
                grader=grader,
                gateway=gateway.admin,
                gateway_url=gateway.url,
                gateway_control=Path(gateway.control),
                deadlines=DeadlinesConfig(
                    boot_s=5,
                    harness_s=5,
                    turn_s=5,
                    patch_s=5,
                    grade_s=5,
                    teardown_s=5,
                    guard_s=30,
                ),
                reward=make_reward(
                    VerdictRewardConfig(
                        kind="tests",
                        solved=1,
                        unsolved=0,
                        partial_credit=0.0,
                        turn_penalty=0.16,
                        turn_budget=8,
                        length_penalty=0,
                        token_budget=1000,
                        overlong_penalty=0,
                        overlong_tokens=200,
                        malformed_penalty=0.25,
                    )
                ),
                scenario="linear",
                sandbox_starts=TokenBucket(None),
                watch=AttemptWatch(),
            )
            yield World(
                backend,
                harness,
                grader,
                context,
                store,
                execute_here(recorder),
                asyncio.Event(),
                [],
                task,
                engine,
            )
            assert not backend.alive, "a sandbox was left"
            async with gateway.http.get(f"{gateway.url}/health") as answer:
                assert (await answer.json())["sessions"] == 0, "a session was left"
            assert backend.fails_to_close or not ledger.entries(), "the ledger names what is gone"
        assert not context.watch.in_flight(), "an attempt is still counted as in flight"
