"""The contract of sandbox backends, checked on every backend that this machine can run."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from runners.sandboxes.contract import (
    CheckCommand,
    CheckOutput,
    CommandResult,
    Sandbox,
    SandboxError,
    SandboxSpec,
)
from tests.fakes.sandbox_backends import (
    NAMES,
    BackendUnderTest,
    find_processes,
    open_backend,
    unique_number,
    wait_gone,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
_names = (f"conformance-{number}" for number in itertools.count())
ARGUMENTS = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


BACKENDS = [
    pytest.param(name, marks=pytest.mark.slow if name == "docker_program" else ()) for name in NAMES
]
"""The stand-in is slow, forty seconds: each call of docker starts a program."""


@pytest_asyncio.fixture(params=BACKENDS, scope="module", loop_scope="module")
async def tested(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BackendUnderTest]:
    async with open_backend(request.param, tmp_path_factory.mktemp(request.param)) as tested:
        yield tested


@asynccontextmanager
async def open_sandbox(
    tested: BackendUnderTest, source: Path, **more: Any
) -> AsyncIterator[Sandbox]:
    sandbox = await tested.backend.create(SandboxSpec(next(_names), source, "none", **more))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def sh(sandbox: Sandbox, script: str, *, deadline_s: float = 30) -> CommandResult:
    return await sandbox.run(["bash", "-c", script], deadline_s=deadline_s)


async def test_a_workspace_is_a_private_copy(tested: BackendUnderTest, source: Path) -> None:
    async with open_sandbox(tested, source) as one, open_sandbox(tested, source) as other:
        result = await sh(one, "cat a.txt; ./run.sh; echo two > a.txt; echo new > b.txt; pwd")
        assert result.exit_code == 0, result
        assert result.stdout.decode().splitlines() == ["one", "ran", one.workdir]
        assert (await sh(other, "cat *.txt")).stdout == b"one\n"
        async with open_sandbox(tested, source) as later:  # from the same prepared files
            assert (await sh(later, "cat *.txt")).stdout == b"one\n"
        async with one.on_host() as workspace:
            assert (workspace / "a.txt").read_text() == "two\n"
            assert (workspace / "b.txt").read_text() == "new\n"
    assert (source / "a.txt").read_text() == "one\n"
    assert not (source / "b.txt").exists()


async def test_arguments_and_environment_arrive_unchanged(
    tested: BackendUnderTest, source: Path
) -> None:
    words = ["", "a b", "'\"$HOME`", "*", "-n", "é\n\\n", "x" * 50_000]
    env = {"KEY": "a 'b' $c", "EMPTY": "", "LINES_": "1\n2\n"}
    async with open_sandbox(tested, source) as sandbox:
        command = ["python", "-c", ARGUMENTS, *words]
        result = await sandbox.run(command, deadline_s=30, env=env, output_limit=1 << 20)
        argv, environment = json.loads(result.stdout)
        second = await sandbox.run(["env"], deadline_s=30)
    assert argv == words
    assert {name: environment[name] for name in env} == env
    assert b"KEY=" not in second.stdout


async def test_the_environment_of_the_host_is_not_inherited(
    tested: BackendUnderTest, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "secret")
    async with open_sandbox(tested, source) as sandbox:
        assert b"HOST_SECRET" not in (await sandbox.run(["env"], deadline_s=30)).stdout


async def test_input_larger_than_a_pipe_arrives_whole(
    tested: BackendUnderTest, source: Path
) -> None:
    data = os.urandom(1 << 20)
    async with open_sandbox(tested, source) as sandbox:
        command = ["bash", "-c", "cat; echo -n end"]
        result = await sandbox.run(command, deadline_s=30, stdin=data, output_limit=1 << 22)
        nothing = await sandbox.run(["cat"], deadline_s=30)
        ignored = await sandbox.run(["true"], deadline_s=30, stdin=data)
    assert result.stdout == data + b"end"
    assert (nothing.stdout, nothing.exit_code) == (b"", 0)
    assert ignored.exit_code == 0


async def test_a_flood_of_output_is_cut_in_the_middle(
    tested: BackendUnderTest, source: Path
) -> None:
    flood = "head -c 3000000 /dev/zero | tr '\\0' x"
    async with open_sandbox(tested, source) as sandbox:
        command = ["bash", "-c", f"echo first; {flood}; echo last; ({flood}) >&2"]
        result = await sandbox.run(command, deadline_s=30, output_limit=1000)
        whole = await sandbox.run(command, deadline_s=30, output_limit=4_000_000)
    assert result.stdout.startswith(b"first\nxxx")
    assert result.stdout.endswith(b"xxlast\n")
    assert b"[2999011 bytes left out]" in result.stdout
    assert result.exit_code == 0
    assert len(result.stdout) < 1100
    assert 1000 < len(result.stderr) < 1100
    assert (len(whole.stdout), len(whole.stderr)) == (3_000_011, 3_000_000)


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("exit 255", 255)],
)
async def test_exit_codes_and_signals_are_distinguished(
    tested: BackendUnderTest, source: Path, script: str, code: int
) -> None:
    async with open_sandbox(tested, source) as sandbox:
        result = await sh(sandbox, f"echo out; echo err >&2; {script}")
    assert (result.exit_code, result.timed_out) == (code, False)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


async def test_a_missing_command_has_exit_code_127(tested: BackendUnderTest, source: Path) -> None:
    async with open_sandbox(tested, source) as sandbox:
        result = await sandbox.run(["no-such-program"], deadline_s=30)
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr


async def test_a_command_can_be_interrupted(tested: BackendUnderTest, source: Path) -> None:
    """A command that a shell starts in the background would ignore SIGINT for good."""
    async with open_sandbox(tested, source) as sandbox:
        assert (await sh(sandbox, "kill -INT $$; sleep 5; exit 4")).exit_code == -2


async def test_background_processes_die_with_the_command(
    tested: BackendUnderTest, source: Path
) -> None:
    name = unique_number()
    script = f"setsid nohup sleep {name} >/dev/null 2>&1 & (setsid sleep {name} &); exit 3"
    async with open_sandbox(tested, source) as sandbox:
        assert (await sh(sandbox, script)).exit_code == 3
        assert await wait_gone(name)


async def test_a_process_with_an_empty_environment_dies_too(
    tested: BackendUnderTest, source: Path
) -> None:
    name = unique_number()
    async with open_sandbox(tested, source) as sandbox:
        await sh(sandbox, f"env -i setsid sleep {name} & sleep 0.2")
        assert await wait_gone(name)


async def test_at_the_deadline_everything_dies(tested: BackendUnderTest, source: Path) -> None:
    name = unique_number()
    script = f"trap '' TERM INT HUP; setsid sleep {name} & echo begun; sleep {name}; sleep {name}"
    async with open_sandbox(tested, source) as sandbox:
        result = await sh(sandbox, script, deadline_s=0.5)
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert result.stdout == b"begun\n"
        assert await wait_gone(name)
        assert (await sh(sandbox, "echo still usable")).stdout == b"still usable\n"


async def test_cancelling_kills_everything(tested: BackendUnderTest, source: Path) -> None:
    name = unique_number()
    async with open_sandbox(tested, source) as sandbox:
        work = asyncio.ensure_future(sh(sandbox, f"(setsid sleep {name} &); sleep {name}"))
        while not find_processes(name):
            await asyncio.sleep(0.02)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert await wait_gone(name)


async def test_two_commands_at_once_both_end(tested: BackendUnderTest, source: Path) -> None:
    async with open_sandbox(tested, source) as sandbox:
        results = await asyncio.gather(*(sh(sandbox, f"echo {each}") for each in range(3)))
    assert [result.stdout for result in results] == [b"0\n", b"1\n", b"2\n"]


async def test_closing_ends_a_command_and_can_be_repeated(
    tested: BackendUnderTest, source: Path
) -> None:
    name = unique_number()
    async with open_sandbox(tested, source) as sandbox:
        work = asyncio.ensure_future(sh(sandbox, f"sleep {name}", deadline_s=300))
        while not find_processes(name):
            await asyncio.sleep(0.02)
        await sandbox.close()
        assert await wait_gone(name)
        await asyncio.wait([work])
        await sandbox.close()
        with pytest.raises(SandboxError):
            await sh(sandbox, "true")
    if tested.server is not None:
        assert not tested.server.machines


async def test_the_grader_has_no_network(tested: BackendUnderTest, source: Path) -> None:
    if not tested.isolated:
        pytest.skip("not promised without isolation")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with open_sandbox(tested, source) as sandbox:
            reach = f"(echo > /dev/tcp/127.0.0.1/{port}) && echo host; (echo > /dev/tcp/1.1.1.1/80)"
            result = await sh(sandbox, f"{reach} && echo world; echo tried")
    assert result.stdout == b"tried\n"


async def test_commands_have_no_root_rights(tested: BackendUnderTest, source: Path) -> None:
    if not tested.isolated:
        pytest.skip("not promised without isolation")
    script = "id -u; grep -E 'Cap(Eff|Prm)|NoNewPrivs' /proc/self/status; echo > /etc/x"
    async with open_sandbox(tested, source) as sandbox:
        result = await sh(sandbox, script)
    words = result.stdout.decode().split()
    assert words[0] != "0"
    assert words.count("0000000000000000") == 2
    assert words[-1] == "1"
    assert result.exit_code != 0


async def test_mounts_can_be_read_and_not_written(
    tested: BackendUnderTest, source: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "data").write_bytes(bytes(range(256)))
    program = tmp_path / "program.py"
    program.write_text("import sys; print('program', sys.argv[1:])")
    mounts = {"/opt/agentrl/tree": tree, "/opt/agentrl/program.py": program}
    async with open_sandbox(tested, source, mounts=mounts) as sandbox:
        ran = await sandbox.run(["python", "/opt/agentrl/program.py", "x"], deadline_s=30)
        assert ran.stdout == b"program ['x']\n", ran
        read = await sandbox.run(["cat", "/opt/agentrl/tree/deep/data"], deadline_s=30)
        assert read.stdout == bytes(range(256))
        if tested.isolated:
            script = "for f in tree/deep/data tree/new program.py; do echo > /opt/agentrl/$f; done"
            await sh(sandbox, script)
            again = await sandbox.run(["cat", "/opt/agentrl/tree/deep/data"], deadline_s=30)
            assert again.stdout == bytes(range(256))
    assert sorted(path.name for path in tree.rglob("*")) == ["data", "deep"]


async def check(
    sandbox: Sandbox, script: str, files: Path, *, deadline_s: float = 30, **more: Any
) -> CheckOutput:
    """Run a script as a check, with a directory of files at /tests and output at /logs/verifier."""
    return await sandbox.run_check(
        CheckCommand(
            argv=["bash", "-c", script],
            files={"/tests": files},
            output="/logs/verifier",
            reads=("reward.txt", "reward.json", "link"),
            deadline_s=deadline_s,
            **more,
        )
    )


def skip_without_paths(tested: BackendUnderTest) -> None:
    """Skip a test of paths inside where nothing isolates: there are none."""
    if not tested.isolated:
        pytest.skip("without isolation there are no paths inside")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory for a check."""
    files = tmp_path / "tests"
    (files / "deep").mkdir(parents=True)
    (files / "deep" / "data.bin").write_bytes(b"\0\xff")
    return files


