"""Stand-in for kubectl in front of KubeRay: a RayJob whose pods are hosts of ``two_hosts.sh``.

``apply`` does with the manifest what the operator does: it writes the ConfigMap's files where pods
mount them, starts Ray in every pod with the pod's variables and ``rayStartParams``, and submits the
entry point. States are Ray's, under KubeRay's names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(os.environ["FAKE_DIR"])
MOUNTED = HERE / "mounted"
SUBMITTED, ADDRESS = "rayjob-x7k2p", "http://127.0.0.1:8265"
HOSTS = os.environ["FAKE_HOSTS"].split()
ENDED = {"SUCCEEDED": "Complete", "FAILED": "Failed", "STOPPED": "Failed"}


def ray(*words: str, host: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Ray's command in a pod, which has nothing of this shell's environment."""
    kept = {name: os.environ[name] for name in os.environ if name in ("HOME", "PATH")}
    fakes = {name: value for name, value in os.environ.items() if name.startswith("FAKE_")}
    return subprocess.run(
        ["enter_host", host, "ray", *words],
        env={**kept, **fakes, "FAKE_HOST": host, **variables}, capture_output=True, text=True,
    )  # fmt: skip


def read_variables(pod: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables, with the values of the Secret it refers to."""
    (container,) = pod["spec"]["containers"]
    return {
        line["name"]: line["value"] if "value" in line else os.environ[line["name"]]
        for line in container["env"]
    }


def apply(manifest: dict[str, Any]) -> None:
    """Start the pods' Ray and submit the job."""
    configuration, job = manifest["items"]
    MOUNTED.mkdir(exist_ok=True)
    for name, text in configuration["data"].items():
        (MOUNTED / name).write_text(text)
    cluster = job["spec"]["rayClusterSpec"]
    head = cluster["headGroupSpec"]
    workers = [group for group in cluster["workerGroupSpecs"] for _ in range(group["replicas"])]
    assert len(workers) == len(HOSTS) - 1
    for host, pod in zip(HOSTS, [head, *workers], strict=True):
        place = ["--head", "--port=6379"] if pod is head else ["--address", f"{HOSTS[0]}:6379"]
        given = [f"--{name}={value}" for name, value in pod["rayStartParams"].items()]
        words = ("start", *place, *given, "--disable-usage-stats")
        started = ray(*words, host=host, variables=read_variables(pod["template"]))
        assert started.returncode == 0, started.stderr
    # The mount's place at the root of the pods' file system is nothing that a test can write.
    (_, entry) = job["spec"]["entrypoint"].split()
    words = (
        "--no-wait",
        "--submission-id",
        SUBMITTED,
        "--",
        "bash",
        str(MOUNTED / Path(entry).name),
    )
    submitted = ray("job", "submit", "--address", ADDRESS, *words, host=HOSTS[0], variables={})
    assert submitted.returncode == 0, submitted.stderr
    print(f"configmap/{configuration['metadata']['name']} created")
    print(f"rayjob.ray.io/{job['metadata']['name']} created")


def state() -> str:
    """Return KubeRay's two states of the job."""
    answer = ray("job", "status", "--address", ADDRESS, SUBMITTED, host=HOSTS[0], variables={})
    for word, name in (
        ("succeeded", "SUCCEEDED"),
        ("failed", "FAILED"),
        ("was stopped", "STOPPED"),
    ):
        if f"Job '{SUBMITTED}' {word}" in answer.stdout + answer.stderr:
            return f"{ENDED[name]} {name}"
    return "Running RUNNING"


def main(words: list[str]) -> int:
    """Return the exit code."""
    with (HERE / "calls").open("a") as calls:
        calls.write(f"kubectl {' '.join(words)}\n")
    assert words[0] == "--namespace"
    match words[2:]:
        case ["apply", "--filename", file]:
            apply(json.loads(Path(file).read_text()))
        case ["get", "rayjob", name, *_]:
            if MOUNTED.exists():
                print(f"{name} {state()}", end="")
        case ["logs", *_]:
            words = ["job", "logs", "--address", ADDRESS, "--follow", SUBMITTED]
            print(ray(*words, host=HOSTS[0], variables={}).stdout)
        case _:
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
