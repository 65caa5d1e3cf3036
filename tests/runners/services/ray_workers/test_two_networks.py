"""A cluster whose nodes are on two networks, as two machines are: the driver's sandboxes' gateway
is reached over the wire, or the start says that it is not.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runners.records.store.run_store import RunStore
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from runners.system.processes.ledger import Ledger
from tests.fakes.tiny_model import write_tiny_model
from tests.runners.services.ray_workers.cluster import RayCluster, ray_cluster

pytest.importorskip("ray", reason="the extra agentrl-campaigns[ray] is not installed")
pytestmark = pytest.mark.integration
SMALL = [
    *("run.steps=1", "run.tasks_per_step=2", "run.rollouts_per_task=4", "run.eval_tasks=0"),
    *("task.train_tasks=8", "task.held_out_tasks=4", "rollout.concurrency=8"),
]


@dataclass(frozen=True)
class Network:
    """A network namespace: a machine, as far as its addresses go."""

    name: str
    address: str

    @property
    def inside(self) -> list[str]:
        """The start of a command that runs in it."""
        return ["nsenter", f"--net=/run/netns/{self.name}"]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def networks() -> Iterator[tuple[Network, Network]]:
    """Two networks with one wire between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("only root makes network namespaces, with ip and nsenter")
    mark = secrets.token_hex(3)
    subnet = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
    both = Network(f"agt{mark}a", f"{subnet}.1"), Network(f"agt{mark}b", f"{subnet}.2")
    try:
        for each in both:
            try:
                ip("netns", "add", each.name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        ends = [f"v{each.name}" for each in both]
        ip(
            *("link", "add", ends[0], "netns", both[0].name),
            *("type", "veth", "peer", "name", ends[1], "netns", both[1].name),
        )
        for each, end in zip(both, ends, strict=True):
            ip("-n", each.name, "addr", "add", f"{each.address}/24", "dev", end)
            ip("-n", each.name, "link", "set", "lo", "up")
            ip("-n", each.name, "link", "set", end, "up")
        yield both
    finally:
        for each in both:
            subprocess.run(["ip", "netns", "del", each.name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def cluster(networks: tuple[Network, Network]) -> Iterator[RayCluster]:
    """A head in one network, a node in the other."""
    here, there = networks
    with ray_cluster(here.inside, f"--node-ip-address={here.address}") as cluster:
        cluster.join(f"--node-ip-address={there.address}", prefix=there.inside)
        yield cluster


def campaign(
    network: Network, cluster: RayCluster, tmp_path: Path, *more: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a campaign from a network."""
    policy = tmp_path / "policy"
    policy.mkdir()
    write_tiny_tokenizer(policy)
    write_tiny_model(policy, vocab_size=tiny_tokenizer().get_vocab_size())
    return subprocess.run(
        [
            *(*network.inside, sys.executable, "-m", "cli.main", "run", "executor=ray"),
            *(f"executor.address={cluster.address}", f"run.dir={tmp_path / 'run'}"),
            *(f"model.path={policy}", f"model.tokenizer={policy}", *SMALL, *more),
        ],
        capture_output=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        check=False,
    )


def test_sandboxes_on_another_machine_reach_the_gateway(
    networks: tuple[Network, Network], cluster: RayCluster, tmp_path: Path
) -> None:
    done = campaign(networks[0], cluster, tmp_path, "gateway.host=0.0.0.0")
    assert done.returncode == 0, done.stderr.decode()
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        records = store.rollouts()
        assert len(records) == sum(record.counts for record in records) == 8
        assert all(record.turns for record in records)
        assert len(Counter(record.extra["node"] for record in records)) == 2
        assert Ledger(store).entries() == []


def test_a_gateway_that_listens_on_loopback_is_refused_at_the_start(
    networks: tuple[Network, Network], cluster: RayCluster, tmp_path: Path
) -> None:
    done = campaign(networks[0], cluster, tmp_path)
    assert done.returncode == 3
    assert f"does not reach gateway.host=127.0.0.1: set gateway.host={networks[0].address}" in (
        done.stderr.decode()
    )