@pytest.fixture
def layout(tmp_path: Path) -> dict[str, Any]:
    """Return a workdir of its own and two trees, as fields of a spec."""
    for name in ("logs/agent", "data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "x.txt").write_text("x\n")
    trees = {"/logs": tmp_path / "logs", "/data": tmp_path / "data"}
    return {"workdir": "/app/here", "trees": trees}


async def test_trees_lie_at_their_paths_and_can_be_written(
    tested: BackendUnderTest, source: Path, layout: dict[str, Any]
) -> None:
    skip_without_paths(tested)
    async with open_sandbox(tested, source, **layout) as sandbox:
        assert sandbox.workdir == "/app/here"
        await sh(sandbox, "echo y > /data/y.txt; echo z > z.txt; touch /logs/agent/log")
        seen = await sh(sandbox, "pwd; cat /data/*.txt z.txt; ls /logs/agent")
        assert seen.stdout.decode().split() == ["/app/here", "x", "y", "z", "log"]
        async with sandbox.on_host() as workspace:
            assert (workspace / "z.txt").read_text() == "z\n"
    assert not (layout["trees"]["/data"] / "y.txt").exists()


async def test_a_check_sees_the_agents_files_and_its_own(
    tested: BackendUnderTest, source: Path, files: Path, layout: dict[str, Any]
) -> None:
    skip_without_paths(tested)
    async with open_sandbox(tested, source, env={"OF": "spec"}, **layout) as sandbox:
        await sh(sandbox, "echo of the agent > made.txt; echo too >> /data/x.txt")
        script = (
            "cat made.txt /data/x.txt; wc -c < /tests/deep/data.bin; echo $OF $OWN; pwd;"
            "echo 1 > /logs/verifier/reward.txt; ln -s reward.txt /logs/verifier/link; exit 3"
        )
        found = await check(sandbox, script, files, env={"OWN": "check"})
        lines = found.result.stdout.decode().splitlines()
        assert lines == ["of the agent", "x", "too", "2", "spec check", "/app/here"], found
        assert found.result.exit_code == 3
        assert found.files == {"reward.txt": b"1\n"}
    assert [path.name for path in files.iterdir()] == ["deep"]


PLANT = """\
mkdir -p /logs/verifier /logs/elsewhere
echo 1 > /logs/verifier/reward.txt
{change}
mkdir -p "$HOME/bin" "$HOME/.local/bin"
for name in bash sh cat python python3 ls; do
    printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > $name
    chmod +x $name
    cp $name "$HOME/bin/$name"
    cp $name "$HOME/.local/bin/$name"
done
for name in .bashrc .profile .bash_profile .bash_login .bash_logout .zshenv; do
    echo 'echo 1 > /logs/verifier/reward.txt' > "$HOME/$name"
done
export BASH_ENV="$HOME/.bashrc" ENV="$HOME/.bashrc" PYTHONPATH="$PWD" PATH="$PWD:$PATH"
site=$HOME/.local/lib/python3.11/site-packages
/bin/mkdir -p "$site"
echo 'open("/logs/verifier/reward.txt", "w").write("1")' | tee usercustomize.py sitecustomize.py
cp sitecustomize.py usercustomize.py "$site"
(setsid {python} -c '
import os, time
while True:
    try:
        open("/logs/verifier/reward.txt", "w").write("1")
    except OSError:
        pass
    time.sleep(0.001)
' > /dev/null 2>&1 &)
sleep 0.2
"""


@pytest.mark.parametrize(
    "change",
    [
        ":",
        "chmod -R 555 /logs/verifier",
        "rm -r /logs/verifier; ln -s /logs/elsewhere /logs/verifier",
        "rm -r /logs/verifier; ln -s /app/here /logs/verifier; echo 1 > reward.txt",
        "rm -r /logs/verifier; echo a file > /logs/verifier",
        "rm /logs/verifier/reward.txt; ln -s /app/here/reward.txt /logs/verifier/reward.txt",
        "mkdir /logs/verifier/reward.json",
        "mkfifo /logs/verifier/reward.json",
    ],
)
async def test_nothing_that_an_agent_plants_becomes_a_result(
    tested: BackendUnderTest, source: Path, files: Path, layout: dict[str, Any], change: str
) -> None:
    skip_without_paths(tested)
    async with open_sandbox(tested, source, **layout) as sandbox:
        script = PLANT.format(change=change, python="python")
        planted = await sh(sandbox, script)
        assert planted.exit_code == 0, planted
        seen = "ls -A /logs/verifier | wc -l; cat /tests/deep/data.bin | wc -c"
        found = await check(sandbox, f"{seen}; python -c pass; bash -c :", files)
        assert found.result.stdout.split() == [b"0", b"2"], found
        assert found.files == {}


async def test_what_a_check_was_given_cannot_be_planted_before(
    tested: BackendUnderTest, source: Path, files: Path, layout: dict[str, Any]
) -> None:
    skip_without_paths(tested)
    async with open_sandbox(tested, source, **layout) as sandbox:
        await sh(sandbox, "mkdir -p /tests/deep; echo planted > /tests/deep/data.bin")
        found = await check(sandbox, "wc -c < /tests/deep/data.bin", files)
        assert found.result.stdout.strip() == b"2"


async def test_a_check_ends_at_its_deadline(
    tested: BackendUnderTest, source: Path, files: Path, layout: dict[str, Any]
) -> None:
    skip_without_paths(tested)
    number = unique_number()
    async with open_sandbox(tested, source, **layout) as sandbox:
        script = f"echo 1 > /logs/verifier/reward.txt; sleep {number} & sleep {number}"
        found = await check(sandbox, script, files, deadline_s=1.0)
        assert found.result.timed_out
        assert found.files == {"reward.txt": b"1\n"}
        assert await wait_gone(number)


async def test_only_the_beginning_of_a_checks_file_is_read(
    tested: BackendUnderTest, source: Path, files: Path, layout: dict[str, Any]
) -> None:
    skip_without_paths(tested)
    async with open_sandbox(tested, source, **layout) as sandbox:
        found = await check(sandbox, "yes | head -c 1000000 > /logs/verifier/reward.txt", files)
        assert 65536 < len(found.files["reward.txt"]) <= 1 << 17


async def test_a_remote_check_is_roots_or_the_named_users(
    tested: BackendUnderTest, source: Path, files: Path, layout: dict[str, Any]
) -> None:
    if not tested.remote:
        pytest.skip("there is one user")
    for user, uid in ((None, b"0"), ("0", b"0"), ("61234", b"61234")):
        async with open_sandbox(tested, source, **layout) as sandbox:
            script = (
                "id -u; echo 1 > /logs/verifier/reward.txt; cd ~ && touch mine && echo home;"
                "echo changed > /tests/deep/data.bin || echo kept"
            )
            found = await check(sandbox, script, files, user=user)
            assert found.result.stdout.split()[:2] == [uid, b"home"], found
            assert found.files == {"reward.txt": b"1\n"}


async def test_files_of_every_kind_are_copied_in_and_out(
    tested: BackendUnderTest, source: Path
) -> None:
    (source / "é ü\n'x").write_bytes(bytes(range(256)))
    (source / "empty").mkdir()
    (source / "outside").symlink_to("/etc/passwd")
    (source / "up").symlink_to("../..")
    (source / "locked").write_text("locked")
    (source / "locked").chmod(0o400)
    (source / ".hidden").write_text("hidden")
    script = (
        "cp *x copy; ln copy hard; ln -s copy soft; mkfifo pipe; chmod 755 copy; "
        "mkdir -p shut/in; echo deep > shut/in/file; chmod 0 shut; rm .hidden; echo w >> locked"
    )
    async with open_sandbox(tested, source) as sandbox:
        result = await sh(sandbox, script)
        assert result.exit_code == 0, result
        async with sandbox.on_host() as workspace:
            assert (workspace / "é ü\n'x").read_bytes() == bytes(range(256))
            assert (workspace / "hard").read_bytes() == bytes(range(256))
            assert (workspace / "copy").stat().st_mode & 0o100
            assert (workspace / "empty").is_dir()
            assert str((workspace / "outside").readlink()) == "/etc/passwd"
            assert str((workspace / "up").readlink()) == "../.."
            assert str((workspace / "soft").readlink()) == "copy"
            assert not (workspace / ".hidden").exists()
            assert (workspace / "locked").read_text() == "lockedw\n"
            (workspace / "shut").chmod(0o755)
            assert (workspace / "shut" / "in" / "file").read_text() == "deep\n"


async def test_git_works_on_the_workspace(tested: BackendUnderTest, source: Path) -> None:
    script = "git init -q . && git add . && git commit -qm one && git log --format=%an"
    async with open_sandbox(tested, source) as sandbox:
        assert (await sh(sandbox, script)).stdout == b"agent\n"
        async with sandbox.on_host(leave_out=(".git",)) as workspace:
            assert (workspace / "a.txt").exists()


async def test_a_workspace_can_be_changed_before_anything_runs(
    tested: BackendUnderTest, source: Path
) -> None:
    def change(workspace: Path) -> None:
        (workspace / "a.txt").write_text("changed\n")

    async with open_sandbox(tested, source, change=change) as sandbox:
        assert (await sh(sandbox, "cat a.txt")).stdout == b"changed\n"
    assert (source / "a.txt").read_text() == "one\n"


async def test_a_change_that_fails_leaves_no_sandbox(
    tested: BackendUnderTest, source: Path
) -> None:
    class RefusedError(Exception):
        pass

    def change(workspace: Path) -> None:
        raise RefusedError

    spec = SandboxSpec("refused", source, "none", change=change)
    with pytest.raises(RefusedError):
        await tested.backend.create(spec)
    sandbox = await tested.backend.create(SandboxSpec("refused", source, "none"))
    await sandbox.close()
    if tested.server is not None:
        assert not tested.server.machines


async def test_a_dead_drivers_sandboxes_are_ended_by_name(
    tested: BackendUnderTest, source: Path
) -> None:
    if not tested.remote:
        pytest.skip("the constructor of the next backend ends what a dead driver left here")
    name = unique_number()
    async with open_sandbox(tested, source) as left, open_sandbox(tested, source) as kept:
        work = asyncio.ensure_future(sh(left, f"sleep {name}", deadline_s=300))
        while not find_processes(name):
            await asyncio.sleep(0.02)
        await tested.backend.reap({left.spec.name: {}, "never-existed": {}})
        assert await wait_gone(name)
        with pytest.raises(SandboxError):
            await work
        assert (await sh(kept, "echo alive")).stdout == b"alive\n"


async def test_many_sandboxes_boot_at_once(tested: BackendUnderTest, source: Path) -> None:
    async def one(number: int) -> bytes:
        async with open_sandbox(tested, source) as sandbox:
            return (await sh(sandbox, f"echo {number}")).stdout

    count = 16 if tested.remote else 64  # test_boots.py boots 64 on E2B
    outputs = await asyncio.gather(*(one(number) for number in range(count)))
    assert outputs == [b"%d\n" % number for number in range(count)]


async def test_the_guarantees_name_the_promises(tested: BackendUnderTest) -> None:
    promises = tested.backend.guarantees()
    named = {"isolation", "no network but the gateway", "complete kill", "no root rights inside"}
    assert named <= set(promises)
