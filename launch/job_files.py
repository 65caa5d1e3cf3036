"""Write a job's directory: the fixed scripts, and the files with the values that they read.

All values are in ``settings.sh``, quoted. Writing the same plan twice gives the same files.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from conf.errors import AgentrlError, ExitCode
from conf.sections.cluster import (
    RayLaunchConfig,
    SshLaunchConfig,
    SshLoginConfig,
)
from conf.sections.kubernetes import KubernetesLaunchConfig
from conf.sections.slurm import SlurmLaunchConfig
from launch import flags
from launch.kubernetes import render_rayjob
from launch.plan import JobPlan
from launch.plan_table import render_job
from launch.slime_arguments import converted_checkpoint, job_dir, train_script
from launch.slurm import container_settings, sbatch_arguments

SCRIPTS = Path(__file__).with_name("scripts")
_WIDTH = 110
_IN_PODS = (
    *("settings.sh", "steps.sh", "entry.sh", "export.sh", "preflight.sh"),
    *("check_nodes.py", "convert.py", "config.json"),
)


class WriteError(AgentrlError):
    """The job's directory cannot be written."""

    exit_code = ExitCode.USAGE


def write_job(plan: JobPlan, out: Path, *, command: Sequence[str]) -> Path:
    """Write the job's directory ``out``; return the script that starts the job.

    Raises WriteError.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in render_files(plan, command=command).items():
            # A shell reads its script while it runs it. Renaming keeps the file that a running
            # shell has open; writing into it would change the script under it.
            unfinished = out / f"{name}.partial"
            unfinished.write_text(text, "utf-8")
            unfinished.replace(out / name)
        start = out / f"{plan.job.config.launch.kind}.sh"
        start.chmod(0o755)
    except OSError as error:
        raise WriteError(f"--out {out} cannot be written: {error}") from error
    return start


def list_commands(plan: JobPlan, start: Path) -> list[str]:
    """Return the commands that start the job, submit it and train."""
    root, config = job_dir(plan.job), plan.job.config
    entry = f"bash {shlex.quote(str(root / 'launch' / 'entry.sh'))}"
    match config.launch:
        case SlurmLaunchConfig() as slurm:
            batch = root / "launch" / "slurm_job.sh"
            words = ["sbatch", "--parsable", "--export=ALL", *sbatch_arguments(slurm), str(batch)]
            submit = shlex.join(words)
        case KubernetesLaunchConfig() as kubernetes:
            manifest = start.with_name("rayjob.json")
            submit = f"kubectl --namespace {kubernetes.namespace} apply --filename {manifest}"
        case _:
            submit = f"ray job submit -- {entry}"
    train = [plan.job.launch.python, "-u", train_script(config), *flags.to_words(plan.arguments)]
    return [f"bash {shlex.quote(str(start))}", submit, shlex.join(train)]


def render_files(plan: JobPlan, *, command: Sequence[str]) -> dict[str, str]:
    """Return the content of every file of the job's directory, by name."""
    found = {file.name: file.read_text("utf-8") for file in _list_scripts(plan)}
    found |= {
        "settings.sh": render_settings(plan, command),
        "runtime_env.json": _json({"env_vars": plan.environment}),
        "config.json": plan.job.config.model_dump_json(indent=2) + "\n",
        "plan.json": _json(plan.to_dict()),
        "plan.txt": _render_plan(plan),
    }
    if isinstance(plan.job.config.launch, KubernetesLaunchConfig):
        inside = {name: found[name] for name in _IN_PODS}
        found["rayjob.json"] = _json(render_rayjob(plan, plan.job.config.launch, inside))
    return found


