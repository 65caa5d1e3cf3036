"""Ways out of a sandbox that a policy may try, each on every isolation that is to stop it."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.testing.host_processes import unique_number, wait_gone
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from runners.sandboxes.local.probe import UNCERTAIN_KILL
from tests.fakes.sandbox_backends import local_settings, skip_without
from tests.runners.sandboxes.conftest import Opener

pytestmark = pytest.mark.integration

NESTED = """
import asyncio, subprocess, sys
from pathlib import Path
from runners.sandboxes.contract import SandboxSpec
from runners.sandboxes.local.backend import LocalBackend
from tests.fakes.sandbox_backends import local_settings

root, isolation = Path(sys.argv[1]), sys.argv[2]
TRY = '(echo > "$d/new") 2>&1; done'
tree, source = root / "a tree", root / "source"
inner = tree / "in ner"
for directory in (inner, source):
    directory.mkdir(parents=True)
for place in (inner, "/usr/local/share"):
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
(inner / "file").write_text("host")

async def main():
    backend = LocalBackend(local_settings(isolation=isolation), root / "driver")
    sandbox = await backend.create(SandboxSpec("one", source, "none", mounts={"/opt/tree": tree}))
    script = "cat '/opt/tree/in ner/file'; for d in '/opt/tree/in ner' /usr/local/share; do "
    result = await sandbox.run(["bash", "-c", script + TRY], deadline_s=60)
    print(result.stdout.decode(), *inner.iterdir(), *Path("/usr/local/share").iterdir())
    await backend.close()

asyncio.run(main())
"""
"""It mounts in its own mount namespace only."""


@pytest.mark.parametrize("isolation", ["bubblewrap", "unshare"])
def test_a_mount_below_a_read_only_one_cannot_be_written(tmp_path: Path, isolation: str) -> None:
    skip_without(isolation)
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    argv = [*own, sys.executable, "-c", NESTED, str(tmp_path), isolation]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("host")
    assert done.stdout.count("Read-only file system") == 2, done.stdout
    assert "/new" not in done.stdout.splitlines()[-1]


FAMILIES = """
import socket
for family in range(64):
    for protocol in (0, 16):  # NETLINK_ROUTE and NETLINK_GENERIC
        try:
            socket.socket(family, socket.SOCK_DGRAM, protocol).close()
        except OSError as error:
            if error.errno == 97:
                continue
        print(family, protocol)
"""


async def test_only_the_usual_socket_families_can_be_made(opened: Opener) -> None:
    async with opened() as sandbox:
        result = await sandbox.run(["python", "-c", FAMILIES], deadline_s=60)
    named = {tuple(map(int, line.split())) for line in result.stdout.splitlines()}
    assert {family for family, _ in named} <= {1, 2, 10, 16}, "AF_VSOCK (40) would lead outside"
    assert {(1, 0), (2, 0), (16, 0)} <= named, "what agents need"
    assert (16, 16) not in named


SYSTEM_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": dict(io_uring_setup=425, bpf=321, userfaultfd=323, keyctl=250, ptrace=101),
           "aarch64": dict(io_uring_setup=425, bpf=280, userfaultfd=282, keyctl=219, ptrace=117)}
for name, number in numbers[os.uname().machine].items():
    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1
    print(name, ctypes.get_errno())
"""


async def test_system_calls_that_nothing_needs_are_refused(opened: Opener) -> None:
    async with opened() as sandbox:
        result = await sandbox.run(["python", "-c", SYSTEM_CALLS], deadline_s=60)
    refused = dict(line.split() for line in result.stdout.decode().splitlines())
    assert refused.pop("io_uring_setup") == "38"
    assert refused == dict.fromkeys(("bpf", "userfaultfd", "keyctl", "ptrace"), "1")


TAKE = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
librt = ctypes.CDLL("librt.so.1", use_errno=True)
most = int(sys.argv[1])

def take(start):
    taken = 0
    while taken < most and start(taken) >= 0:
        taken += 1
    return taken

fd = libc.inotify_init()
watches = 0
if most > 1:
    import os
    for n in range(20000):
        os.mkdir(f"/tmp/{n}")
        if libc.inotify_add_watch(fd, f"/tmp/{n}".encode(), 2) < 0:
            break
        watches += 1
instances = 1 + take(lambda n: libc.inotify_init())
queues = take(lambda n: librt.mq_open(f"/q{n}".encode(), 0o102, 0o600, None))
memory = take(lambda n: libc.shmget(0, ctypes.c_size_t(16 << 20), 0o1600)) * 16
print(instances, watches, queues, memory, flush=True)
if most > 1:
    open("filled", "w").close()
    time.sleep(60)
