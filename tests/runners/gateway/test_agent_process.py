"""The gateway serves the agent program in a local sandbox, and not the commands that it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.testing.scripted_engine import ScriptedEngine
from runners.records.tokenizer import write_tiny_tokenizer
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.services.ray_workers.relay import Relay
from runners.system.processes.agent_process import AgentProcess, can_tell
from tests.fakes.running_gateway import Gateway, running_gateway
from tests.fakes.sandbox_backends import local_settings, skip_without

pytestmark = pytest.mark.integration

CLIENT = """
import os, socket, sys
def ask(local=None, keep=[]):
    connection = socket.socket(int(sys.argv[1]))
    keep.append(connection)
    host = "127.0.0.1" if sys.argv[1] == "2" else "::ffff:127.0.0.1"
    if local:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind(local)
    connection.connect((host, 8080))
    key = os.environ["KEY"].encode()
    start = b"GET /v1/models HTTP/1.1\\r\\nhost: x\\r\\nx-api-key: "
    connection.sendall(start + key + b"\\r\\n\\r\\n")
    return connection.recv(65536).split()[1].decode(), connection
def turn():
    connection = ask()[1]
    start = b"POST /v1/messages HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 2\\r\\nx-api-key: "
    connection.sendall(start + os.environ["KEY"].encode() + b"\\r\\n\\r\\n{}")
    return connection.recv(65536).split()[1].decode()
"""
COMMAND = (
    CLIENT
    + """
print("command", ask()[0])
if sys.argv[1] == "2":
    print("same port", ask(("127.0.0.2", int(sys.argv[2])))[0])
    os.setsid()
    if os.fork() == 0:
        if os.fork() == 0:
            print("daemon", ask()[0], flush=True)
            os._exit(0)
        os._exit(0)
    os.wait()
"""
)
AGENT = (
    CLIENT
    + """
import subprocess
status, connection = ask()
print("agent", status, flush=True)
print("turn", turn(), flush=True)
port = str(connection.getsockname()[1])
subprocess.run(["python", "command.py", sys.argv[1], port])
print("agent again", ask()[0])
"""
)


@pytest.fixture(params=["bubblewrap", "unshare"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalBackend]:
    skip_without(request.param)
    if not can_tell():
        pytest.skip("this kernel does not list the children of a process")
    local = local_settings(isolation=request.param)
    backend = await asyncio.to_thread(LocalBackend, local, tmp_path / "root")
    yield backend
    await backend.close()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    tokenizer = write_tiny_tokenizer(tmp_path / "tokenizer")
    async with (
        ScriptedEngine() as engine,
        running_gateway(engine.url, tokenizer, tmp_path / "run") as gateway,
    ):
        yield gateway


@pytest.mark.parametrize("family", ["2", "10"])
async def test_only_the_agent_program_is_answered_though_its_commands_have_the_key(
    backend: LocalBackend,
    gateway: Gateway,
    tmp_path: Path,
    family: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with Claude Code and Codex, whose shell tool passes their environment on."""
    (source := tmp_path / "source").mkdir()
    (source / "agent.py").write_text(AGENT)
    (source / "command.py").write_text(COMMAND)
    _, key = await gateway.admin.create_session("s1")
    spec = SandboxSpec(
        "agent", source, "gateway", gateway_control=Path(gateway.control), session_key=key
    )
    sandbox = await backend.create(spec)
    for _ in range(2):  # the second command has a listener and an agent program of its own
        argv = ["python", "agent.py", family]
        result = await sandbox.run(argv, deadline_s=60, env={"KEY": key})
        lines = dict(line.rsplit(" ", 1) for line in result.stdout.decode().splitlines())
        assert (lines.pop("agent"), lines.pop("agent again")) == ("200", "200"), result
        assert lines.pop("turn") == "400", "an empty request, but the policy's commands may run"
        assert lines.pop("command") == "403"
        assert set(lines.values()) <= {"403"}, "neither a daemon nor one at the same port"
        assert len(lines) == (2 if family == "2" else 0), result
    await sandbox.close()
    assert sum("a command in its sandbox" in each.message for each in caplog.records) == 1


