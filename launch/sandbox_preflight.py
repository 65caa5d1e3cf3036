"""Find what keeps sandboxes of remote backends from starting: programs, keys, servers.

A finding is whether it is fatal, and the problem with its fix.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from conf.sections.sandbox import ApptainerSandboxConfig, E2bSandboxConfig

Finding = tuple[bool, str]
ENGINE_S = 10.0
"""Deadline of the answer of a container engine, or of a server."""
PODMAN_FACTS = (
    '{{.Host.Security.Rootless}} {{.Host.CgroupsVersion}} {{join .Host.CgroupControllers " "}}'
)
ENGINES = {
    "docker": (("version",), "start it, or set DOCKER_HOST"),
    "podman": (("info", "--format", PODMAN_FACTS), "`podman info` must work for this user"),
}
"""By program: the arguments by which an engine answers, and the fix if none does."""

APPTAINER_NEEDS = {
    "apptainer": "install Apptainer; its package without setuid is enough",
    "nsenter": "install util-linux",
}
NO_OVERLAY = {"nfs", "lustre", "gpfs", "panfs", "ecryptfs"}
"""Types of file systems (as ``stat`` names them) on which Apptainer writes no overlay."""

E2B_KEY = "E2B_API_KEY"
LISTING = "/v2/sandboxes?metadata=" + quote("agentrl_run=check")
"""A request that E2B and servers like it answer without doing anything; some want a filter."""


def check_e2b(config: E2bSandboxConfig) -> Iterator[Finding]:
    """Yield what is missing for E2B, or wrong with a server that speaks its API."""
    if importlib.util.find_spec("e2b") is None:
        yield True, "sandbox=e2b needs E2B's SDK: pip install 'e2b>=2.63,<3'"
    key = os.environ.get(E2B_KEY)
    if not key:
        yield True, f"sandbox=e2b needs an API key: set {E2B_KEY} in the environment"
    if config.api_url is None:
        return
    if config.sandbox_url is None:
        yield (
            False,
            f"sandbox.api_url={config.api_url} without sandbox.sandbox_url: each sandbox is looked "
            "for at a name of its own in the server's domain; set sandbox.sandbox_url if the "
            "server has one URL for all (ROCK, AgentENV)",
        )
    for name, url in (("api_url", config.api_url), ("sandbox_url", config.sandbox_url)):
        if url is not None and url.startswith("http://") and not _is_near(url):
            yield (
                False,
                f"sandbox.{name}={url} is not encrypted: whoever sees the traffic has the API key "
                "and what is in the sandboxes; use https, or a private network",
            )
    if key and (trouble := _ask(config.api_url, key)) is not None:
        yield True, f"sandbox.api_url={config.api_url}: {trouble}"


def _is_near(url: str) -> bool:
    """Return whether a URL's host is this machine or an address of a private network."""
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: the key is for this server alone."""

    def redirect_request(self, *of_request: object) -> None:
        return None


def _ask(url: str, key: str) -> str | None:
    """Return what is wrong with a server's answer, with the fix; None if it is E2B's."""
    request = urllib.request.Request(url + LISTING, headers={"X-API-Key": key})
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=ENGINE_S) as response:
            found = response.read(1 << 20).lstrip()[:1]
            return None if found == b"[" else "the answer is not a list of sandboxes, as E2B's is"
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return f"it refuses the key in {E2B_KEY} (HTTP {error.code})"
        if error.code in (404, 405):
            return f"it does not speak E2B's API (GET {LISTING}: HTTP {error.code})"
        return f"it answers with HTTP {error.code}"
    except OSError as error:  # URLError, a deadline
        return f"it does not answer: {getattr(error, 'reason', error)}; is the server running?"


def check_containers(kind: str) -> Iterator[Finding]:
    """Yield what keeps a docker or podman engine from running containers."""
    if shutil.which(kind) is None:
        yield True, f"sandbox={kind}, but `{kind}` is missing: install {kind}"
        return
    argv, fix = ENGINES[kind]
    try:
        done = subprocess.run([kind, *argv], capture_output=True, timeout=ENGINE_S)
        answer = done.stderr.decode(errors="replace").strip() if done.returncode else None
    except subprocess.TimeoutExpired:
        answer = f"nothing within {ENGINE_S:.0f} s"
    if answer is not None:
        yield True, f"sandbox={kind}, but no engine answers ({answer}): {fix}"
    elif kind == "podman":
        yield from _check_limits(done.stdout.decode().split())


def _check_limits(podman: list[str]) -> Iterator[Finding]:
    """Yield the limits that podman does not set for this user; takes ``PODMAN_FACTS``."""
    rootless, version, *controllers = podman
    if rootless != "true":
        return
    missing = ", ".join(sorted({"cpu", "memory", "pids"}.difference(controllers)))
    if version == "v1":
        yield (
            False,
            "sandbox=podman without root limits neither memory nor processes nor CPU time on "
            "control groups v1: use v2, or run as root",
        )
    elif missing:
        yield (
            True,
            f"sandbox=podman without root, and this user's control groups have no {missing}: "
            "delegate these to the user (systemd: Delegate= of user@.service), or run as root",
        )


def check_apptainer(
    config: ApptainerSandboxConfig, uid: int | None = None, cgroups: Path = Path("/sys/fs/cgroup")
) -> Iterator[Finding]:
    """Yield what keeps Apptainer from running instances for a user; None: this one."""
    for name, fix in APPTAINER_NEEDS.items():
        if shutil.which(name) is None:
            yield True, f"sandbox=apptainer, but `{name}` is missing: {fix}"
    if (os.geteuid() if uid is None else uid) != 0:
        if shutil.which("newuidmap") is None:
            yield (
                False,
                "`newuidmap` is missing, so only a setuid installation of Apptainer has users "
                "inside: install uidmap (Debian, Ubuntu) or shadow-utils",
            )
        yield from _check_apptainer_limits(config, cgroups)
    if config.images is not None and not Path(config.images).is_dir():
        yield True, f"sandbox.images={config.images} is no directory: see the key's comment"
    if "://" not in config.image and not Path(config.image).exists():
        yield True, f"sandbox.image={config.image} does not exist: `apptainer pull` makes SIF files"
    yield from _check_directory(config.directory or tempfile.gettempdir())


def _check_apptainer_limits(config: ApptainerSandboxConfig, cgroups: Path) -> Iterator[Finding]:
    """Yield what a user without root lacks for the limits that are set."""
    values = {"memory_mb": config.memory_mb, "processes": config.processes, "cpus": config.cpus}
    limited = [name for name, value in values.items() if value is not None]
    if not limited:
        yield (
            False,
            "sandbox=apptainer without sandbox.memory_mb, processes and cpus: a sandbox may take "
            "all that this job has",
        )
        return
    lacks = [
        name for name in ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR") if name not in os.environ
    ]
    if not (cgroups / "cgroup.controllers").exists():
        lacks.insert(0, "control groups v2")
    if lacks:
        yield (
            True,
            f"sandbox.{limited[0]} is set, and without root Apptainer sets limits only in a "
            f"systemd session on control groups v2; missing: {', '.join(lacks)}. Set "
            f"{' '.join(f'sandbox.{name}=null' for name in limited)}, and limit the job instead",
        )


def _check_directory(path: str) -> Iterator[Finding]:
    """Yield what is wrong with the directory for what sandboxes write."""
    done = subprocess.run(
        ["stat", "--file-system", "--format", "%T", path], capture_output=True, text=True
    )
    kind = done.stdout.strip()
    if done.returncode:
        yield True, f"sandbox.directory={path}: {done.stderr.strip()}"
    elif kind in NO_OVERLAY:
        yield (
            True,
            f"sandboxes would write to {path}, which is {kind}: set sandbox.directory to a "
            "directory on a disk of this machine",
        )
