"""Completion in real shells: what a TAB offers, and what it does to the line."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.complete_line import complete_line, print_completions, read_commands
from cli.complete_words import COMPLETERS, VARIABLE
from cli.completion import SCRIPTS
from runners.campaigns.evaluation.benchmarks import BENCHMARKS
from runners.records.store.run_store import RunStore
from tests.cli.conftest import REPOSITORY, Agentrl
from tests.fakes.records import CONFIG, a_rollout, example_run

FLAGS = {"bash": "--norc --noprofile -i", "zsh": "-f -i", "fish": "-N -i"}
"""Of an interactive shell that reads no configuration."""


@pytest.fixture
def offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[[str], list[str]]:
    """Return the completions of a line, as a shell gets them."""
    monkeypatch.chdir(tmp_path)

    def complete(line: str) -> list[str]:
        print_completions(line)
        lines = capsysbinary.readouterr().out.decode().split("\n")
        return [each.partition("\t")[0] for each in lines if each]

    return complete


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
        ("agentrl check eval s", ["swebench"]),
        ("agentrl plugins ru", ["run", "run."]),
        ("agentrl --debug task", ["tasks"]),
        ("agentrl tasks list tasks.jsonl --state re", ["ready", "refused"]),
        ("agentrl rollouts runs/a --only=un", ["--only=unsolved"]),
        ("agentrl rollouts runs/a --only ru", ["running"]),
        ("agentrl dump-trajectories runs/a --only ru", []),
        ("agentrl rollouts runs/a --sort -t", ["-task", "-turns", "-tokens"]),
        ("agentrl rollouts --only solved runs/a --kind w", ["wipe"]),
        ("agentrl regrade runs/a --only grader.", ["grader.error", "grader.timeout"]),
        ("agentrl dump-trajectories runs/a --format html,p", ["html,parquet"]),
        ("agentrl dump-trajectories runs/a --out ", []),
        ("agentrl completion z", ["zsh"]),
        ("agentrl gateway --once -- python ", []),
        ("agentrl stop runs/a runs", []),
        ("agentrl compare runs/a ", ["runs/b"]),
        ("agentrl what-if runs/a reward.turn_p", ["reward.turn_penalty="]),
        ("agentrl report ", ["runs/b", "runs/a"]),
        ("agentrl run --resume ", ["runs/b", "runs/a"]),
        ("agentrl run nothing", []),
    ],
)  # fmt: skip
def test_a_tab_offers(
    line: str, found: list[str], offered: Callable[[str], list[str]], tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text("{}")
    assert offered(line) == found


@pytest.mark.parametrize(
    "command",
    [
        *("watch", "status", "view", "stop", "report", "compare", "rollouts", "what-if", "replay"),
        *("regrade", "dump-trajectories", "run --resume", "run --replay-schedule"),
        *("eval bugfix --resume", "check --against"),
    ],
)
def test_every_command_that_takes_a_run_completes_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert [word for word, _ in complete_line(f"agentrl {command} ")] == ["runs/mine/"]


def words(line: str) -> list[str]:
    return [word for word, _ in complete_line(line)]


def test_ids_of_rollouts_and_tasks_are_those_of_the_run_that_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    example_run(run).close()
    assert words(f"agentrl rollouts {run} train-000001-00-0") == [
        f"train-000001-00-0{member}" for member in range(4)
    ]
    assert words(f"agentrl replay --rollout train-000001-00-01 {run} ta") == ["task=", "task."]
    assert words(f"agentrl replay {run} --rollout train-000001-00-01") == ["train-000001-00-01"]
    assert words(f"agentrl rollouts {run} --task s") == ["sum-of-squares-001"]
    assert words("agentrl rollouts --task s") == words(f"agentrl rollouts {tmp_path} t") == []


def test_many_ids_are_offered_part_by_part(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for number in range(3 * 60):
            record = a_rollout(
                f"train-{1 + number // 60:06}-{number % 60:03}-00", task_id=f"set/{number}"
            )
            store.put_rollout(record)
    line = f"agentrl rollouts {tmp_path / 'run'} "
    assert words(line) == ["train-"]
    assert words(f"{line}train-") == [f"train-00000{step}-" for step in (1, 2, 3)]
    assert len(words(f"{line}train-000002-")) == 60
    assert words(f"{line}--task ") == ["set/"]


def test_a_word_that_a_shell_would_run_is_not_offered(
    offered: Callable[[str], list[str]], tmp_path: Path
) -> None:
    ids = [
        "$(touch x)",
        "a;b",
        "`c`",
        "d e",
        "f\nagentrl",
        "\x1b[2J",
        "g\th",
        "good::test[0]",
        "ok",
    ]
    with RunStore.create(tmp_path / "run", CONFIG) as store:
        for number, task in enumerate(ids):
            store.put_rollout(a_rollout(f"train-000001-000-{number:02}", task_id=task))
    assert words(f"agentrl rollouts {tmp_path / 'run'} --task ") == sorted(ids)
    assert offered(f"agentrl rollouts {tmp_path / 'run'} --task ") == ["ok"]


@pytest.mark.parametrize("line", ["", "agentrl", "agentrl 'x y", 'agentrl run "', "a b \\"])
def test_no_line_is_an_error(line: str, offered: Callable[[str], list[str]]) -> None:
    offered(line)


def test_every_value_is_completed_or_known_to_be_a_path_or_free() -> None:
    free = {
        "ADAPTER",
        "DIR",
        "FILE",
        "GLOB",
        "N",
        "N|N-M",
        "OUT",
        "PATH",
        "TURN",
        "URL",
        "WORDS",
        "X",
    }

    def values(command: dict[str, Any]) -> Iterator[str]:
        yield from command["arguments"]
        yield from (metavar for metavar, _ in command["options"].values() if metavar is not None)
        for each in command["commands"].values():
            yield from values(each)

    unknown = {
        metavar
        for metavar in values(read_commands())
        if metavar not in {*free, *COMPLETERS} and not metavar.startswith("[")
    }
    assert not unknown
    assert {*BENCHMARKS} == {word for word in words("agentrl check eval ") if "=" not in word}


def test_a_tab_imports_no_library(agentrl_process: Agentrl) -> None:
    line = {VARIABLE: "agentrl rollouts runs/a train-"}
    assert agentrl_process(**line).code == 0  # the first one makes the table of commands
    done = agentrl_process(options=("-X", "importtime"), **line)
    modules = {
        line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()
    }
    assert {"cli", "json"} <= modules
    assert done.code == 0
    heavy = {"typer", "rich", "click", "asyncio", "pydantic", "torch", "hydra", "numpy"}
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
    """An interactive shell on a terminal of its own."""

    def __init__(self, name: str, programs: Path, directory: Path) -> None:
        self._end, inner = pty.openpty()
        self._shown = b""
        self._process = subprocess.Popen(
            ["setsid", "--ctty", name, *FLAGS[name].split()],
            stdin=inner, stdout=inner, stderr=inner, cwd=directory,
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
            self._drain()
            if file.exists() and (text := file.read_text()).endswith("\n"):
                return text.strip()
        raise AssertionError(f"{file.name} was not written: {self._shown!r}")

    def wait_for(self, text: str, deadline_s: float = 60) -> None:
        """Wait until the terminal shows a text, from now on."""
        end, self._shown = time.monotonic() + deadline_s, b""
        while text.encode() not in self._shown:
            assert time.monotonic() < end, self._shown
            self._drain()

    def _drain(self) -> None:
        if select.select([self._end], [], [], 0.1)[0]:
            self._shown += os.read(self._end, 65536)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._end)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "added", "more"),
    [
        ("run engine=sglang_", "launch", ""),
        ("run trainer.learning", "_rate=", "1"),
        ("report runs/onl", "y", ""),
        ("rollouts runs/only --only=un", "solved", ""),
        ("rollouts runs/only tr", "ain-000001-00-00", ""),
    ],
)
def test_a_real_shell_completes_the_line(
    name: str, typed: str, added: str, more: str, programs: Path, tmp_path: Path
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    with RunStore.create(tmp_path / "runs" / "only", CONFIG) as store:
        store.put_rollout(a_rollout())
    (tmp_path / "script").write_text(SCRIPTS[name])
    # the program itself writes what the shell gave it, once completion is done
    start = "autoload -Uz compinit && compinit -u && " if name == "zsh" else ""
    shell = Shell(name, programs, tmp_path)
    try:
        shell.send(f"{start}source ./script && echo ready > ready\n")
        shell.read_until(tmp_path / "ready")
        # Words of the line go into a file: the command is a comment to the shell's own echo.
        shell.send(f"agentrl {typed}\t")
        shell.wait_for(added)
        shell.send(more)
        shell.send("\x01echo \x05 > line\n")
        assert shell.read_until(tmp_path / "line") == f"agentrl {typed}{added}{more}"
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
