"""Command lines and environment of the ``apptainer`` program.

Apptainer lets variables stand for flags (``APPTAINER_BIND``), and sites set some for all users. So
the program gets none but those that say where its files are.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from conf.sections.sandbox import ApptainerSandboxConfig
from runners.sandboxes.contract import SandboxError

PROGRAM = "apptainer"
PREFIXES = ("APPTAINER", "SINGULARITY")
KEPT = frozenset(
    f"{PREFIXES[0]}_{name}"
    for name in ("CACHEDIR", "CONFIGDIR", "TMPDIR", "DOCKER_USERNAME", "DOCKER_PASSWORD")
)
"""Variables that say where things are, or with which account images are pulled."""
CONTAIN = (
    # Apptainer mounts the host's /tmp, home and current directory unless it is told otherwise.
    # /tmp would be a tmpfs of 64 MB; without that mount it is the image's own, in the overlay.
    *("--fakeroot", "--containall", "--no-home", "--no-mount", "tmp,home,cwd,bind-paths"),
    *("--net", "--network", "none"),
)


def start_argv(config: ApptainerSandboxConfig, name: str, image: str, overlay: Path) -> list[str]:
    """Return the command that starts an instance of an image, in which nothing runs yet."""
    argv = [PROGRAM, "instance", "start", *CONTAIN, "--overlay", str(overlay)]
    if config.memory_mb is not None:
        # Equal to --memory: memory and swap together, so no swap.
        limit = f"{config.memory_mb}M"
        argv += ["--memory", limit, "--memory-swap", limit]
    if config.processes is not None:
        argv += ["--pids-limit", str(config.processes)]
    if config.cpus is not None:
        argv += ["--cpus", f"{config.cpus:g}"]
    return [*argv, image, name]


def exec_argv(name: str, script: str) -> list[str]:
    """Return the command that runs a script in an instance as its root."""
    # Without --cleanenv a command of an instance gets the environment of this process.
    return [PROGRAM, "exec", "--cleanenv", "--pwd", "/", f"instance://{name}", "sh", "-c", script]


def list_argv(pattern: str) -> list[str]:
    """Return the command that prints the instances of this user whose names match, as JSON."""
    return [PROGRAM, "instance", "list", "--json", pattern]


def stop_argv(name: str) -> list[str]:
    """Return the command that ends an instance with everything in it."""
    return [PROGRAM, "instance", "stop", "--force", name]


def remove_argv(image: str, directory: Path) -> list[str]:
    """Return the command that removes what is in a directory, as the owner of all ids there.

    Files that an instance wrote belong to ids of ``/etc/subuid``, so this user cannot remove them.
    """
    bind = f"{directory}:/mnt:rw"
    script = "rm -rf -- /mnt/upper /mnt/work"
    return [PROGRAM, "exec", *CONTAIN, "--bind", bind, "--pwd", "/", image, "sh", "-c", script]


def read_instances(printed: bytes) -> dict[str, int]:
    """Return the process ids of listed instances, by name; raises SandboxError."""
    try:
        listed = json.loads(printed)["instances"]
        return {str(each["instance"]): int(each["pid"]) for each in listed}
    except (ValueError, KeyError, TypeError) as error:
        raise SandboxError(f"apptainer instance list printed no list: {printed[:200]!r}") from error


def log_files(name: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the files in the user's home that Apptainer writes for an instance, and leaves."""
    home = environ.get("APPTAINER_CONFIGDIR") or f"{environ.get('HOME', '')}/.apptainer"
    user = pwd.getpwuid(os.getuid()).pw_name
    directory = Path(home, "instances", "logs", os.uname().nodename, user)
    return [directory / f"{name}.{stream}" for stream in ("out", "err")]


def program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that change what Apptainer does."""
    return {
        name: value
        for name, value in environ.items()
        if name in KEPT or not name.startswith(PREFIXES)
    }


def find_image(config: ApptainerSandboxConfig, name: str | None) -> str:
    """Return the image of a sandbox, as ``apptainer`` takes it; raises SandboxError."""
    if name is None or name.startswith("/"):
        name = name or config.image
        return name if "://" in name else str(Path(name).absolute())
    if "://" in name:
        return name
    if config.images is None:
        return f"docker://{name}"
    file = Path(config.images).absolute() / sif_name(name)
    if not file.exists():
        raise SandboxError(
            f"sandbox.images={config.images} has no {file.name}: "
            f"`apptainer pull --dir {config.images} docker://{name}`"
        )
    return str(file)


def sif_name(image: str) -> str:
    """Return the name that ``apptainer pull`` gives the file of an image."""
    last = image.rpartition("/")[2].partition("@")[0]
    name, _, tag = last.partition(":")
    return f"{name}_{tag or 'latest'}.sif"
