"""Having Codex: as its npm package has it, for the machine it runs on."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from conf import programs
from conf.sections.harness import CodexHarnessConfig
from conf.sections.scenario import LinearScenarioConfig
from runners.harnesses.codex.program import program
from runners.harnesses.installing import ProgramError
from runners.harnesses.npm import LEAST_BYTES, install
from runners.harnesses.registry import install_harness, make_harness
from tests.runners.harnesses.test_codex_result import SETTINGS, VERSION

TEXT = f"#!/bin/sh\necho codex-cli {VERSION}\nexit 0\n{'#' * LEAST_BYTES}"
INSIDE = "vendor/x86_64-unknown-linux-musl/bin/codex"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache, and no npm."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/nowhere")


def given(binary: Path) -> CodexHarnessConfig:
    return SETTINGS.model_copy(update={"binary": binary})


def test_npm_installs_it(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(TEXT)
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(
        f"""#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
scope="$2/node_modules/@openai"
/bin/mkdir -p "$scope/codex/bin" "$scope/codex-linux-x64/{Path(INSIDE).parent}"
echo 'placeholder' > "$scope/codex/bin/codex.js"
/bin/cp {tmp_path}/program "$scope/codex-linux-x64/{INSIDE}"
"""
    )
    npm.chmod(0o755)
    install_harness(SETTINGS)
    harness = make_harness(SETTINGS, LinearScenarioConfig(kind="linear"))
    assert list(harness.mounts().values()) == [programs.codex_path(SETTINGS)]


def test_a_tarball_is_unpacked_without_npm(tmp_path: Path) -> None:
    tarball = tmp_path / "codex.tgz"
    with tarfile.open(tarball, "w:gz") as archive:
        entry = tarfile.TarInfo(f"package/{INSIDE}")
        entry.size = len(TEXT)
        archive.addfile(entry, io.BytesIO(TEXT.encode()))
    assert install(program(given(tarball))) == programs.codex_path(SETTINGS)


def test_without_npm_it_says_how_to_get_it() -> None:
    with pytest.raises(ProgramError) as caught:
        install_harness(SETTINGS)
    assert f"npm pack @openai/codex@{VERSION}-linux-" in str(caught.value)
    assert "harness.binary" in str(caught.value)


def test_a_relative_path_that_leads_nowhere_is_named() -> None:
    with pytest.raises(ProgramError, match=r"is not at .*/nothing/codex"):
        install(program(given(Path("nothing/codex"))))
