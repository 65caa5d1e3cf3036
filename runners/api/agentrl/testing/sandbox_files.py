"""Files of a sandbox: private copies, mounts, trees, and its life beside others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.host_processes import find_processes, unique_number, wait_gone
from agentrl.testing.loop_tests import in_loop
from agentrl.testing.sandbox_tests import SandboxTests, sh
from runners.sandboxes.contract import SandboxError, SandboxSpec


class SandboxFileTests(SandboxTests):
    """Tests of workspaces, mounts and the backend itself."""

    @in_loop
    async def test_a_workspace_is_a_private_copy(self, source: Path) -> None:
        async with self.open_sandbox(source) as one, self.open_sandbox(source) as other:
            result = await sh(one, "cat a.txt; ./run.sh; echo two > a.txt; echo new > b.txt; pwd")
            assert result.exit_code == 0, result
            assert result.stdout.decode().splitlines() == ["one", "ran", one.workdir]
            assert (await sh(other, "cat *.txt")).stdout == b"one\n"
            async with self.open_sandbox(source) as later:  # from the same prepared files
                assert (await sh(later, "cat *.txt")).stdout == b"one\n"
            async with one.on_host() as workspace:
                assert (workspace / "a.txt").read_text() == "two\n"
                assert (workspace / "b.txt").read_text() == "new\n"
        assert (source / "a.txt").read_text() == "one\n"
        assert not (source / "b.txt").exists()

    @in_loop
    async def test_mounts_can_be_read_and_not_written(self, source: Path, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "deep").mkdir(parents=True)
        (tree / "deep" / "data").write_bytes(bytes(range(256)))
        program = tmp_path / "program.py"
        program.write_text("import sys; print('program', sys.argv[1:])")
        mounts = {"/opt/agentrl/tree": tree, "/opt/agentrl/program.py": program}
        async with self.open_sandbox(source, mounts=mounts) as sandbox:
            ran = await sandbox.run(["python", "/opt/agentrl/program.py", "x"], deadline_s=30)
            assert ran.stdout == b"program ['x']\n", ran
            read = await sandbox.run(["cat", "/opt/agentrl/tree/deep/data"], deadline_s=30)
            assert read.stdout == bytes(range(256))
            if self.isolated:
                script = (
                    "for f in tree/deep/data tree/new program.py; do echo > /opt/agentrl/$f; done"
                )
                await sh(sandbox, script)
                again = await sandbox.run(["cat", "/opt/agentrl/tree/deep/data"], deadline_s=30)
                assert again.stdout == bytes(range(256))
        assert sorted(path.name for path in tree.rglob("*")) == ["data", "deep"]

    @in_loop
    async def test_trees_lie_at_their_paths_and_can_be_written(
        self, source: Path, layout: dict[str, Any]
    ) -> None:
        self.skip_without_paths()
        async with self.open_sandbox(source, **layout) as sandbox:
            assert sandbox.workdir == "/app/here"
            await sh(sandbox, "echo y > /data/y.txt; echo z > z.txt; touch /logs/agent/log")
            seen = await sh(sandbox, "pwd; cat /data/*.txt z.txt; ls /logs/agent")
            assert seen.stdout.decode().split() == ["/app/here", "x", "y", "z", "log"]
            async with sandbox.on_host() as workspace:
                assert (workspace / "z.txt").read_text() == "z\n"
        assert not (layout["trees"]["/data"] / "y.txt").exists()

    @in_loop
    async def test_files_of_every_kind_are_copied_in_and_out(self, source: Path) -> None:
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
        async with self.open_sandbox(source) as sandbox:
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

    @in_loop
    async def test_git_works_on_the_workspace(self, source: Path) -> None:
        script = "git init -q . && git add . && git commit -qm one && git log --format=%an"
        async with self.open_sandbox(source) as sandbox:
            assert (await sh(sandbox, script)).stdout == b"agent\n"
            async with sandbox.on_host(leave_out=(".git",)) as workspace:
                assert (workspace / "a.txt").exists()

    @in_loop
    async def test_a_workspace_can_be_changed_before_anything_runs(self, source: Path) -> None:
        def change(workspace: Path) -> None:
            (workspace / "a.txt").write_text("changed\n")

        async with self.open_sandbox(source, change=change) as sandbox:
            assert (await sh(sandbox, "cat a.txt")).stdout == b"changed\n"
        assert (source / "a.txt").read_text() == "one\n"

    @in_loop
    async def test_a_change_that_fails_leaves_no_sandbox(self, source: Path) -> None:
        class _ChangeError(Exception):
            pass

        def change(workspace: Path) -> None:
            raise _ChangeError

        spec = SandboxSpec("refused", source, "none", change=change)
        with pytest.raises(_ChangeError):
            await self.backend.create(spec)
        sandbox = await self.backend.create(SandboxSpec("refused", source, "none"))
        await sandbox.close()
        assert not self.list_machines()

    @in_loop
    async def test_a_dead_drivers_sandboxes_are_ended_by_name(self, source: Path) -> None:
        if not self.remote:
            pytest.skip("the constructor of the next backend ends what a dead driver left here")
        name = unique_number()
        async with self.open_sandbox(source) as left, self.open_sandbox(source) as kept:
            work = asyncio.ensure_future(sh(left, f"sleep {name}", deadline_s=300))
            while not find_processes(name):
                await asyncio.sleep(0.02)
            await self.backend.reap({left.spec.name: {}, "never-existed": {}})
            assert await wait_gone(name)
            with pytest.raises(SandboxError):
                await work
            assert (await sh(kept, "echo alive")).stdout == b"alive\n"

    @in_loop
    async def test_many_sandboxes_boot_at_once(self, source: Path) -> None:
        async def one(number: int) -> bytes:
            async with self.open_sandbox(source) as sandbox:
                return (await sh(sandbox, f"echo {number}")).stdout

        count = self.boots_at_once
        outputs = await asyncio.gather(*(one(number) for number in range(count)))
        assert outputs == [b"%d\n" % number for number in range(count)]

    @in_loop
    async def test_the_guarantees_name_the_promises(self) -> None:
        promises = self.backend.guarantees()
        named = {
            "isolation",
            "no network but the gateway",
            "complete kill",
            "no root rights inside",
        }
        assert named <= set(promises)
