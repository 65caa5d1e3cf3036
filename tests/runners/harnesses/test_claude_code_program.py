"""Having Claude Code: installed by npm, out of a tarball, or given; and every way of not having it.

``npm`` and the program are scripts of ours on PATH, which do as the real ones do.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from conf import programs
from conf.errors import ExitCode
from conf.sections.harness import ClaudeCodeHarnessConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.harnesses import npm as npm_programs
from runners.harnesses.claude_code.program import program
from runners.harnesses.installing import ProgramError
from runners.harnesses.npm import LEAST_BYTES
from runners.harnesses.registry import make_harness

VERSION = "2.1.328"
FILLING = "#" * LEAST_BYTES
"""The real one is large; npm's placeholder for it is not."""


def config(binary: Path | None = None, version: str = VERSION) -> ClaudeCodeHarnessConfig:
    return ClaudeCodeHarnessConfig(
        kind="claude_code",
        version=version,
        binary=binary,
        max_turns=1,
        max_tokens=1,
        memory_mb=1,
        cpu_s=1,
    )


def install(harness: ClaudeCodeHarnessConfig) -> Path:
    return npm_programs.install(program(harness))


def ready(harness: ClaudeCodeHarnessConfig) -> Path:
    return npm_programs.ready(program(harness))


def program_text(version: str = VERSION) -> str:
    return f'#!/bin/sh\necho "{version} (Claude Code)"\nexit 0\n{FILLING}'


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and no npm."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nowhere")
    return tmp_path / "cache"


@pytest.fixture
def npm(tmp_path: Path) -> Path:
    """Put an npm on PATH that installs a program of the version asked for."""
    script = f"""#!/bin/sh
/bin/echo "$@" >> {tmp_path}/calls
while [ "$1" != --prefix ]; do shift; done
scope="$2/node_modules/@anthropic-ai"
for last; do :; done
/bin/mkdir -p "$scope/claude-code/bin" "$scope/claude-code-linux-x64"
echo placeholder > "$scope/claude-code/bin/claude.exe"
/bin/sed "s/VERSION/${{last##*@}}/" {tmp_path}/template > "$scope/claude-code-linux-x64/claude"
"""
    (tmp_path / "template").write_text(program_text("VERSION"))
    return write_program(tmp_path / "bin" / "npm", script)


def refused(harness: ClaudeCodeHarnessConfig) -> str:
    with pytest.raises(ProgramError) as caught:
        install(harness)
    assert caught.value.exit_code == ExitCode.PREFLIGHT
    assert not programs.claude_code_path(config()).exists()
    return str(caught.value)


def left_over(cache: Path) -> list[str]:
    folder = cache / "agentrl" / "programs"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_npm_installs_it_once(npm: Path, cache: Path, tmp_path: Path) -> None:
    path = install(config())
    assert path == programs.claude_code_path(config())
    assert path.is_relative_to(cache)
    assert os.access(path, os.X_OK)
    assert install(config()) == path
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.endswith(f"@anthropic-ai/claude-code@{VERSION}")
    assert "--ignore-scripts" in call
    assert left_over(cache) == [f"claude-code-{VERSION}"]


def test_two_versions_stand_side_by_side(npm: Path, cache: Path) -> None:
    assert install(config()) != install(config(version="2.1.329"))
    assert ready(config()).exists()


def test_without_npm_it_says_how_to_get_it() -> None:
    message = refused(config())
    assert "apt-get install npm" in message
    assert "harness.binary" in message


def test_what_npm_says_is_repeated(npm: Path, cache: Path) -> None:
    write_program(npm, "#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    message = refused(config())
    assert "ENOTFOUND" in message
    assert "npm pack @anthropic-ai/claude-code-linux-" in message
    assert left_over(cache) == []


def test_a_package_without_a_program_for_this_machine_is_refused(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_text("VERSION")
    assert "has no program for this machine" in refused(config())


def test_another_version_than_asked_for_never_reaches_the_cache(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_text(program_text("2.0.0"))
    assert "is Claude Code 2.0.0, not harness.version=2.1.328" in refused(config())


def make_tarball(path: Path, name: str, text: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in (("package/package.json", "{}"), (name, text)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content.encode()))
    return path


@pytest.mark.parametrize("name", ["package/claude", "package/bin/claude.exe"])
def test_a_tarball_is_unpacked_without_npm(name: str, tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "claude.tgz", name, program_text())
    path = install(config(tarball))
    assert path == programs.claude_code_path(config())
    assert ready(config(tarball)) == path


def test_a_tarball_with_a_placeholder_is_refused(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "claude.tgz", "package/bin/claude.exe", "echo placeholder")
    assert "holds no program" in refused(config(tarball))


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_a_tarball_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    tarball = tmp_path / "claude.tgz"
    if content is not None:
        tarball.write_bytes(content)
    assert f"harness.binary={tarball} cannot be read" in refused(config(tarball))


def test_a_given_program_is_run_where_it_lies(tmp_path: Path) -> None:
    given = write_program(tmp_path / "my" / "claude", program_text())
    assert install(config(given)) == given
    harness = make_harness(config(given), LinearScenarioConfig(kind="linear"))
    assert list(harness.mounts().values()) == [given]


def test_a_given_program_of_another_version_is_refused(tmp_path: Path) -> None:
    given = write_program(tmp_path / "claude", program_text("2.0.0"))
    message = refused(config(given))
    assert f"{given} is Claude Code 2.0.0" in message
    assert "set harness.version=2.0.0" in message


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "no program"])
def test_a_given_program_that_does_not_run_is_refused(text: str, tmp_path: Path) -> None:
    given = write_program(tmp_path / "claude", text)
    assert f"{given} does not run" in refused(config(given))


def test_a_given_program_that_is_something_else_is_refused_in_a_line(tmp_path: Path) -> None:
    given = write_program(tmp_path / "ls", "#!/bin/sh\necho 'ls 9.1\n(c) somebody'\n")
    message = refused(config(given))
    assert f"harness.binary={given} does not say its version, but 'ls 9.1 (c) somebody'" in message


def test_a_run_without_it_says_what_to_do() -> None:
    with pytest.raises(ProgramError, match="agentrl check harness=claude_code"):
        make_harness(config(), LinearScenarioConfig(kind="linear"))
