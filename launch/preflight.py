"""What would stop a run on this machine before it starts, each with its mend.

Nothing is started or written: programs are looked for, paths looked at, ports tried.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.schema import Config, EmbeddedEngine, LocalModel


class PreflightError(AgentrlError):
    """A check that the run needs failed before anything was started."""

    exit_code = ExitCode.PREFLIGHT


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong here, and the mend."""

    fatal: bool
    """The run cannot start; otherwise it starts, with less than was asked."""
    message: str


def preflight(config: Config, run_dir: Path) -> list[Problem]:
    """Return every problem that a run of ``config`` in ``run_dir`` would meet."""
    return [*_programs(config), *_paths(config, run_dir), *_ports(config)]


def refuse_fatal(problems: Iterable[Problem]) -> None:
    """Raise PreflightError with every fatal problem, if there is one."""
    fatal = [problem.message for problem in problems if problem.fatal]
    if fatal:
        raise PreflightError("\n".join(fatal))


def existing(path: Path) -> Path:
    """Return ``path`` or its nearest ancestor that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _programs(config: Config) -> Iterator[Problem]:
    if shutil.which("git") is None:
        yield Problem(
            True, "git is missing, and tasks are git repositories: install it (apt-get install git)"
        )
    isolation = config.sandbox.isolation
    bubblewrap, unshare = shutil.which("bwrap"), shutil.which("unshare")
    install = "install it (apt-get install bubblewrap)"
    if isolation == "bubblewrap" and bubblewrap is None:
        yield Problem(
            True,
            f"sandbox.isolation=bubblewrap, but bubblewrap is missing: {install}, "
            "or set sandbox.isolation=auto",
        )
    if isolation == "unshare" and unshare is None:
        yield Problem(
            True,
            "sandbox.isolation=unshare, but `unshare` is missing: install util-linux, "
            "or set sandbox.isolation=auto",
        )
    if isolation == "auto" and bubblewrap is None:
        weaker = "with `unshare` alone" if unshare else "as plain processes of this user"
        yield Problem(False, f"bubblewrap is missing, so sandboxes run {weaker}: {install}")
    if isolation == "none":
        yield Problem(
            False,
            "sandbox.isolation=none: the agent's commands run as plain processes of this user",
        )


def _paths(config: Config, run_dir: Path) -> Iterator[Problem]:
    parent = existing(run_dir)
    if not parent.is_dir():
        yield Problem(True, f"run.dir={run_dir} cannot be made: {parent} is no directory")
    elif not os.access(parent, os.W_OK | os.X_OK):
        yield Problem(
            True,
            f"run.dir={run_dir} cannot be written: make {parent} writable "
            "or choose another run.dir",
        )
    for key in ("path", "tokenizer"):
        path = getattr(config.model, key)
        if path is not None and not path.is_dir():
            yield Problem(True, f"model.{key}={path} is no directory")
    if isinstance(config.model, LocalModel) and config.model.path is None:
        yield Problem(True, "model.path=null: a run needs the starting weights; set model.path")


def _ports(config: Config) -> Iterator[Problem]:
    listeners = [("gateway", config.gateway.host, config.gateway.port)]
    if isinstance(config.engine, EmbeddedEngine):
        listeners.append(("engine", config.engine.host, config.engine.port))
    for section, host, port in listeners:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
            try:
                probe.bind((host, port))
            except OSError as error:
                yield Problem(
                    True,
                    f"{section}.host={host} {section}.port={port} cannot be listened on "
                    f"({error.strerror}): choose another, or {section}.port=0 for any free port",
                )