SCRIPT = """
import os, subprocess, sys
subprocess.run(["sh", "-c", "python $0 $@ & wait $!", *sys.argv[1:]])  # not its own child
"""
ASKING_AGENT = (
    CLIENT
    + """
import subprocess
print("agent", ask()[0], turn(), flush=True)
subprocess.run(["python", "command.py", sys.argv[1], "8081"])
if len(sys.argv) < 3:
    subprocess.run(["python", "agent.py", sys.argv[1], "started by the program"])
print("agent again", turn(), flush=True)
"""
)


async def test_a_program_that_a_script_starts_is_answered_and_nothing_that_asks_after_it(
    backend: LocalBackend, gateway: Gateway, tmp_path: Path
) -> None:
    """As with claude-agent-sdk, whose script starts Claude Code."""
    (source := tmp_path / "source").mkdir()
    (source / "script.py").write_text(SCRIPT)
    (source / "agent.py").write_text(ASKING_AGENT)
    (source / "command.py").write_text(COMMAND)
    _, key = await gateway.admin.create_session("s1")
    spec = SandboxSpec(
        "agent", source, "gateway", gateway_control=Path(gateway.control), session_key=key
    )
    sandbox = await backend.create(spec)
    argv = ["python", "script.py", "agent.py", "2"]
    result = await sandbox.run(argv, deadline_s=60, env={"KEY": key})
    refused = {"command 403", "same port 403", "daemon 403", "agent 403 403", "agent again 403"}
    printed = set(result.stdout.decode().splitlines())  # a fork prints its buffer again
    assert printed == {"agent 200 400", "agent again 400", *refused}, result
    # what an agent left in the workspace begins before its program does, the next time
    again = await sandbox.run(argv, deadline_s=60, env={"KEY": key})
    assert set(again.stdout.decode().split()) & {"200", "400"} == set(), again
    await sandbox.close()


RELAYED = (
    CLIENT
    + """
import subprocess
def show(name):
    try:
        print(name, ask()[0], flush=True)
    except (ConnectionError, IndexError):
        print(name, "aborted", flush=True)
show("agent")
if len(sys.argv) < 3:
    subprocess.run(["python", "agent.py", sys.argv[1], "started by the program"])
    show("again")
"""
)


async def test_on_a_node_without_the_gateway_the_first_program_that_asks_is_forwarded(
    backend: LocalBackend, gateway: Gateway, tmp_path: Path
) -> None:
    (source := tmp_path / "source").mkdir()
    (source / "script.py").write_text(SCRIPT)
    (source / "agent.py").write_text(RELAYED)
    _, key = await gateway.admin.create_session("s1")
    async with Relay([gateway.url], tmp_path).control() as control:
        spec = SandboxSpec("agent", source, "gateway", gateway_control=control, session_key=key)
        sandbox = await backend.create(spec)
        argv = ["python", "script.py", "agent.py", "2"]
        first = await sandbox.run(argv, deadline_s=60, env={"KEY": key})
        second = await sandbox.run(argv, deadline_s=60, env={"KEY": key})
        await sandbox.close()
    assert first.stdout.decode().splitlines() == ["agent 200", "agent aborted", "again 200"], first
    assert "200" not in second.stdout.decode(), second


async def test_a_launcher_that_ended_owns_nothing(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "1000")
    agent = AgentProcess(process.pid)
    assert not await agent.owns(("127.0.0.1", 1), ("127.0.0.1", 8080))
    process.kill()
    await process.wait()
    assert not await agent.owns(("127.0.0.1", 1), ("127.0.0.1", 8080))
    agent.close()
    agent.close()
    with pytest.raises(OSError, match="No such"):
        AgentProcess(process.pid)
