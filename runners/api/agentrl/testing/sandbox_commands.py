"""Commands in a sandbox: arguments, output, exit codes, deadlines, and that nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from agentrl.testing.host_processes import find_processes, unique_number, wait_gone
from agentrl.testing.loop_tests import in_loop
from agentrl.testing.sandbox_tests import SandboxTests, sh
from runners.sandboxes.contract import SandboxError

ARGUMENTS = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


class SandboxCommandTests(SandboxTests):
    """Tests of ``Sandbox.run`` and ``close``."""

    @in_loop
    async def test_arguments_and_environment_arrive_unchanged(self, source: Path) -> None:
        words = ["", "a b", "'\"$HOME`", "*", "-n", "é\n\\n", "x" * 50_000]
        env = {"KEY": "a 'b' $c", "EMPTY": "", "LINES_": "1\n2\n"}
        async with self.open_sandbox(source) as sandbox:
            command = ["python", "-c", ARGUMENTS, *words]
            result = await sandbox.run(command, deadline_s=30, env=env, output_limit=1 << 20)
            argv, environment = json.loads(result.stdout)
            second = await sandbox.run(["env"], deadline_s=30)
        assert argv == words
        assert {name: environment[name] for name in env} == env
        assert b"KEY=" not in second.stdout

    @in_loop
    async def test_the_environment_of_the_host_is_not_inherited(
        self, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOST_SECRET", "secret")
        async with self.open_sandbox(source) as sandbox:
            assert b"HOST_SECRET" not in (await sandbox.run(["env"], deadline_s=30)).stdout

    @in_loop
    async def test_input_larger_than_a_pipe_arrives_whole(self, source: Path) -> None:
        data = os.urandom(1 << 20)
        async with self.open_sandbox(source) as sandbox:
            command = ["bash", "-c", "cat; echo -n end"]
            result = await sandbox.run(command, deadline_s=30, stdin=data, output_limit=1 << 22)
            nothing = await sandbox.run(["cat"], deadline_s=30)
            ignored = await sandbox.run(["true"], deadline_s=30, stdin=data)
        assert result.stdout == data + b"end"
        assert (nothing.stdout, nothing.exit_code) == (b"", 0)
        assert ignored.exit_code == 0

    @in_loop
    async def test_a_flood_of_output_is_cut_in_the_middle(self, source: Path) -> None:
        flood = "head -c 3000000 /dev/zero | tr '\\0' x"
        async with self.open_sandbox(source) as sandbox:
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
        [
            ("exit 0", 0),
            ("exit 3", 3),
            ("kill -9 $$", -9),
            ("kill -TERM $$", -15),
            ("exit 255", 255),
        ],
    )
    @in_loop
    async def test_exit_codes_and_signals_are_distinguished(
        self, source: Path, script: str, code: int
    ) -> None:
        async with self.open_sandbox(source) as sandbox:
            result = await sh(sandbox, f"echo out; echo err >&2; {script}")
        assert (result.exit_code, result.timed_out) == (code, False)
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")

    @in_loop
    async def test_a_missing_command_has_exit_code_127(self, source: Path) -> None:
        async with self.open_sandbox(source) as sandbox:
            result = await sandbox.run(["no-such-program"], deadline_s=30)
        assert result.exit_code == 127
        assert b"no-such-program" in result.stderr

    @in_loop
    async def test_a_command_can_be_interrupted(self, source: Path) -> None:
        """A command that a shell starts in the background would ignore SIGINT for good."""
        async with self.open_sandbox(source) as sandbox:
            assert (await sh(sandbox, "kill -INT $$; sleep 5; exit 4")).exit_code == -2

    @in_loop
    async def test_background_processes_die_with_the_command(self, source: Path) -> None:
        name = unique_number()
        script = f"setsid nohup sleep {name} >/dev/null 2>&1 & (setsid sleep {name} &); exit 3"
        async with self.open_sandbox(source) as sandbox:
            assert (await sh(sandbox, script)).exit_code == 3
            assert await wait_gone(name)

    @in_loop
    async def test_a_process_with_an_empty_environment_dies_too(self, source: Path) -> None:
        name = unique_number()
        async with self.open_sandbox(source) as sandbox:
            await sh(sandbox, f"env -i setsid sleep {name} & sleep 0.2")
            assert await wait_gone(name)

    @in_loop
    async def test_at_the_deadline_everything_dies(self, source: Path) -> None:
        name = unique_number()
        script = (
            f"trap '' TERM INT HUP; setsid sleep {name} & echo begun; sleep {name}; sleep {name}"
        )
        async with self.open_sandbox(source) as sandbox:
            result = await sh(sandbox, script, deadline_s=0.5)
            assert (result.timed_out, result.exit_code) == (True, 124)
            assert result.stdout == b"begun\n"
            assert await wait_gone(name)
            assert (await sh(sandbox, "echo still usable")).stdout == b"still usable\n"

    @in_loop
    async def test_cancelling_kills_everything(self, source: Path) -> None:
        name = unique_number()
        async with self.open_sandbox(source) as sandbox:
            work = asyncio.ensure_future(sh(sandbox, f"(setsid sleep {name} &); sleep {name}"))
            while not find_processes(name):
                await asyncio.sleep(0.02)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert await wait_gone(name)

    @in_loop
    async def test_two_commands_at_once_both_end(self, source: Path) -> None:
        async with self.open_sandbox(source) as sandbox:
            results = await asyncio.gather(*(sh(sandbox, f"echo {each}") for each in range(3)))
        assert [result.stdout for result in results] == [b"0\n", b"1\n", b"2\n"]

    @in_loop
    async def test_closing_ends_a_command_and_can_be_repeated(self, source: Path) -> None:
        name = unique_number()
        async with self.open_sandbox(source) as sandbox:
            work = asyncio.ensure_future(sh(sandbox, f"sleep {name}", deadline_s=300))
            while not find_processes(name):
                await asyncio.sleep(0.02)
            await sandbox.close()
            assert await wait_gone(name)
            await asyncio.wait([work])
            await sandbox.close()
            with pytest.raises(SandboxError):
                await sh(sandbox, "true")
        assert not self.list_machines()

    @in_loop
    async def test_the_grader_has_no_network(self, source: Path) -> None:
        if not self.isolated:
            pytest.skip("not promised without isolation")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            async with self.open_sandbox(source) as sandbox:
                reach = (
                    f"(echo > /dev/tcp/127.0.0.1/{port}) && echo host; (echo > /dev/tcp/1.1.1.1/80)"
                )
                result = await sh(sandbox, f"{reach} && echo world; echo tried")
        assert result.stdout == b"tried\n"

    @in_loop
    async def test_commands_have_no_root_rights(self, source: Path) -> None:
        if not self.isolated:
            pytest.skip("not promised without isolation")
        script = "id -u; grep -E 'Cap(Eff|Prm)|NoNewPrivs' /proc/self/status; echo > /etc/x"
        async with self.open_sandbox(source) as sandbox:
            result = await sh(sandbox, script)
        words = result.stdout.decode().split()
        assert words[0] != "0"
        assert words.count("0000000000000000") == 2
        assert words[-1] == "1"
        assert result.exit_code != 0
