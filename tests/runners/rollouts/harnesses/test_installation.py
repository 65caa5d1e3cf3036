"""Installation of npm programs: by npm, from a tarball, or given; and every way it fails.

``npm`` and the programs are scripts on PATH that act as the real ones.
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from conf.errors import ExitCode
from conf.programs import program_path
from conf.sections.harness import ClaudeCodeHarnessConfig, CodexHarnessConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.rollouts.harnesses import claude_code, codex
from runners.rollouts.harnesses.installation import (
    LEAST_BYTES,
    ProgramError,
    find_program,
    install_program,
    run_installer,
)
from runners.rollouts.harnesses.registry import install_harness, make_harness

VERSION = "2.1.328"
PADDING = "#" * LEAST_BYTES
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
    return install_program(claude_code.npm_program(harness))


def find(harness: ClaudeCodeHarnessConfig) -> Path:
    return find_program(claude_code.npm_program(harness))


def program_text(version: str = VERSION) -> str:
    return f'#!/bin/sh\necho "{version} (Claude Code)"\nexit 0\n{PADDING}'


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


def refusal(harness: ClaudeCodeHarnessConfig) -> str:
    with pytest.raises(ProgramError) as caught:
        install(harness)
    assert caught.value.exit_code == ExitCode.PREFLIGHT
    assert not program_path(config()).exists()
    return str(caught.value)


def list_cache(cache: Path) -> list[str]:
    folder = cache / "agentrl" / "programs"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_npm_installs_it_once(npm: Path, cache: Path, tmp_path: Path) -> None:
    path = install(config())
    assert path == program_path(config())
    assert path.is_relative_to(cache)
    assert os.access(path, os.X_OK)
    assert install(config()) == path
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert call.endswith(f"@anthropic-ai/claude-code@{VERSION}")
    assert "--ignore-scripts" in call
    assert list_cache(cache) == [f"claude-code-{VERSION}"]


def test_two_versions_are_installed_side_by_side(npm: Path, cache: Path) -> None:
    assert install(config()) != install(config(version="2.1.329"))
    assert find(config()).exists()


def test_without_npm_the_message_says_how_to_get_it() -> None:
    message = refusal(config())
    assert "apt-get install npm" in message
    assert "harness.binary" in message


def test_npms_error_is_repeated(npm: Path, cache: Path) -> None:
    write_program(npm, "#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    message = refusal(config())
    assert "ENOTFOUND" in message
    assert "npm pack @anthropic-ai/claude-code-linux-" in message
    assert list_cache(cache) == []


def test_at_its_limit_an_installer_ends_with_what_its_shell_has_started(tmp_path: Path) -> None:
    script = "(/bin/sleep 1; echo late > late) & echo > begun; wait"
    with pytest.raises(ProgramError, match=r"did not end within 0.5 s; by hand"):
        run_installer("mine", ["/bin/sh", "-c", script], tmp_path, "by hand", limit_s=0.5)
    time.sleep(1)
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


def test_a_package_without_a_program_for_this_machine_is_refused(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_text("VERSION")
    assert "has no program for this machine" in refusal(config())


def test_another_version_than_asked_for_never_reaches_the_cache(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_text(program_text("2.0.0"))
    assert "is Claude Code 2.0.0, not harness.version=2.1.328" in refusal(config())


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
    assert path == program_path(config())
    assert find(config(tarball)) == path


def test_a_tarball_with_a_placeholder_is_refused(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "claude.tgz", "package/bin/claude.exe", "echo placeholder")
    assert "holds no program" in refusal(config(tarball))


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_a_tarball_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    tarball = tmp_path / "claude.tgz"
    if content is not None:
        tarball.write_bytes(content)
    assert f"harness.binary={tarball} cannot be read" in refusal(config(tarball))


def test_a_given_program_is_run_where_it_lies(tmp_path: Path) -> None:
    given = write_program(tmp_path / "my" / "claude", program_text())
    assert install(config(given)) == given
    harness = make_harness(config(given), LinearScenarioConfig(kind="linear"))
    assert list(harness.mounts().values()) == [given]


def test_a_given_program_of_another_version_is_refused(tmp_path: Path) -> None:
    given = write_program(tmp_path / "claude", program_text("2.0.0"))
    message = refusal(config(given))
    assert f"{given} is Claude Code 2.0.0" in message
    assert "set harness.version=2.0.0" in message


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "no program"])
def test_a_given_program_that_does_not_run_is_refused(text: str, tmp_path: Path) -> None:
    given = write_program(tmp_path / "claude", text)
    assert f"{given} does not run" in refusal(config(given))


def test_a_given_program_that_is_something_else_is_refused_in_a_line(tmp_path: Path) -> None:
    given = write_program(tmp_path / "ls", "#!/bin/sh\necho 'ls 9.1\n(c) somebody'\n")
    message = refusal(config(given))
    assert (
        f"harness.binary={given} does not print its version, but 'ls 9.1 (c) somebody'" in message
    )


def test_a_run_without_the_program_names_the_command_that_installs_it() -> None:
    with pytest.raises(ProgramError, match="agentrl check harness=claude_code"):
        make_harness(config(), LinearScenarioConfig(kind="linear"))


# --- Codex: its package has the program elsewhere ----------------------------------------------

CODEX_VERSION = "0.169.0"
CODEX = CodexHarnessConfig(
    kind="codex", version=CODEX_VERSION, binary=None, max_turns=1, memory_mb=1, cpu_s=1
)
CODEX_TEXT = f"#!/bin/sh\necho codex-cli {CODEX_VERSION}\nexit 0\n{PADDING}"
CODEX_MEMBER = "vendor/x86_64-unknown-linux-musl/bin/codex"


def codex_given(binary: Path) -> CodexHarnessConfig:
    return CODEX.model_copy(update={"binary": binary})


def test_npm_installs_codex(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(CODEX_TEXT)
    script = f"""#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
scope="$2/node_modules/@openai"
/bin/mkdir -p "$scope/codex/bin" "$scope/codex-linux-x64/{Path(CODEX_MEMBER).parent}"
echo 'placeholder' > "$scope/codex/bin/codex.js"
/bin/cp {tmp_path}/program "$scope/codex-linux-x64/{CODEX_MEMBER}"
"""
    write_program(tmp_path / "bin" / "npm", script)
    install_harness(CODEX)
    harness = make_harness(CODEX, LinearScenarioConfig(kind="linear"))
    assert list(harness.mounts().values()) == [program_path(CODEX)]


def test_a_codex_tarball_is_unpacked_without_npm(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "codex.tgz", f"package/{CODEX_MEMBER}", CODEX_TEXT)
    assert install_program(codex.npm_program(codex_given(tarball))) == program_path(CODEX)


def test_without_npm_the_message_says_how_to_get_codex() -> None:
    with pytest.raises(ProgramError) as caught:
        install_harness(CODEX)
    assert f"npm pack @openai/codex@{CODEX_VERSION}-linux-" in str(caught.value)
    assert "harness.binary" in str(caught.value)


def test_a_relative_path_that_leads_nowhere_is_named() -> None:
    with pytest.raises(ProgramError, match=r"is not at .*/nothing/codex"):
        install_program(codex.npm_program(codex_given(Path("nothing/codex"))))