def _list_scripts(plan: JobPlan) -> list[Path]:
    kinds = {"ssh", "slurm", "ray", "kubernetes"} - {plan.job.config.launch.kind}
    others = {f"{kind}.sh" for kind in kinds}
    if plan.job.config.launch.kind != "slurm":
        others |= {"slurm_job.sh", "slurm_node.sh"}
    return [
        file
        for file in sorted(SCRIPTS.iterdir())
        if file.suffix in (".sh", ".py") and file.name not in others
    ]


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _render_plan(plan: JobPlan) -> str:
    console = Console(file=StringIO(), width=_WIDTH, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        console.print(render_job(plan))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def render_settings(plan: JobPlan, command: Sequence[str]) -> str:
    """Return the content of ``settings.sh``: the values of this job, as shell variables."""
    launch, root = plan.job.launch, job_dir(plan.job)
    values: Mapping[str, object] = {
        "LAUNCHER": plan.job.config.launch.kind,
        "NAME": launch.name,
        "NODES": launch.nodes,
        "GPUS_PER_NODE": launch.gpus_per_node,
        "JOB_DIR": root,
        "SCRIPT_DIR": root / "launch",
        "STATE_DIR": root / "state",
        "LOG_DIR": root / "logs",
        "SLIME_DIR": launch.slime_dir,
        "TRAIN_SCRIPT": train_script(plan.job.config),
        "HF_CHECKPOINT": plan.job.model.path,
        "TORCH_DIST": converted_checkpoint(plan.job),
        "CONVERT_NODES": plan.job.model.layout.convert_nodes,
        "VOCABULARY": plan.job.architecture.vocabulary,
        "EXPORT_WEIGHTS": int(plan.job.trainer.export_weights),
        "PYTHON": launch.python,
        "RAY_PORT": launch.ray_port,
        "DASHBOARD_PORT": launch.dashboard_port,
        "JOIN_S": launch.join_s,
        "FREE_DISK_GB": launch.free_disk_gb,
        "SECRETS": plan.secrets,
        "ENVIRONMENT": tuple(f"{name}={value}" for name, value in plan.environment.items()),
        **_launcher_settings(plan),
        "CONVERT_ARGS": tuple(flags.to_words(plan.conversion)),
        "TRAIN_ARGS": tuple(flags.to_words(plan.arguments)),
    }
    # A line break in an argument would end the comment and begin a command.
    written_by = " ".join(shlex.quote(word) for word in command).replace("\n", " ")
    head = [
        "# shellcheck shell=bash disable=SC2034",
        "# The values of this job, which the scripts read.",
    ]
    lines = [*head, f"# Written by: {written_by}", *map(_render_assignment, values.items())]
    return "\n".join(lines) + "\n"


def _launcher_settings(plan: JobPlan) -> dict[str, object]:
    match plan.job.config.launch:
        case SshLaunchConfig() as ssh:
            return {"HOSTS_FILE": ssh.hosts_file, "SSH_OPTIONS": _ssh_options(ssh.login)}
        case RayLaunchConfig() as ray:
            return {"RAY_HEAD": ray.head}
        case SlurmLaunchConfig() as slurm:
            return {
                "SBATCH_ARGS": sbatch_arguments(slurm),
                "MODULES": slurm.modules,
                **container_settings(slurm),
            }
        case KubernetesLaunchConfig() as kubernetes:
            return {"NAMESPACE": kubernetes.namespace}
    return {}


def _ssh_options(login: SshLoginConfig) -> tuple[str, ...]:
    found = {
        "User": login.user,
        "Port": login.port,
        "IdentityFile": login.key,
        # An agent with many keys would use up the server's attempts before this one.
        "IdentitiesOnly": login.key and "yes",
        "ProxyJump": login.jump,
    }
    return tuple(
        word for name, value in found.items() if value for word in ("-o", f"{name}={value}")
    )


def _render_assignment(item: tuple[str, object]) -> str:
    name, value = item
    if isinstance(value, tuple):
        return f"{name}=({' '.join(_quote(str(word)) for word in value)})"
    return f"{name}={shlex.quote(str(value))}"


def _quote(word: str) -> str:
    """Quote an element of an array; a bare comma looks like one that separates elements."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and "," in word else quoted
