"""Completion in real shells: what a TAB offers, and what it does to the line."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.completion import SCRIPTS
from tests.cli.conftest import REPOSITORY, Agentrl

ASK = {"_AGENTRL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


def offered(agentrl_process: Agentrl, line: str) -> list[str]:
    """Return the completions of a line, as typer's protocol gives them to a shell."""
    done = agentrl_process(**ASK, _TYPER_COMPLETE_ARGS=line)
    return [each.partition("\t")[0] for each in done.stdout.split("\n") if each]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("agentrl dump", ["dump-trajectories"]),
        ("agentrl run --dry", ["--dry-run"]),
        ("agentrl run engine=sg", ["engine=sglang", "engine=sglang_launch"]),
        ("agentrl run engine=embedded,sglang_", ["engine=embedded,sglang_launch"]),
        ("agentrl run engine.po", ["engine.port="]),
        ("agentrl run engine=vllm engine.", ["engine.model=", "engine.url="]),
        ("agentrl run trainer.kl.e", ["trainer.kl.estimator="]),
        ("agentrl run observe.dashboard=o", ["observe.dashboard=on", "observe.dashboard=off"]),
        ("agentrl run rollout.limits.ad", ["rollout.limits.adaptive="]),
        ("agentrl show trainer.learning_r", ["trainer.learning_rate=", "trainer.learning_rate"]),
        ("agentrl eval ", ["bugfix", "swebench"]),
        ("agentrl report ", ["runs/b", "runs/a"]),
        ("agentrl run --resume ", ["runs/b", "runs/a"]),
        ("agentrl run nothing", []),
    ],
)  # fmt: skip
def test_a_tab_offers(
    line: str, found: list[str], agentrl_process: Agentrl, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text("{}")
    assert offered(agentrl_process, line) == found


def test_a_tab_imports_nothing_heavy(agentrl_process: Agentrl) -> None:
    done = agentrl_process(
        options=("-X", "importtime"), **ASK, _TYPER_COMPLETE_ARGS="agentrl run engine=sg"
    )
    modules = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    heavy = {"torch", "hydra", "omegaconf", "numpy", "runners", "transformers"}
    assert not modules & heavy


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder with a program ``agentrl``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "agentrl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli.main "$@"\n')
    program.chmod(0o755)
    return folder


class Shell:
    """An interactive bash or zsh on a terminal of its own."""

    def __init__(self, name: str, programs: Path, directory: Path) -> None:
        flags = {"bash": "--norc --noprofile -i", "zsh": "-f -i"}
        self._end, inner = pty.openpty()
        self._process = subprocess.Popen(
            [name, *flags[name].split()],
            stdin=inner, stdout=inner, stderr=inner, cwd=directory, start_new_session=True,
            env={
                **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "vt100",
                "PYTHONPATH": str(REPOSITORY), "HOME": str(directory), "COLUMNS": "200",
            },
        )  # fmt: skip
        os.close(inner)

    def send(self, text: str) -> None:
        os.write(self._end, text.encode())

    def read_until(self, file: Path, deadline_s: float = 60) -> str:
        """Return the text of a file, once the shell has written it; the terminal is drained."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if select.select([self._end], [], [], 0.1)[0]:
                os.read(self._end, 65536)
            if file.exists() and (text := file.read_text()).endswith("\n"):
                return text.strip()
        raise AssertionError(f"{file.name} was not written")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._end)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("run engine=sglang_", "run engine=sglang_launch"),
        ("run trainer.learning", "run trainer.learning_rate=1"),
        ("report runs/onl", "report runs/only"),
    ],
)
def test_a_real_shell_completes_the_line(
    name: str, typed: str, line: str, programs: Path, tmp_path: Path
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    run = tmp_path / "runs" / "only"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({}))
    (tmp_path / "script").write_text(SCRIPTS[name])
    # the program itself writes what the shell gave it, once completion is done
    start = "autoload -Uz compinit && compinit -u && " if name == "zsh" else ""
    shell = Shell(name, programs, tmp_path)
    try:
        shell.send(f"{start}source ./script && echo ready > ready\n")
        shell.read_until(tmp_path / "ready")
        # Words of the line go into a file: the command is a comment to the shell's own echo.
        shell.send(f"agentrl {typed}\t")
        time.sleep(4)  # a TAB is answered when it is, and nothing says so
        shell.send("1" if line.endswith("=1") else "")
        shell.send("\x01echo \x05 > line\n")
        assert shell.read_until(tmp_path / "line") == f"agentrl {line}"
    finally:
        shell.close()


@pytest.mark.integration
def test_fish_completes_with_help(programs: Path, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    (tmp_path / "script").write_text(SCRIPTS["fish"])
    done = subprocess.run(
        ["fish", "-N", "-c", "source script; complete -C 'agentrl run trainer.learning_r'"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("trainer.learning_rate=\tLearning rate of Adam"), done
