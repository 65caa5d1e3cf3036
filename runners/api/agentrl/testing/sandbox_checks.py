"""Checks of what an agent left in its sandbox: nothing that it planted decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.testing.host_processes import unique_number, wait_gone
from agentrl.testing.loop_tests import in_loop
from agentrl.testing.sandbox_tests import SandboxTests, sh
from runners.sandboxes.contract import CheckCommand, CheckOutput, Sandbox

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


class SandboxCheckTests(SandboxTests):
    """Tests of ``Sandbox.run_check``."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        """Return a directory for a check."""
        files = tmp_path / "tests"
        (files / "deep").mkdir(parents=True)
        (files / "deep" / "data.bin").write_bytes(b"\0\xff")
        return files

    async def check(
        self, sandbox: Sandbox, script: str, files: Path, *, deadline_s: float = 30, **more: Any
    ) -> CheckOutput:
        """Run a script as a check, with files at /tests and output at /logs/verifier."""
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

    @in_loop
    async def test_a_check_sees_the_agents_files_and_its_own(
        self, source: Path, files: Path, layout: dict[str, Any]
    ) -> None:
        self.skip_without_paths()
        async with self.open_sandbox(source, env={"OF": "spec"}, **layout) as sandbox:
            await sh(sandbox, "echo of the agent > made.txt; echo too >> /data/x.txt")
            script = (
                "cat made.txt /data/x.txt; wc -c < /tests/deep/data.bin; echo $OF $OWN; pwd;"
                "echo 1 > /logs/verifier/reward.txt; ln -s reward.txt /logs/verifier/link; exit 3"
            )
            found = await self.check(sandbox, script, files, env={"OWN": "check"})
            lines = found.result.stdout.decode().splitlines()
            assert lines == ["of the agent", "x", "too", "2", "spec check", "/app/here"], found
            assert found.result.exit_code == 3
            assert found.files == {"reward.txt": b"1\n"}
        assert [path.name for path in files.iterdir()] == ["deep"]

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
    @in_loop
    async def test_nothing_that_an_agent_plants_becomes_a_result(
        self, source: Path, files: Path, layout: dict[str, Any], change: str
    ) -> None:
        self.skip_without_paths()
        async with self.open_sandbox(source, **layout) as sandbox:
            script = PLANT.format(change=change, python="python")
            planted = await sh(sandbox, script)
            assert planted.exit_code == 0, planted
            seen = "ls -A /logs/verifier | wc -l; cat /tests/deep/data.bin | wc -c"
            found = await self.check(sandbox, f"{seen}; python -c pass; bash -c :", files)
            assert found.result.stdout.split() == [b"0", b"2"], found
            assert found.files == {}

    @in_loop
    async def test_what_a_check_was_given_cannot_be_planted_before(
        self, source: Path, files: Path, layout: dict[str, Any]
    ) -> None:
        self.skip_without_paths()
        async with self.open_sandbox(source, **layout) as sandbox:
            await sh(sandbox, "mkdir -p /tests/deep; echo planted > /tests/deep/data.bin")
            found = await self.check(sandbox, "wc -c < /tests/deep/data.bin", files)
            assert found.result.stdout.strip() == b"2"

    @in_loop
    async def test_a_check_ends_at_its_deadline(
        self, source: Path, files: Path, layout: dict[str, Any]
    ) -> None:
        self.skip_without_paths()
        number = unique_number()
        async with self.open_sandbox(source, **layout) as sandbox:
            script = f"echo 1 > /logs/verifier/reward.txt; sleep {number} & sleep {number}"
            found = await self.check(sandbox, script, files, deadline_s=1.0)
            assert found.result.timed_out
            assert found.files == {"reward.txt": b"1\n"}
            assert await wait_gone(number)

    @in_loop
    async def test_only_the_beginning_of_a_checks_file_is_read(
        self, source: Path, files: Path, layout: dict[str, Any]
    ) -> None:
        self.skip_without_paths()
        async with self.open_sandbox(source, **layout) as sandbox:
            found = await self.check(
                sandbox, "yes | head -c 1000000 > /logs/verifier/reward.txt", files
            )
            assert 65536 < len(found.files["reward.txt"]) <= 1 << 17

    @in_loop
    async def test_a_remote_check_is_roots_or_the_named_users(
        self, source: Path, files: Path, layout: dict[str, Any]
    ) -> None:
        if not self.remote:
            pytest.skip("there is one user")
        for user, uid in ((None, b"0"), ("0", b"0"), ("61234", b"61234")):
            async with self.open_sandbox(source, **layout) as sandbox:
                script = (
                    "id -u; echo 1 > /logs/verifier/reward.txt; cd ~ && touch mine && echo home;"
                    "echo changed > /tests/deep/data.bin || echo kept"
                )
                found = await self.check(sandbox, script, files, user=user)
                assert found.result.stdout.split()[:2] == [uid, b"home"], found
                assert found.files == {"reward.txt": b"1\n"}
