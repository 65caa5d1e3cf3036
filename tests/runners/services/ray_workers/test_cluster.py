"""Campaigns on a real Ray cluster of several nodes, one of which dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from runners.records.outcome import OutcomeCode
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from runners.system.processes.ledger import Ledger
from runners.system.processes.process_tags import SANDBOX_TAG
from tests.fakes.tiny_model import write_tiny_model
from tests.runners.campaigns.conftest import SMALL, Miniature
from tests.runners.services.ray_workers.cluster import RayCluster, ray_cluster

pytest.importorskip("ray", reason="the extra agentrl-campaigns[ray] is not installed")
pytestmark = pytest.mark.integration
PLANNED = 2 * 2 * 4 + 2 * 4
"""Rollouts of a miniature campaign: two steps, two evaluations."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head with one more node; a test that kills a node starts its own."""
    with ray_cluster() as cluster:
        cluster.join()
        yield cluster


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("policy")
    write_tiny_tokenizer(directory)
    return write_tiny_model(directory, vocab_size=tiny_tokenizer().get_vocab_size())


@pytest.fixture
def mini(tmp_path: Path, policy: Path) -> Iterator[Miniature]:
    mini = Miniature(tmp_path / "run", tmp_path / "cache", policy)
    yield mini
    for process in mini.processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def on(cluster: RayCluster, *more: str) -> list[str]:
    """Return the overrides of a run on the cluster."""
    return ["executor=ray", f"executor.address={cluster.address}", *more]


def nodes_of(records: list[RolloutRecord]) -> Counter[str]:
    return Counter(record.extra["node"] for record in records)


def assert_planned_and_no_more(mini: Miniature) -> None:
    """Every rollout counts once, every step and evaluation is there once, nothing is left."""
    with mini.store() as store:
        counting = store.rollouts(counts=True)
        assert len({record.rollout_id for record in counting}) == len(counting) == PLANNED
        assert [(row.step, row.state) for row in store.steps()] == [(1, "done"), (2, "done")]
        assert [row.step for row in store.evaluations()] == [0, 2]
        assert Ledger(store).entries() == []


def sandboxes_of(owners: set[int]) -> set[int]:
    """Return the processes in sandboxes that any of these processes made."""
    found = set()
    for process in psutil.pids():
        with suppress(OSError):
            environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            marks = [
                each for each in environment if each.startswith(f"{SANDBOX_TAG}=agentrl-".encode())
            ]
            if any(int(mark.split(b"-")[2]) in owners for mark in marks):
                found.add(process)
    return found


