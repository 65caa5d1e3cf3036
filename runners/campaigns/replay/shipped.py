"""The recorded rollouts that the package has of agent programs: what another version changes, for
somebody who has no run yet.

They are runs of one rollout each, by a scripted policy, with sub-agents and summaries where the
program has them; ``tests/runners/campaigns/replay/make_recordings.py`` makes them.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from conf.program_versions import split_version
from runners.campaigns.replay.upgrade import UpgradeReport, compare_version
from runners.records.store import RunStore
from runners.records.tokenizer import write_tiny_tokenizer

RECORDINGS = Path(__file__).with_name("recordings")
SUFFIX = ".tar.xz"
KEPT = ("store.sqlite", "arrays")
"""Of a run's directory."""


def find_recording(line: str) -> Path | None:
    """Return the recording of the program of ``harness=NAME@VERSION``; None if there is none, or
    if the line is another one.
    """
    split = split_version(line)
    if split is None:
        return None
    name = split[0].removeprefix("harness=")
    path = RECORDINGS / f"{name}{SUFFIX}"
    return path if path.is_file() else None


def compare_with_recording(
    line: str, recording: Path, show: Callable[[str], None]
) -> UpgradeReport:
    """Replay a recording with the version of ``harness=NAME@VERSION``; raises AgentrlError."""
    with tempfile.TemporaryDirectory(prefix="agentrl-recording-") as place:
        run = Path(place) / recording.name.removesuffix(SUFFIX)
        with tarfile.open(recording) as archive:
            archive.extractall(run, filter="data")
        tokenizer = write_tiny_tokenizer(Path(place) / "tokenizer")
        with RunStore.open(run) as store:
            config = store.config()
            config["model"]["tokenizer"] = str(tokenizer)
            store.replace_config(config)
        return replace(compare_version(run, [line], show), run_dir=str(recording))


def pack(run: Path, name: str) -> None:
    """Keep a run as the recording of a program."""
    with tarfile.open(RECORDINGS / f"{name}{SUFFIX}", "w:xz", preset=9) as archive:
        for each in KEPT:
            archive.add(run / each, each, filter=_without_owner)


def _without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    return info
