"""Kill parts of a slime job in the middle of its steps, start it again as a scheduler would, and
count what became of its rollouts.

The job runs on two local nodes of a real Ray (``tests/fakes/slime_ray_job.py``), its engines are
processes behind a router, and rollouts run on both nodes (``executor=ray``).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from conf.compose import compose, to_json
from conf.schema import Config
from runners.records.store.run_store import RunStore
from runners.records.store.store_error import StoreError
from tests.fakes.cluster_config import job_lines
from tests.fakes.cluster_tasks import write_job_inputs
from tests.fakes.sglang_router import Router
from tests.runners.services.ray_workers.cluster import RayCluster, ray_cluster

REPOSITORY = Path(__file__).parents[2]
EXECUTIONS = 8
"""More are a job that does not get on."""
SMALL = (
    *("run.tasks_per_step=2", "run.rollouts_per_task=2", "run.eval_tasks=0", "rollout.attempts=3"),
    *("trainer.save_every=1", "executor=ray", "gateway.host=0.0.0.0", "rollout.spare_groups=0"),
    *("executor.rollouts_per_node=1", "rollout.concurrency=2", "observe.tensorboard=false"),
)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the rollouts of a job that got to its end."""

    executions: int
    planned: int
    lost: list[str]
    """Rollouts without a grade in the batch that was trained last, or without a place in it."""
    duplicated: list[str]
    """Attempts that are in two batches."""
    repeated: list[str]
    """Graded attempts that another one replaced."""
    failed: Counter[str]
    """Outcomes of the attempts that are in no batch."""
    attempts: int

    @property
    def wasted(self) -> float:
        """Share of the attempts that are in no batch."""
        return 1.0 - self.planned / self.attempts if self.attempts else 0.0


@dataclass
class Torture:
    """A job, and the processes around it."""

    root: Path
    config: Config
    slime: Path | None
    cluster: RayCluster
    router: str
    engines: list[_Engine]
    driver: subprocess.Popen[bytes] | None = None
    killed: list[str] = field(default_factory=list)
    started_at: float = 0.0
    """Unix seconds of the newest execution."""

    @property
    def job(self) -> Path:
        """The job's directory."""
        return self.root / "job"

    def run(self, victims: Sequence[str]) -> int:
        """Run the job to its end, killing a victim in each step from the second on; return how
        often it was started.
        """
        waiting = list(victims)
        for execution in range(1, EXECUTIONS + 1):
            self.driver = self._start(execution)
            while self.driver.poll() is None:
                step = len(self.killed) + 2
                if waiting and self._is_under_way(step):
                    victim = waiting.pop(0)
                    getattr(self, f"_kill_{victim}")()
                    self.killed.append(victim)
                time.sleep(0.05)
            if self.driver.returncode == 0:
                return execution
        raise AssertionError(f"the job failed {EXECUTIONS} times: {self.root / 'job.log'}")

    def _start(self, execution: int) -> subprocess.Popen[bytes]:
        self.started_at = time.time()
        words = [str(self.job), self.router, self.cluster.address]
        with (self.root / "job.log").open("ab") as log:
            log.write(f"== execution {execution}\n".encode())
            return subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.slime_ray_job", *words]
                + ([str(self.slime)] if self.slime else []),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=REPOSITORY,
            )  # fmt: skip

    def _is_under_way(self, step: int) -> bool:
        """Return whether a rollout of the step is graded, and not all of them are.

        In ``stream`` a step begins with its batch, when its rollouts have ended: then whether the
        step before is handed over, and attempts of this execution run.
        """
        with suppress(StoreError), RunStore.open(self.job, read_only=True) as store:
            states = {row.step: row.state for row in store.steps()}
            if self.config.run.overlap == "stream":
                sessions = "SELECT 1 FROM ledger WHERE kind = 'session' AND entered_at > ?"
                running = bool(store.query(sessions, (self.started_at,)))
                return running and states.get(step - 1) == "done"
            found = store.rollouts(step=step, split="train", counts=True)
            graded = [record for record in found if record.reward is not None]
            return bool(graded) and states.get(step) == "running"
        return False

    def _kill_manager(self) -> None:
        self._find(lambda name, _: "RolloutManager" in name).kill()

    def _kill_gateway(self) -> None:
        self._find(lambda _, words: "runners.gateway" in words).kill()

    def _kill_engine(self) -> None:
        engine = self.engines[0]
        engine.process.kill()
        engine.process.wait()
        version = self.job / "version"
        self.engines[0].start(version.read_text() if version.exists() else "1")

    def _kill_worker(self) -> None:
        [worker, *_] = self.cluster.nodes[1].workers()
        worker.kill()

    def _kill_node(self) -> None:
        self.cluster.nodes[1].kill()

    def _find(self, wanted: Callable[[str, str], bool]) -> psutil.Process:
        """Return a process of the job on the head."""
        head = psutil.Process(self.cluster.nodes[0].process.pid)
        for process in head.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                words = " ".join(process.cmdline())
                if wanted(words, words) and process.status() != psutil.STATUS_ZOMBIE:
                    return process
        raise AssertionError("there is no such process of the job")

    def judge(self, executions: int) -> Fate:
        """Return what became of the rollouts."""
        batches: dict[int, dict[str, bool]] = {}
        for line in (self.job / "handed.jsonl").read_text().splitlines():
            batch = json.loads(line)
            batches[batch["step"]] = batch["sessions"]  # the last one was trained
        run, in_batches = (
            self.config.run,
            Counter(name for each in batches.values() for name in each),
        )
        with RunStore.open(self.job, read_only=True) as store:
            records = [record for record in store.rollouts(split="train")]
        by_session = {record.session_id: record for record in records}
        trained = {
            by_session[name].rollout_id
            for batch in batches.values()
            for name, graded in batch.items()
            if graded and by_session[name].counts
        }
        overlap = self.config.run.overlap
        planned = {record.rollout_id for record in records if record.step <= run.steps}
        assert set(batches) == set(range(1, run.steps + 1)), "a step was not trained"
        others = [record for record in records if record.session_id not in in_batches]
        if overlap == "stream":  # groups of later steps were in flight at the end
            others = [record for record in others if record.rollout_id in trained]
            planned &= trained
        return Fate(
            executions,
            run.steps * run.tasks_per_step * run.rollouts_per_task,
            sorted(planned - trained),
            [name for name, count in in_batches.items() if count > 1],
            sorted(record.session_id for record in others if record.reward is not None),
            Counter(str(record.outcome.code) for record in others if record.reward is None),
            len(in_batches) + len(others),
        )