def eventually(true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 300
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def training(count: int) -> Callable[[RunStore], bool]:
    return lambda store: len(store.rollouts(split="train", counts=True)) >= count


def test_a_campaign_survives_the_death_of_a_node(cluster: RayCluster, mini: Miniature) -> None:
    doomed = cluster.join()
    slow = "rollout.concurrency=12"
    driver = mini.begin(*on(cluster, slow, "executor.rollouts_per_node=4"))
    mini.wait_until(training(2), driver)
    doomed.kill()
    document = mini.finish(driver)
    assert document["steps"] == 2
    assert_planned_and_no_more(mini)
    with mini.store() as store:
        [lost] = store.events("node_lost")
        attempts = store.rollouts()
        failed = [record for record in attempts if not record.outcome.meaning.reward_counts]
        assert {record.outcome.code for record in failed} <= {OutcomeCode.INFRA_NODE_LOST}
        assert {record.extra["node"] for record in failed} <= {lost.data["node"]}
        assert len(attempts) == PLANNED + len(failed)
        assert len(nodes_of(attempts)) == 3


def test_a_killed_driver_leaves_nothing_on_any_node_and_the_run_resumes(
    cluster: RayCluster, mini: Miniature
) -> None:
    driver = mini.begin(*on(cluster))
    mini.wait_until(training(2), driver)
    workers = {worker.pid for node in cluster.nodes for worker in node.workers()}
    assert len(workers) == 2
    driver.kill()
    driver.communicate()
    eventually(lambda: not workers & set(psutil.pids()), "workers are left")
    eventually(lambda: not sandboxes_of(workers), "sandboxes are left")
    mini.finish(mini.resume())
    assert_planned_and_no_more(mini)
    with mini.store() as store:
        assert len(nodes_of(store.rollouts())) == 2


IN_A_TASK = """
import subprocess, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
call = ray.remote(num_cpus=0)(subprocess.run)
ended = ray.get(call.remote(sys.argv[3:], cwd=sys.argv[2], capture_output=True, text=True))
print(ended.stderr, file=sys.stderr)
sys.exit(ended.returncode)
"""


def test_a_driver_may_itself_be_part_of_another_ray_job(
    cluster: RayCluster, mini: Miniature
) -> None:
    """Slime's rollout manager is an actor: its rollouts go to the nodes of its own cluster."""
    policy = [f"model.path={mini.policy}", f"model.tokenizer={mini.policy}"]
    run = [
        *("env", f"XDG_CACHE_HOME={mini.cache}", sys.executable, "-m", "cli.main", "run"),
        *(*SMALL, *policy, f"run.dir={mini.run_dir}", *on(cluster)),
    ]
    outer = [sys.executable, "-c", IN_A_TASK, cluster.address, str(Path.cwd()), *run]
    ended = subprocess.run(outer, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert_planned_and_no_more(mini)


def test_ctrl_c_drains_and_the_second_leaves_at_once(cluster: RayCluster, mini: Miniature) -> None:
    driver = mini.begin(*on(cluster))
    mini.wait_until(training(1), driver)
    driver.send_signal(signal.SIGINT)
    assert driver.stderr is not None
    while b"stopping: " not in (line := driver.stderr.readline()):
        assert line, "it has ended"  # signals of one kind that come at once are one
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate()
    assert driver.returncode == 130, err.decode()
    with mini.store() as store:
        assert Ledger(store).entries() == []
        codes = {record.outcome.code for record in store.rollouts()}
        assert not any(str(code).startswith(("infra", "internal")) for code in codes)
    eventually(lambda: not any(node.workers() for node in cluster.nodes), "workers are left")


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_on_its_node(cluster: RayCluster, mini: Miniature) -> None:
    driver = mini.begin(*on(cluster, "executor.driver_node=false"))
    mini.wait_until(training(1), driver)
    [worker] = cluster.nodes[1].workers()
    worker.kill()
    mini.finish(driver)
    assert_planned_and_no_more(mini)
    with mini.store() as store:
        assert len(nodes_of(store.rollouts())) == 1
        assert len(store.events("node")) == 2


def test_without_any_node_the_run_ends_with_code_4_and_resumes(
    cluster: RayCluster, mini: Miniature
) -> None:
    changes = ("executor.driver_node=false", "executor.patience_s=1")
    driver = mini.begin(*on(cluster, *changes))
    mini.wait_until(training(1), driver)
    for node in cluster.nodes[1:]:
        node.kill()
    _, err = driver.communicate()
    assert driver.returncode == 4, err.decode()
    assert b"no node of the Ray cluster could take rollouts for 1 s" in err
    assert b"and of the last it was said: node " in err
    mini.finish(mini.resume("executor.driver_node=true"))
    assert_planned_and_no_more(mini)


def test_a_missing_cluster_is_reported_before_any_rollout(mini: Miniature) -> None:
    driver = mini.begin("executor=ray", "executor.address=127.0.0.1:9")
    _, err = driver.communicate()
    assert driver.returncode == 3
    assert b"no Ray cluster at executor.address=127.0.0.1:9" in err


def test_the_driver_imports_no_ray_and_says_how_to_install_it() -> None:
    hidden = (
        "import asyncio, sys, importlib.util\n"
        "import runners.services.services\n"
        "from runners.services.ray_workers.executor import join\n"
        "assert 'ray' not in sys.modules\n"
        "sys.modules['ray'] = None\n"
        "asyncio.run(join(None, None, None, None))\n"
    )
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, check=False)
    said = b"executor=ray needs ray, which is missing: pip install 'agentrl-campaigns[ray]'"
    assert said in done.stderr
