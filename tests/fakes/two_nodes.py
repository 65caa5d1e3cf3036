"""A cluster of two hosts on which the real Ray runs: a job's scripts go from their start to
``train.py``, which writes down how it was called.

The hosts are namespaces (``two_hosts.sh``). Ray, the conversion's torchrun, agentrl's own steps and
the shell are real; ssh, Slurm, kubectl and nvidia-smi are the stand-ins of ``bin``; slime's two
programs are stand-ins that ask Ray for the GPUs of the job.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import compose
from conf.schema import Config
from launch.job_files import write_job
from launch.plan import JobPlan, plan_job
from tests.fakes.cluster_config import job_lines
from tests.fakes.cluster_tasks import write_job_inputs

FAKES = Path(__file__).parent
SECRET = "e2b_do-not-write-this"
GPUS = 8
NAMESPACES = ["--user", "--map-root-user", "--net", "--mount", "--pid", "--uts"]
UNSHARE = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
PROGRAMS = ("enter_host", "nvidia-smi", "sbatch", "scontrol", "squeue", "srun", "ssh")
TRAIN = '''\
"""Stand-in for slime's train.py: take all GPUs of the job as slime does, write the call down.

With a file ``hold`` in the job's directory it goes on for ever.
"""
import json, os, socket, sys, time
import ray
from ray.util.placement_group import placement_group

ray.init(address="auto", log_to_driver=False)
gpus = int(sys.argv[sys.argv.index("--actor-num-nodes") + 1]) * int(
    sys.argv[sys.argv.index("--actor-num-gpus-per-node") + 1]
)
group = placement_group([{"GPU": 1, "CPU": 0.01}] * gpus, strategy="PACK")
ray.get(group.ready(), timeout=120)
places = ray.util.placement_group_table(group)["bundles_to_node_id"]
call = {
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "host": socket.gethostname(),
    "gpus": gpus,
    "nodes": len(set(places.values())),
}
with open(os.environ["AGENTRL_RUN_DIR"] + "/train-call.json", "w") as file:
    json.dump(call, file)
while os.path.exists(os.environ["AGENTRL_RUN_DIR"] + "/hold"):
    time.sleep(0.2)
print("step 0 done")
'''
CONVERT = '''\
"""Stand-in for slime's conversion: every rank leaves a file, the first one the marker."""
import os, pathlib, sys

target = pathlib.Path(sys.argv[sys.argv.index("--save") + 1])
target.mkdir(parents=True, exist_ok=True)
(target / f"rank-{os.environ['RANK']}").write_text(os.environ["WORLD_SIZE"])
if os.environ["RANK"] == "0":
    (target / "latest_checkpointed_iteration.txt").write_text("release")
'''


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """The files that both hosts see, in one folder."""

    root: Path

    @property
    def job(self) -> Path:
        """The job's directory."""
        return self.root / "shared" / "agentrl"

    def plan(self, launch: str) -> JobPlan:
        """Plan a job on both hosts."""
        return plan_job(self.config(launch))

    def config(self, launch: str) -> Config:
        """Compose a job on both hosts."""
        shared = self.root / "shared"
        own = {
            "ssh": [f"launch.hosts_file={self.root / 'hosts_file'}"],
            "ray": ["launch.head=head"],
        }
        return compose(
            [
                *job_lines(shared, launch, *own.get(launch, ())),
                *("launch.nodes=2", f"launch.gpus_per_node={GPUS}", "launch.free_disk_gb=1"),
                "launch.join_s=300",
                f"launch.slime_dir={self.root / 'slime'}",
                *(f"launch.python={sys.executable}", "launch.secrets=[E2B_API_KEY]"),
                *("task.held_out_tasks=1", "run.eval_tasks=1"),
            ]
        )

    def write(self, launch: str) -> Path:
        """Write the job's scripts; return the one that starts it."""
        return write_job(self.plan(launch), self.root / "out", command=["agentrl", "launch"])

    def run(self, *command: str, ray: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command on the head; ``ray``: on a Ray that runs on both hosts already."""
        first = ["bash", str(self.root / "with_ray.sh")] if ray else []
        return subprocess.run(
            [*UNSHARE, "bash", str(FAKES / "two_hosts.sh"), str(self.root), *first, *command],
            env=self.environment(), cwd=self.root, capture_output=True, text=True,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return the environment of a login on the hosts."""
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        fakes = {
            "FAKE_DIR": str(self.root / "fake"),
            "FAKE_HOSTS": "head node1",
            "FAKE_NAMESPACES": str(self.root / "hosts"),
        }
        home = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        return {**home, **fakes, "PATH": path, "E2B_API_KEY": SECRET}

    def train_call(self) -> dict[str, Any]:
        """Return how train.py was called, which the stand-in has written."""
        found: dict[str, Any] = json.loads((self.job / "train-call.json").read_text())
        return found

    def logs(self) -> str:
        """Return all logs of the job, for the message of a failed assertion."""
        return "\n".join(
            f"== {file.name}\n{file.read_text(errors='replace')[-4000:]}"
            for file in sorted((self.job / "logs").glob("*"))
            if file.is_file()
        )


def have_namespaces() -> bool:
    """Return True if this machine lets us make hosts."""
    if any(shutil.which(program) is None for program in ("unshare", "nsenter", "ip")):
        return False
    test = "ip link add dev eth0 type veth peer name veth1"
    return subprocess.run([*UNSHARE, "bash", "-c", test], capture_output=True).returncode == 0


def make_two_nodes(root: Path) -> TwoNodes:
    """Write the files that both hosts see."""
    shared, tools = root / "shared", root / "slime" / "tools"
    for directory in (root / "fake", root / "bin", shared / "weights", tools):
        directory.mkdir(parents=True)
    for program in PROGRAMS:
        (root / "bin" / program).symlink_to(FAKES / "bin" / program)
    _write_program(root / "bin" / "ray", [sys.executable, "-m", "ray.scripts.scripts"])
    _write_program(root / "bin" / "kubectl", [sys.executable, str(FAKES / "kuberay.py")])
    (root / "slime" / "train.py").write_text(TRAIN)
    (tools / "convert_hf_to_torch_dist.py").write_text(CONVERT)
    (root / "hosts_file").write_text("head\nnode1\n")
    start = f"ray start --disable-usage-stats --num-gpus {GPUS}"
    (root / "with_ray.sh").write_text(
        "set -euo pipefail\n"
        "export no_proxy=head,10.89.0.1,10.89.0.2 NO_PROXY=head,10.89.0.1,10.89.0.2\n"
        f"{start} --head --port 6379 --dashboard-host 0.0.0.0 >&2\n"
        f"enter_host node1 {start} --address head:6379 >&2\n"
        '"$@"\n'
    )
    write_job_inputs(shared, 9, repository=root)
    return TwoNodes(root)


def _write_program(file: Path, words: Sequence[str]) -> None:
    quoted = " ".join(f"'{word}'" for word in words)
    file.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
    file.chmod(0o755)
