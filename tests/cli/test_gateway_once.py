"""``agentrl gateway --once -- PROGRAM``: a program, its gateway, its trajectory."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copytree, rmtree

import psutil
import pytest

from agentrl.testing.completions import END, Completion
from agentrl.testing.scripted_engine import ScriptedEngine
from conf.errors import ExitCode
from runners.observe.export.jsonl import validate
from runners.records.record import RolloutRecord
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer
from tests.cli.conftest import ENVIRONMENT, Agentrl

AGENT = """
import json, os, sys, urllib.request
def ask(path, key, body):
    headers = {"x-api-key": key, "content-type": "application/json"}
    request = urllib.request.Request(path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "hi"}]}
chat = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
print(ask(chat, os.environ["OPENAI_API_KEY"], body)["choices"][0]["message"]["content"])
body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "other"}]}
messages = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
ask(messages, os.environ["ANTHROPIC_API_KEY"], body)
open("environment.json", "w").write(json.dumps(dict(os.environ)))
sys.exit(3)
"""
STUBBORN = """
import signal, subprocess, sys, time
def note(number, frame):
    with open("signals", "a") as file:
        print(signal.Signals(number).name, file=file)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
child = subprocess.Popen(["sleep", "600"], start_new_session=True, stderr=subprocess.DEVNULL)
with open("child", "w") as file:
    print(child.pid, file=file)
signal.pause()
time.sleep(0.5)  # for a second signal, which must not come
while sys.argv[1:] == ["deaf"]:
    signal.pause()
sys.exit(7)
"""


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    """Serve an engine with one answer to everything."""
    async with ScriptedEngine() as engine:
        engine.always = Completion(f"hello{END}")
        yield engine


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer").mkdir()
    return write_tiny_tokenizer(tmp_path / "tokenizer")


def once(url: str, *more: str) -> list[str]:
    """Return the arguments before the program's."""
    served = ["engine=sglang", f"engine.url={url}", "run.dir=recorded"]
    return [
        "gateway",
        "--once",
        *served,
        "model.tokenizer=tokenizer",
        "model.renderer=qwen3",
        *more,
    ]


def kept(tmp_path: Path) -> RolloutRecord:
    with RunStore.open(tmp_path / "recorded", read_only=True) as store:
        (record,) = store.rollouts()
    return record


@pytest.mark.integration
@pytest.mark.usefixtures("tokenizer")
async def test_a_program_runs_against_the_engine_and_its_trajectory_is_shown(
    agentrl_process: Agentrl, engine: ScriptedEngine, tmp_path: Path
) -> None:
    words = once(engine.url, "--out", "record.jsonl")
    done = await asyncio.to_thread(
        agentrl_process, *words, "--", sys.executable, "-c", AGENT, AGENTRL_ENGINE_KEY="secret"
    )
    assert (done.code, done.stdout) == (3, "hello\n"), done.stderr
    for line in ("policy.finished", "wipe", "final", "false breaks: 1", "turn 1 of main: rewrite"):
        assert line in done.stderr
    assert validate(tmp_path / "record.jsonl") == []
    record = json.loads((tmp_path / "record.jsonl").read_text())
    assert [segment["kind"] for segment in record["segments"]] == ["wipe", "final"]
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert "secret" not in environment.values()
    assert not [name for name in environment if "ADMIN" in name]
    assert kept(tmp_path).turns == 2


@pytest.mark.integration
async def test_a_copy_of_a_run_has_its_words_where_its_tokenizer_is_not(
    agentrl_process: Agentrl, engine: ScriptedEngine, tokenizer: Path, tmp_path: Path
) -> None:
    program = ("--", sys.executable, "-c", AGENT)
    done = await asyncio.to_thread(agentrl_process, *once(engine.url), *program)
    assert done.code == 3, done.stderr
    copytree(tmp_path / "recorded", tmp_path / "copy")
    rmtree(tmp_path / "recorded")
    rmtree(tokenizer)
    dumped = await asyncio.to_thread(agentrl_process, "dump-trajectories", "copy", "--out", "out")
    assert dumped.code == 0, dumped.stderr
    (line,) = (tmp_path / "out" / "trajectories.jsonl").read_text().splitlines()
    assert "assistant" in json.loads(line)["raw_prompt"]["text"]


