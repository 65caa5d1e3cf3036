"""The ``docker`` backend: containers of an engine that the ``docker`` program reaches.

A container's root keeps the rights that ``remote`` needs (users, owners, kill) and no others; the
agent has none, and ``no-new-privileges`` keeps it so.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from conf.sections.sandbox import DockerSandboxConfig
from runners.sandboxes.contract import SandboxError, SandboxSpec
from runners.sandboxes.remote.sandbox import RemoteSandbox, load_run_tag, make_transfer_directory
from runners.sandboxes.tree import remove_tree

RUN = "agentrl_run"
NAME = "agentrl_name"
"""Labels of a container."""
RIGHTS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID")
PULL_S = 600.0
"""To start a container whose image may have to be fetched first."""
CALL_S = 60.0
COPY_S = 300.0
GONE = "No such container"


def run_argv(config: DockerSandboxConfig, spec: SandboxSpec, mark: str) -> list[str]:
    """Return what starts a container that waits."""
    network = config.network if spec.network == "gateway" else "none"
    labels = {RUN: mark, NAME: spec.name}
    return [
        *("docker", "run", "--detach", "--init", "--name", container(mark, spec.name)),
        *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")),
        *("--network", network, "--user", "0", "--workdir", "/"),
        *("--memory", f"{config.memory_mb}m", "--memory-swap", f"{config.memory_mb}m"),
        *("--pids-limit", str(config.processes), "--cpus", f"{config.cpus:g}"),
        *("--security-opt", "no-new-privileges", "--cap-drop", "ALL"),
        *(word for right in RIGHTS for word in ("--cap-add", right)),
        *("--entrypoint", "sleep", spec.image or config.image, "infinity"),
    ]


def exec_argv(name: str, script: str, *, stdin: bool = False) -> list[str]:
    """Return what runs a script in a container as root."""
    reads = ["--interactive"] if stdin else []
    return ["docker", "exec", *reads, "--user", "0", name, "sh", "-c", script]


def list_argv(mark: str) -> list[str]:
    """Return what lists a run's containers: id and sandbox name, a line each."""
    line = f'{{{{.ID}}}} {{{{.Label "{NAME}"}}}}'
    return ["docker", "ps", "--all", "--filter", f"label={RUN}={mark}", "--format", line]


def remove_argv(name: str) -> list[str]:
    """Return what ends and removes a container."""
    return ["docker", "rm", "--force", "--volumes", name]


def container(mark: str, name: str) -> str:
    """Return the name of a sandbox's container."""
    return f"agentrl-{mark[:12]}-{name}"


class DockerBackend:
    """Containers of one run."""

    has_images = True

    def __init__(self, config: DockerSandboxConfig, root: Path) -> None:
        """``root`` keeps the run's mark, and what is on its way."""
        self._config = config
        self._mark = load_run_tag(root)
        self._scratch = make_transfer_directory(root)

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Start a container and bring the workspace there; see the contract."""
        sandbox = RemoteSandbox(spec, _Container(container(self._mark, spec.name)), self._scratch)
        try:
            await call(run_argv(self._config, spec, self._mark), deadline_s=PULL_S)
            await sandbox.open()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def guarantees(self) -> dict[str, str]:
        """Return what containers promise; nothing of it is probed."""
        network = self._config.network
        return {
            "isolation": "a container each, on the engine's kernel",
            "no network but the gateway": f"NOT KEPT for agents, unless docker's network {network} "
            "is --internal; graders have none",
            "complete kill": "by user id, and with the container",
            "no root rights inside": "a user of our own, with no-new-privileges",
            "processes": f"{self._config.processes} per sandbox",
            "memory": f"{self._config.memory_mb} MB per sandbox",
        }

    async def reap(self, left: Mapping[str, Mapping[str, Any]]) -> None:
        """Remove the containers of a dead driver of this run."""
        await self._remove(set(left))

    async def close(self) -> None:
        """Remove every container of this run."""
        await self._remove(None)
        await asyncio.to_thread(remove_tree, self._scratch)

    async def _remove(self, names: set[str] | None) -> None:
        said = await call(list_argv(self._mark), deadline_s=CALL_S)
        found = [line.partition(" ") for line in said.decode().splitlines()]
        left = [there for there, _, name in found if names is None or name in names]
        await asyncio.gather(*(_Container(there).end() for there in left))


class _Container:
    """A container as a machine."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def sh(self, script: str, *, deadline_s: float) -> bytes:
        """Run a script as root; see the contract."""
        return await call(exec_argv(self._name, script), deadline_s=deadline_s)

    async def put(self, path: str, content: bytes | Path) -> None:
        """Write a file as root; see the contract."""
        there = shlex.quote(path)
        script = f"mkdir -p {shlex.quote(path.rpartition('/')[0])} && cat > {there}"
        argv = exec_argv(self._name, script, stdin=True)
        if isinstance(content, bytes):
            await call(argv, stdin=content, deadline_s=COPY_S)
            return
        with content.open("rb") as file:
            await call(argv, stdin=file, deadline_s=COPY_S)

    async def get(self, path: str, target: Path) -> None:
        """Stream a file to the host; see the contract."""
        with target.open("wb") as file:
            argv = exec_argv(self._name, f"cat {shlex.quote(path)}")
            await call(argv, stdout=file, deadline_s=COPY_S)

    async def end(self) -> None:
        """Remove it; see the contract."""
        try:
            await call(remove_argv(self._name), deadline_s=CALL_S)
        except SandboxError as error:
            if GONE not in str(error):
                raise


async def call(
    argv: list[str],
    *,
    deadline_s: float,
    stdin: bytes | IO[bytes] = b"",
    stdout: IO[bytes] | None = None,
) -> bytes:
    """Run the ``docker`` program and return its output; raises SandboxError."""
    pipe = asyncio.subprocess.PIPE
    given = stdin if isinstance(stdin, bytes) else None
    what = " ".join(argv[:2])
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe if isinstance(stdin, bytes) else stdin,
            stdout=stdout or pipe,
            stderr=pipe,
        )
    except OSError as error:
        raise SandboxError(f"cannot run {argv[0]}: {error.strerror}; install docker") from error
    try:
        async with asyncio.timeout(deadline_s):
            out, err = await process.communicate(given)
    except TimeoutError as error:
        raise SandboxError(f"{what} took longer than {deadline_s:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    if process.returncode:
        said = err.decode(errors="replace").strip()[-500:] or "nothing"
        raise SandboxError(f"{what} ended with {process.returncode} and said: {said}")
    return out or b""
