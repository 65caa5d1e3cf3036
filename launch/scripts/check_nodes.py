"""check_nodes.py DIR NODES -- COMMAND…: run COMMAND on every node of this Ray, one at a time each.

A node on which it fails leaves DIR/failed-NODE with the output; the exit code is then 3.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

DEADLINE_S = 120
"""Deadline of the command on a node: a lost network file system would block it for ever."""
START_S = 120
"""Time for Ray to start a process on a node."""


def check_node(words: list[str]) -> tuple[str, str]:
    """Run the command on this node; return its faults (empty if there are none) and warnings."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        return f"the pre-flight did not end within {DEADLINE_S} s", ""
    except OSError as error:
        return str(error), ""
    output = done.stdout.strip() or f"the pre-flight ended with exit code {done.returncode}"
    return output if done.returncode else "", done.stderr.strip()


def main() -> int:
    """Run the command on every node and report the faults."""
    state, number, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[4:]
    ray.init(address="auto", log_to_driver=False)
    remote: Any = ray.remote
    known: Any = ray.nodes
    nodes: dict[str, str] = {
        node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in known()
        if node["Alive"]
    }
    calls = {
        remote(check_node)
        .options(
            num_cpus=0,  # Runs even on a node whose CPUs are all taken.
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(words): node
        for node in nodes
    }
    faults: dict[str, str] = {}
    ends, left = time.monotonic() + START_S + DEADLINE_S, list(calls)
    while left:
        done, left = ray.wait(left, timeout=max(0.0, ends - time.monotonic()))
        if not done:
            faults |= {calls[call]: "Ray did not run the pre-flight in time" for call in left}
            break
        for call in done:
            try:
                found, warnings = ray.get(call)
            except ray.exceptions.RayError as error:
                found, warnings = f"Ray cannot run the pre-flight: {error}", ""
            if warnings:
                print(f"{nodes[calls[call]]}: {warnings}", file=sys.stderr)
            if found:
                faults[calls[call]] = found
    for node, found in faults.items():
        print(f"{nodes[node]}: {found}", file=sys.stderr)
        (state / f"failed-{nodes[node].partition(' ')[0]}").write_text(found + "\n")
    if faults:
        return 3
    print(f"{len(nodes)} of {number} nodes pass the pre-flight", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