@pytest.mark.integration
@pytest.mark.usefixtures("tokenizer")
async def test_json_is_all_of_stdout_whatever_the_program_prints(
    agentrl_process: Agentrl, engine: ScriptedEngine
) -> None:
    program = ("sh", "-c", "echo --json from the program")
    done = await asyncio.to_thread(agentrl_process, *once(engine.url, "--json"), "--", *program)
    document = json.loads(done.stdout)
    assert (done.code, document["exit_code"]) == (0, 0)
    assert (document["outcome"], document["segments"]) == ("infra.harness", [])
    assert "--json from the program\n" in done.stderr


@pytest.mark.integration
@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize(
    ("terminal", "number", "more"),
    [(True, "SIGINT", ()), (False, "SIGTERM", ()), (False, "SIGTERM", ("deaf",))],
)
async def test_a_program_is_stopped_once_and_leaves_nothing(
    terminal: bool, number: str, more: tuple[str, ...], engine: ScriptedEngine, tmp_path: Path
) -> None:
    """By ctrl-C at a terminal, which sends it to both; by SIGTERM, which only we get. A second
    SIGTERM ends what has not listened to the first.
    """
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        # the new session's terminal is what it opens first
        [sys.executable, "-c", "import os, sys; os.open(sys.argv[1], os.O_RDWR);"
         "os.execv(sys.executable, [sys.executable, '-m', 'cli.main', *sys.argv[2:]])",
         os.ttyname(theirs) if terminal else os.devnull,
         *once(engine.url), "--", sys.executable, "-c", STUBBORN, *more],
        cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        child = tmp_path / "child"
        while not (child.is_file() and child.read_text().endswith("\n")):
            assert process.poll() is None, process.communicate()[1]
            await asyncio.sleep(0.05)
        left = psutil.Process(int(child.read_text()))
        if terminal:
            os.write(ours, b"\x03")
        else:
            process.send_signal(signal.SIGTERM)
        if more:
            while not (tmp_path / "signals").exists():
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGTERM)
        _, err = await asyncio.to_thread(process.communicate)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == (128 + signal.SIGKILL if more else 7), err
    assert (tmp_path / "signals").read_text().split() == [number]
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE
    assert kept(tmp_path).outcome.code == "cancelled.user"


@pytest.mark.usefixtures("tokenizer")
def test_no_program_is_started_for_an_engine_that_is_not_there(
    agentrl: Agentrl, tmp_path: Path, unused_tcp_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    done = agentrl(*once(url), "--", "touch", "started")
    assert done.code == ExitCode.SERVICE_GONE
    assert "Start the server that engine.url names" in done.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "recorded").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--once"], "name it after --"),
        (["--once", "--"], "name it after --"),
        (["--", "true"], "belong to --once"),
        (["--out", "x"], "belong to --once"),
        (["--once", "--", "no-such-program"], "no program 'no-such-program'"),
        (["--once", "--", "no-such-program", "--json"], "no program 'no-such-program'"),
        (["--once", "--out", "no/such/file", "--", "true"], "there is no directory"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], message: str, agentrl: Agentrl
) -> None:
    done = agentrl("gateway", *words)
    assert done.code == ExitCode.USAGE
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""


@pytest.mark.integration
@pytest.mark.usefixtures("tokenizer")
async def test_a_start_that_fails_leaves_the_directory_free_and_one_that_served_does_not(
    agentrl_process: Agentrl, engine: ScriptedEngine
) -> None:
    words = once(engine.url)
    program = ("--", sys.executable, "-c", AGENT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"gateway.port={taken.getsockname()[1]}"
        failed = await asyncio.to_thread(agentrl_process, *words, port, *program)
    assert failed.code == ExitCode.SERVICE_GONE
    assert "is in use" in failed.stderr
    again = await asyncio.to_thread(agentrl_process, *words, *program)
    assert again.code == 3, again.stderr
    third = await asyncio.to_thread(agentrl_process, *words, *program)
    assert third.code == ExitCode.USAGE
    assert "already holds a run" in third.stderr
