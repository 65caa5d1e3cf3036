"""Check that a run can start on this machine; every problem names its fix.

Nothing is started or written: the checks look for programs and paths, and try ports.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conf.errors import AgentrlError, ExitCode
from conf.programs import PROGRAM_NAMES, command_directory, program_override, program_path
from conf.schema import Config
from conf.sections.cluster_model import TableModel
from conf.sections.engine import EmbeddedEngineConfig, SglangLaunchEngineConfig
from conf.sections.harness import (
    PROMPT_TOKENS,
    CommandHarnessConfig,
    CustomHarnessConfig,
    NativeHarnessConfig,
)
from conf.sections.model import TinyModelConfig
from conf.sections.sandbox import (
    ApptainerSandboxConfig,
    ContainerSandboxConfig,
    E2bSandboxConfig,
    LocalSandboxConfig,
)
from conf.sections.section import ENGINE_KEY
from conf.warnings import find_warnings
from launch.checkpoint_config import compare_checkpoint
from launch.sandbox_preflight import check_apptainer, check_containers, check_e2b
from launch.served_policies import find_lost_output_layer

PORT_GRACE_S = 5.0
"""Seconds until a port in use is a problem: the services of a run that was just killed end by
themselves, and free their ports then.
"""
PORT_POLL_S = 0.1


class PreflightError(AgentrlError):
    """A check that the run needs failed before anything was started."""

    exit_code = ExitCode.PREFLIGHT


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that a run would meet on this machine."""

    fatal: bool
    """True if the run cannot start; otherwise it is only a warning."""
    message: str
    """The problem and its fix."""


def find_problems(
    config: Config,
    run_dir: Path,
    *,
    trains: bool = True,
    uses_policy: bool = True,
    port_grace_s: float = PORT_GRACE_S,
) -> list[Problem]:
    """Return every problem that a run of ``config`` in ``run_dir`` would meet.

    ``uses_policy``: False for a check of tasks, which has no agent, engine or gateway.
    """
    if not uses_policy:
        return [*_check_programs(config), *_check_paths(config, run_dir, trains)]
    return [
        *_check_programs(config),
        *_check_harness(config),
        *_check_engine(config),
        *_check_paths(config, run_dir, trains),
        *_check_architecture(config),
        *_check_ports(config, port_grace_s),
        *(Problem(False, caution) for caution in find_warnings(config) if trains),
    ]


def refuse_fatal(problems: Iterable[Problem]) -> None:
    """Raise PreflightError with every fatal problem, if there is one."""
    fatal = [problem.message for problem in problems if problem.fatal]
    if fatal:
        raise PreflightError("\n".join(fatal))


