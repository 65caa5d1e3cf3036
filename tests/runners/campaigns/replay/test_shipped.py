"""The recordings of agent programs that the package brings, against other versions of them."""

from __future__ import annotations

import asyncio
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ExitCode
from conf.sections.harness import ClaudeCodeHarnessConfig, CodexHarnessConfig
from runners.campaigns.replay.shipped import RECORDINGS, compare_with_recording, find_recording
from runners.campaigns.replay.upgrade import UpgradeReport
from runners.records.store.run_store import RunStore
from tests.runners.rollouts.harnesses.real_agent import MAIN, install_or_skip

BRANCHES = {
    "claude_code": {(True, "main"): 6, (True, "compaction"): 1, (False, "subagent"): 2},
    "codex": {(True, "main"): 4, (True, "compaction"): 1},
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_recording_is_of_the_version_that_is_installed_and_has_every_branch(
    name: str, tmp_path: Path
) -> None:
    """Else make it anew: ``python -m tests.runners.campaigns.replay.make_recordings``."""
    default = compose([f"harness={name}"]).harness
    assert isinstance(default, ClaudeCodeHarnessConfig | CodexHarnessConfig)
    path = RECORDINGS / f"{name}.tar.xz"
    assert path.stat().st_size < 1 << 20
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    with RunStore.open(tmp_path, read_only=True) as store:
        store.verify_arrays()
        stored = compose([], base=store.config())
        (record,) = store.each_rollout()
        turns = store.turns(record.session_id)
    assert stored.harness.kind == name
    assert record.extra["harness"]["version"] == default.version
    assert Counter((turn.thread == MAIN, turn.branch) for turn in turns) == BRANCHES[name]


def test_a_version_of_a_program_that_has_one_finds_its_recording() -> None:
    found = find_recording("harness=claude_code@2.1.210")
    assert found == RECORDINGS / "claude_code.tar.xz"
    for line in ("harness=codex", "harness=pi@0.1.2", "harness=codex@latest", "seed=1"):
        assert find_recording(line) is None


async def compare(line: str, name: str) -> UpgradeReport:
    install_or_skip(compose([line]).harness)
    recording = RECORDINGS / f"{name}.tar.xz"
    return await asyncio.to_thread(compare_with_recording, line, recording, lambda text: None)


@pytest.mark.integration
@pytest.mark.agents
async def test_the_recorded_version_changes_nothing() -> None:
    """As ``tests/cli/test_replay.py`` tries with Codex."""
    report = await compare("harness=claude_code@2.1.328", "claude_code")
    assert (report.exit_code, report.changes(), report.moved()) == (ExitCode.DONE, {}, {})


@pytest.mark.integration
@pytest.mark.agents
@pytest.mark.slow
async def test_an_older_version_that_never_sums_up_loses_signal() -> None:
    report = await compare("harness=claude_code@2.1.210", "claude_code")
    assert report.versions() == ["2.1.328", "2.1.210"]
    assert report.chains() == {
        "compaction": (1, 0),
        "final": (1, 1),
        "subagent": (1, 1),
        "wipe": (1, 0),
    }
    assert (report.exit_code, report.lost > 0) == (ExitCode.FAILURE_BUDGET, True)