@dataclass
class _Engine:
    """An engine in a process of its own."""

    process: subprocess.Popen[bytes]
    url: str

    def start(self, version: str) -> None:
        """Start it again at its address."""
        self.process, self.url = _launch(self.url.rpartition(":")[2], version)


def _launch(port: str, version: str) -> tuple[subprocess.Popen[bytes], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.engine_process", port, version],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().decode().strip()


@contextmanager
def torture(
    root: Path, *overrides: str, steps: int, slime: Path | None = None, nodes: int = 2
) -> Iterator[Torture]:
    """Yield a job of so many steps, ready to run; end all its processes."""
    root.mkdir(parents=True, exist_ok=True)
    write_job_inputs(root, 8, repository=root)
    paths = [str(REPOSITORY), *([str(slime)] if slime else [])]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of Ray's processes
    engines = [_Engine(*_launch("0", "1")) for _ in range(2)]
    router, loop = Router(*engines), asyncio.new_event_loop()
    router.spreads = True
    threading.Thread(target=loop.run_forever, daemon=True).start()
    try:
        asyncio.run_coroutine_threadsafe(router.__aenter__(), loop).result()
        with ray_cluster((), "--num-cpus=4") as cluster:
            for _ in range(nodes - 1):
                cluster.join("--num-cpus=0")
            config = compose(
                [
                    *job_lines(root, "ray", "launch.head=127.0.0.1"),
                    *("launch.name=job", "trainer.rollout_nodes=1", "launch.nodes=2"),
                    *(f"run.steps={steps}", *SMALL),
                    *(f"executor.address={cluster.address}", *overrides),
                ]
            )
            (root / "job" / "checkpoints").mkdir(parents=True)
            (root / "job" / "config.json").write_text(to_json(config))
            made = Torture(root, config, slime, cluster, router.url, engines)
            try:
                yield made
            finally:
                if made.driver is not None and made.driver.poll() is None:
                    made.driver.kill()
                    made.driver.wait()
    finally:
        asyncio.run_coroutine_threadsafe(router.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        for engine in engines:
            engine.process.kill()
            engine.process.communicate()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
