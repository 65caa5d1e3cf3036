"""A fake cluster: eight nodes and a shared directory in a folder, and fake launcher programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from conf.schema import Config
from launch.job_files import write_job
from launch.plan import plan_job
from runners.records.tokenizer import write_tiny_tokenizer
from runners.system.processes.ports import free_port
from tests.fakes.cluster_config import a_config, job_lines

REPOSITORY = Path(__file__).parents[2]
BIN = Path(__file__).with_name("bin")
HOSTS = ["head", *(f"node{number}" for number in range(1, 8))]
SECRET = "e2b_do-not-write-this"
PUBLISHED = json.loads((REPOSITORY / "tests/launch/published_configs.json").read_text("utf-8"))[
    "qwen3_30b_a3b"
]
"""What the checkpoint's ``config.json`` says."""


def _on_a_terminal() -> None:
    """Restore SIGINT, which a shell makes its background processes ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


ROW = {
    "problem_statement": "Fix it.",
    "repo_path": "https://git.example/shop.git",
    "base_commit": "0" * 40,
    "eval_cmd": "true",
}
"""A task of the job; nothing fetches its repository."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a call of ``agentrl``."""

    code: int
    stdout: str
    stderr: str
    """Its lines joined."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of eight nodes and a shared directory, all in one folder."""

    root: Path

    @property
    def job(self) -> Path:
        return self.root / "shared" / "agentrl"

    def config(self, launch: str, *overrides: str, join_s: int = 600) -> Config:
        """Return a job whose paths are this cluster's."""
        config = a_config(*overrides, launch=launch)
        shared = self.root / "shared"
        section = {
            "shared_dir": shared,
            "slime_dir": self.root / "slime",
            "python": str(BIN / "node-python"),
            "join_s": join_s,
            "free_disk_gb": 1,
            "secrets": ("E2B_API_KEY",),
            "ray_port": free_port("127.0.0.1"),
            "dashboard_port": free_port("127.0.0.1"),
            **({"hosts_file": self.root / "hosts"} if launch == "ssh" else {}),
            **({"head": "head"} if launch == "ray" else {}),
        }
        model = config.model.model_copy(update={"path": shared / "weights"})
        there = config.launch.model_copy(update=section)
        return config.model_copy(update={"launch": there, "model": model})

    def overrides(self, launch: str, *more: str) -> list[str]:
        """Return the overrides of an ``agentrl run`` on this cluster."""
        shared = self.root / "shared"
        own = {"ssh": [f"launch.hosts_file={self.root / 'hosts'}"], "ray": ["launch.head=head"]}
        return [
            *job_lines(shared, launch, *own.get(launch, ())),
            "launch.join_s=600",
            *(f"launch.slime_dir={self.root / 'slime'}", "launch.free_disk_gb=1"),
            *(f"launch.python={BIN / 'node-python'}", "launch.secrets=[E2B_API_KEY]"),
            *(
                f"launch.ray_port={free_port('127.0.0.1')}",
                f"launch.dashboard_port={free_port('127.0.0.1')}",
            ),
            *more,
        ]

    def agentrl(self, *arguments: str, **given: str) -> subprocess.Popen[str]:
        """Start ``agentrl`` on the machine that submits."""
        environment = self.environment(**given) | {
            **{"PYTHONPATH": str(REPOSITORY), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
        }
        return subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            env=environment, cwd=self.root, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_on_a_terminal,
        )  # fmt: skip

    def ran(self, *arguments: str, **given: str) -> Ran:
        """Run ``agentrl`` to its end."""
        process = self.agentrl(*arguments, **given)
        stdout, stderr = process.communicate()
        return Ran(process.returncode, stdout, " ".join(stderr.split()))

    def write(self, launch: str, *overrides: str, join_s: int = 600) -> Path:
        """Write the job's directory; return its start script."""
        plan = plan_job(self.config(launch, *overrides, join_s=join_s))
        return write_job(plan, self.root / "out", command=["agentrl", "launch"])

    def environment(self, **given: str) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG")}
        return {
            **found,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FAKE_DIR": str(self.root / "fake"),
            "FAKE_HOSTS": " ".join(HOSTS),
            "FAKE_CLUSTER_SECRET": SECRET,
            "FAKE_PYTHONPATH": str(REPOSITORY),
            "E2B_API_KEY": SECRET,
            **given,
        }

    def start(self, script: Path, **given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(script)],
            env=self.environment(**given),
            capture_output=True,
            text=True,
            check=False,
        )

    def said(self, name: str) -> list[str]:
        """Return the lines of a file that the fake programs have written."""
        file = self.root / "fake" / name
        return file.read_text().splitlines() if file.exists() else []

    def calls(self, start: str) -> list[str]:
        return [line for line in self.said("calls") if line.startswith(start)]

    def no_file_holds_the_secret(self) -> None:
        for file in self.root.rglob("*"):
            assert not file.is_file() or SECRET not in file.read_text(errors="replace"), file


def make_cluster(root: Path) -> Cluster:
    """Create the files that the nodes see."""
    (root / "fake").mkdir()
    (root / "slime" / "tools").mkdir(parents=True)
    (root / "slime" / "train.py").touch()
    (root / "shared" / "weights").mkdir(parents=True)
    (root / "shared" / "weights" / "config.json").write_text(json.dumps(PUBLISHED))
    write_tiny_tokenizer(root / "shared" / "weights")
    rows = [json.dumps({**ROW, "instance_id": f"t{number}"}) for number in range(16)]
    (root / "shared" / "tasks.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (root / "hosts").write_text("# the job's nodes\n" + "\n".join(HOSTS) + "\n")
    return Cluster(root)


def wait_for(file: Path, lines: int = 1, containing: str = "") -> None:
    """Wait until the file has so many lines that contain a word."""
    subprocess.run(
        ["bash", "-c", 'until (($(grep -c -- "$3" "$1") >= $2)); do sleep 0.05; done', "-",
         str(file), str(lines), containing],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
