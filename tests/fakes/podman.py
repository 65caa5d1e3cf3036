"""A real podman engine for tests: storage and settings of its own, and one image without a pull.

The image has the host's programs: its layer is a few files and links, and podman is configured to
mount ``/usr`` and Python's directory into every container, read-only.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

IMAGE = "localhost/agentrl-test:1"
OTHER_NAMES = ("docker.io/library/python:3.12", "docker.io/library/python:3.12-slim")
"""Names of the same image, for tasks that name one."""
PREFIX = Path(sys.base_prefix).resolve()
SEARCH = f"{PREFIX}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RUNTIMES = ("runc", "crun")
"""runc first: crun refuses control groups of both versions at once, which a test machine may have.
"""
DIRECTORIES = ("etc", "home", "opt", "proc", "dev", "root", "tmp", "usr", "var", "var/lib")
FILES = {"etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "etc/group": b"root:x:0:\n"}
HOST = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/ld.so.cache", "etc/alternatives")
LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
SETTINGS = """\
[containers]
default_ulimits = [{ulimits}]
volumes = [{volumes}]
[engine]
runtime = "{runtime}"
[network]
network_backend = "{network}"
network_config_dir = "{root}/networks"
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{root}/graph"
runroot = "{root}/run"
"""


@contextmanager
def podman_engine() -> Iterator[None]:
    """Have ``podman`` use an engine with the image ``IMAGE``; nothing of it is left."""
    # pytest's own directories are too deep for the paths of podman's sockets.
    root = Path(tempfile.mkdtemp(prefix="agentrl-podman-"))
    settings = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
    before = {name: os.environ.get(name) for name in settings}
    _write_settings(root)
    os.environ.update({name: str(root / file) for name, file in settings.items()})
    try:
        _write_layer(root / "layer.tar")
        change = f"--change=ENV PATH={SEARCH}"
        podman("import", "--quiet", change, str(root / "layer.tar"), IMAGE)
        podman("tag", IMAGE, *OTHER_NAMES)
        yield
    finally:
        left = podman("ps", "--all", "--quiet")
        committed = podman("images", "--quiet", "localhost/agentrl-prepared")
        podman("rm", "--all", "--force", "--time", "0")
        # Only podman can unmount its storage.
        podman("rmi", "--all", "--force")
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(root, ignore_errors=True)
        assert not left, "containers were left"
        assert not committed, "committed images were left"


@functools.cache
def find_obstacle() -> str | None:
    """Return the reason for which podman runs no container here; None if it does."""
    if os.geteuid() != 0:
        return "its image of the host's programs needs root"
    if shutil.which("podman") is None:
        return "podman is not installed"
    try:
        with podman_engine():
            podman("run", "--rm", "--init", "--network", "none", IMAGE, "true")
    except RuntimeError as error:
        return str(error)
    return None


def has_netavark() -> bool:
    """Return whether podman can make networks on which this machine has an address."""
    return any(Path(each, "podman", "netavark").exists() for each in ("/usr/lib", "/usr/libexec"))


def _write_settings(root: Path) -> None:
    # podman raises these by default, which root without CAP_SYS_RESOURCE may not. It has lowered
    # its own number of processes to 32768 by then.
    hard = {name: resource.getrlimit(each)[1] for name, each in LIMITS.items()}
    most = {name: 32768 if value < 0 else min(value, 32768) for name, value in hard.items()}
    mounted = ["/usr"] if PREFIX.is_relative_to("/usr") else ["/usr", str(PREFIX)]
    settings = SETTINGS.format(
        ulimits=", ".join(f'"{name}={value}:{value}"' for name, value in most.items()),
        volumes=", ".join(f'"{path}:{path}:ro"' for path in mounted),
        runtime=next((each for each in RUNTIMES if shutil.which(each)), RUNTIMES[0]),
        network="netavark" if has_netavark() else "cni",
        root=root,
    )
    (root / "containers.conf").write_text(settings)
    (root / "storage.conf").write_text(STORAGE.format(root=root))


def _write_layer(path: Path) -> None:
    with tarfile.open(path, "w") as layer:
        for name in DIRECTORIES:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            layer.addfile(entry)
        for name, text in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            layer.addfile(entry, BytesIO(text))
        for name in HOST:  # a link to below /usr is added as one
            if (Path("/") / name).exists():
                layer.add(Path("/") / name, name)


def podman(*words: str) -> str:
    """Run podman; raises RuntimeError with what it printed."""
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"podman {words[0]} printed: {done.stderr.strip()[-300:]}")
    return done.stdout
