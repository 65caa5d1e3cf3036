"""convert.py TARGET NODES GPUS -- SCRIPT ARGS…: convert a checkpoint on NODES nodes of this Ray.

TARGET is complete or absent: the conversion writes to TARGET.partial, which is then renamed.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

PORT = 29517
"""Rendezvous port of the conversion's ranks; nothing else of the job listens on it."""


def address() -> str:
    """Return the address of the node on which this runs."""
    found: Any = ray.util.get_node_ip_address
    return str(found())


def convert(rank: int, nodes: int, gpus: int, head: str, words: list[str]) -> int:
    """Run the ranks of one node; return the exit code of torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    place = [f"--nproc-per-node={gpus}", f"--nnodes={nodes}", f"--node-rank={rank}"]
    return subprocess.run(
        [*torchrun, *place, f"--master-addr={head}", f"--master-port={PORT}", *words]
    ).returncode


def main() -> int:
    """Convert on all nodes; return the exit code."""
    target, nodes, gpus = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    partial = target.with_name(f"{target.name}.partial")
    words = [*sys.argv[5:], "--save", str(partial)]
    shutil.rmtree(partial, ignore_errors=True)
    ray.init(address="auto")
    group = placement_group([{"GPU": gpus, "CPU": 1}] * nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready())
    places: list[dict[str, Any]] = [
        {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, i), "num_gpus": gpus}
        for i in range(nodes)
    ]
    remote: Any = ray.remote
    head = ray.get(remote(address).options(**places[0]).remote())
    codes = ray.get(
        [
            remote(convert).options(**place).remote(rank, nodes, gpus, head, words)
            for rank, place in enumerate(places)
        ]
    )
    ray.util.remove_placement_group(group)
    if any(codes):
        print(f"the conversion failed: exit codes by node {codes}", file=sys.stderr)
        return 1
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