def nearest_existing(path: Path) -> Path:
    """Return ``path`` or its nearest ancestor that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _check_programs(config: Config) -> Iterator[Problem]:
    if shutil.which("git") is None:
        yield Problem(
            True, "git is missing, and tasks are git repositories: install it (apt-get install git)"
        )
    match config.sandbox:
        case LocalSandboxConfig():
            yield from _check_isolation(config.sandbox.isolation)
            yield from _check_key(config.sandbox.isolation)
        case E2bSandboxConfig():
            yield from (Problem(*each) for each in check_e2b(config.sandbox))
        case ContainerSandboxConfig():
            yield from (Problem(*each) for each in check_containers(config.sandbox.kind))
        case ApptainerSandboxConfig():
            yield from (Problem(*each) for each in check_apptainer(config.sandbox))


def _check_isolation(isolation: str) -> Iterator[Problem]:
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


def _check_key(isolation: str) -> Iterator[Problem]:
    """Yield the problem that an agent's commands could read the engine's key; see ``LocalBackend``,
    which refuses the same where ``auto`` finds nothing stronger.
    """
    if isolation == "none" and os.environ.get(ENGINE_KEY):
        yield Problem(
            True,
            f"sandbox.isolation=none lets the agent's commands read {ENGINE_KEY} in the "
            "environment of this process: set sandbox.isolation=auto, or unset it if the engine "
            "wants no key",
        )


def _check_harness(config: Config) -> Iterator[Problem]:
    harness = config.harness
    if isinstance(harness, NativeHarnessConfig | CustomHarnessConfig):
        return
    if isinstance(harness, CommandHarnessConfig):
        directory = command_directory(harness)
        if harness.install is not None and not directory.is_dir():
            yield Problem(
                True,
                f"{harness.name} is not at {directory}: install it with `agentrl check …` and the "
                "same harness keys",
            )
        return
    program, own = program_path(harness), program_override(harness)
    if not program.exists():
        install = f"agentrl check harness={harness.kind} {own}".rstrip()
        yield Problem(
            True,
            f"{PROGRAM_NAMES[harness.kind]} {harness.version} is not at {program}: install it with "
            f"`{install}`",
        )
    elif not os.access(program, os.X_OK):
        yield Problem(True, f"{own or program} is not executable: chmod +x it, or set another")
    context, prompt = config.model.max_context_tokens, PROMPT_TOKENS[harness.kind]
    if context < prompt:
        yield Problem(
            False,
            f"model.max_context_tokens={context} is less than the first prompt of harness="
            f"{harness.kind} (about {prompt} tokens): no rollout could take a turn; choose a "
            "model with a longer context",
        )


def _check_engine(config: Config) -> Iterator[Problem]:
    engine = config.engine
    if not isinstance(engine, SglangLaunchEngineConfig):
        return
    if importlib.util.find_spec("sglang") is None:
        yield Problem(
            True, "engine=sglang_launch needs SGLang: pip install 'agentrl-campaigns[sglang]'"
        )
    path = config.model.path
    if isinstance(config.model, TinyModelConfig) and path is None:
        yield Problem(True, "engine=sglang_launch serves model.path, which is null: set it")
    elif path and (family := find_lost_output_layer(path / "config.json")) is not None:
        yield Problem(
            True,
            f"model.path={path}: its output layer is its embedding (tie_word_embeddings), and "
            f"SGLang's {family} has one of its own, which nothing would load, so it would sample "
            "noise: write the embedding once more as lm_head.weight, and set "
            "tie_word_embeddings=false in its config.json",
        )


def _check_paths(config: Config, run_dir: Path, trains: bool) -> Iterator[Problem]:
    parent = nearest_existing(run_dir)
    if not parent.is_dir():
        yield Problem(True, f"run.dir={run_dir} cannot be created: {parent} is not a directory")
    elif not os.access(parent, os.W_OK | os.X_OK):
        yield Problem(
            True,
            f"run.dir={run_dir} cannot be written: make {parent} writable "
            "or choose another run.dir",
        )
    for key in ("path", "tokenizer"):
        path = getattr(config.model, key)
        if path is not None and not path.is_dir():
            yield Problem(True, f"model.{key}={path} is not a directory")
    if trains and not isinstance(config.model, TinyModelConfig) and config.model.path is None:
        yield Problem(True, "model.path=null: a run needs the starting weights; set model.path")


def _check_architecture(config: Config) -> Iterator[Problem]:
    """Compare the model's architecture with its checkpoint."""
    model = config.model
    if not isinstance(model, TableModel) or model.path is None:
        return
    file = model.path / "config.json"
    if not file.is_file():
        yield Problem(True, f"model.path={model.path} has no config.json: is it a checkpoint?")
        return
    yield from (Problem(True, line) for line in compare_checkpoint(model.architecture, file))


def _check_ports(config: Config, grace_s: float) -> Iterator[Problem]:
    listeners = [("gateway", config.gateway.host, config.gateway.port)]
    if isinstance(config.engine, EmbeddedEngineConfig):
        listeners.append(("engine", config.engine.host, config.engine.port))
    ends = time.monotonic() + grace_s
    metrics = config.gateway.metrics_port
    if metrics and (error := _try_to_listen("127.0.0.1", metrics, ends)) is not None:
        yield Problem(
            True,
            f"gateway.metrics_port={metrics} cannot be listened on ({error.strerror}): choose "
            "another, or null",
        )
    for section, host, port in listeners:
        error = _try_to_listen(host, port, ends)
        if error is not None:
            yield Problem(
                True,
                f"{section}.host={host} {section}.port={port} cannot be listened on "
                f"({error.strerror}): choose another, or {section}.port=0 for any free port",
            )


def _try_to_listen(host: str, port: int, ends: float) -> OSError | None:
    """Return the error of listening there; a port in use is tried again until ``ends``."""
    while True:
        with socket.socket() as probe:
            # The servers set it too: without it, a port in TIME_WAIT would count as in use.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= ends:
                    return error
            else:
                return None
        time.sleep(PORT_POLL_S)