"""
"""Take up to a number of each thing that the kernel counts per user, and hold them."""


async def test_a_sandbox_that_takes_all_it_can_leaves_others_and_the_host_theirs(
    opened: Opener,
) -> None:
    async with opened("greedy") as greedy, opened("other") as other:
        for sandbox in (greedy, other):
            (sandbox.workspace / "take.py").write_text(TAKE)
        filling = asyncio.create_task(greedy.run(["python", "take.py", "1000"], deadline_s=600))
        while not (greedy.workspace / "filled").exists():
            assert not filling.done(), filling.result()
            await asyncio.sleep(0.05)
        result = await other.run(["python", "take.py", "1"], deadline_s=60)
        assert result.stdout.split() == [b"2", b"0", b"1", b"16"], result.stderr
        here = [sys.executable, "-c", TAKE, "1"]
        done = await asyncio.to_thread(subprocess.run, here, capture_output=True)
        assert done.stdout.split()[:1] == [b"2"], done.stderr
        filling.cancel()
        await asyncio.wait([filling])


SEARCH = """
for process in /proc/[0-9]*; do
    [ $process = /proc/$$ ] && continue
    for file in environ mem maps; do
        head -c 1 $process/$file >/dev/null 2>&1 && echo "$process/$file can be read"
    done
    readlink $process/fd/[0-9]* && echo "$process/fd can be read"
    (: >> $process/mem) 2>/dev/null && echo "$process/mem can be written"
done
"""


async def test_a_key_that_only_the_agent_program_has_is_out_of_its_commands_reach(
    opened: Opener,
) -> None:
    """The agent is a Python program, as the native one; its command has the same user."""
    key = secrets.token_hex(16)
    program = f"import os, subprocess\nkey = os.environ.pop('KEY')\nSEARCH = {SEARCH!r}\n" + (
        "done = subprocess.run(['bash', '-c', SEARCH + 'env'], capture_output=True, text=True)\n"
        "print(done.stdout)\n"
    )
    async with opened() as sandbox:
        (sandbox.workspace / "agent.py").write_text(program)
        argv = ["python", "-I", "-S", "agent.py"]
        result = await sandbox.run(argv, deadline_s=60, env={"KEY": key})
    assert b"PATH=" in result.stdout, result.stderr
    assert b"can be" not in result.stdout, "of the launcher, and of the agent"
    assert key.encode() not in result.stdout


async def test_no_signal_of_a_command_ends_the_launcher(opened: Opener) -> None:
    async with opened() as sandbox:
        script = "for n in $(seq 64); do kill -$n 1; done; sleep 1; echo end"
        result = await sandbox.run(["bash", "-c", script], deadline_s=60)
    assert result.stdout == b"end\n"


@pytest.mark.parametrize("isolation", ["bubblewrap", "unshare", "none"])
async def test_commands_come_after_the_driver(tmp_path: Path, isolation: str) -> None:
    skip_without(isolation)
    (source := tmp_path / "source").mkdir()
    settings = local_settings(isolation=isolation)
    backend = await asyncio.to_thread(LocalBackend, settings, tmp_path / "root")
    sandbox = await backend.create(SandboxSpec("one", source, "none"))
    script = "nice; cat /proc/self/oom_score_adj"
    result = await sandbox.run(["bash", "-c", script], deadline_s=60)
    await backend.close()
    assert result.stdout.split() == [b"%d" % (os.nice(0) + 10), b"1000"]


async def test_the_launchers_copy_of_the_environment_cannot_be_read(opened: Opener) -> None:
    async with opened() as sandbox:
        result = await sandbox.run(["bash", "-c", SEARCH + "echo end"], deadline_s=60)
    assert result.stdout == b"end\n"


async def test_without_namespaces_no_session_or_empty_environment_escapes(tmp_path: Path) -> None:
    """Each process is a child of the test's own sandbox and does nothing but sleep."""
    (source := tmp_path / "source").mkdir()
    backend = await asyncio.to_thread(
        LocalBackend, local_settings(isolation="none"), tmp_path / "root"
    )
    assert backend.guarantees()["complete kill"] == UNCERTAIN_KILL
    sandbox = await backend.create(SandboxSpec("one", source, "none"))
    name = unique_number()
    daemon = f"env -i setsid sh -c 'env -i setsid sleep {name} & env -i sleep {name} & touch begun'"
    for rest, deadline_s in (("true", 60.0), ("sleep 300", 0.5)):
        script = f"({daemon} &); while [ ! -e begun ]; do sleep 0.01; done; rm begun; {rest}"
        result = await sandbox.run(["bash", "-c", script], deadline_s=deadline_s)
        assert result.timed_out == (rest != "true"), result
        assert await wait_gone(name)
    await backend.close()


async def test_without_namespaces_a_killed_launcher_takes_the_tagged_along(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir()
    backend = await asyncio.to_thread(
        LocalBackend, local_settings(isolation="none"), tmp_path / "root"
    )
    sandbox = await backend.create(SandboxSpec("one", source, "none"))
    name = unique_number()
    script = f"setsid -f sleep {name}; kill -9 $PPID"
    with pytest.raises(Exception, match="killed from outside"):
        await sandbox.run(["bash", "-c", script], deadline_s=60)
    assert await wait_gone(name)
    await backend.close()


def test_what_is_not_kept_is_said(backend: LocalBackend) -> None:
    text = " ".join(backend.guarantees())
    assert re.search("sockets past the network namespace.*launcher's memory", text)
