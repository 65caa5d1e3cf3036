"""The page for one GPU: its commands, as far as a machine without a GPU can execute them."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import REPOSITORY, Agentrl
from tests.fakes.one_gpu import write_qwen3_0_6b

pytestmark = pytest.mark.integration

PAGE = (REPOSITORY / "docs" / "one_gpu.md").read_text()


def read_commands(model: Path) -> list[list[str]]:
    """Return the arguments of the page's commands to try, with a directory for the model's."""
    section = PAGE.split("## Look, then run\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("agentrl ")]
    return [shlex.split(line.replace("/models/Qwen3-0.6B", str(model)))[1:] for line in lines]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Qwen3-0.6B without its weights, a package `sglang`, and an nvidia-smi with an 80 GB card."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 81559\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.syspath_prepend(str(REPOSITORY / "tests" / "fakes" / "sglang_package"))
    return write_qwen3_0_6b(tmp_path)


def test_the_dry_run_shows_the_memory_that_the_page_promises(agentrl: Agentrl, model: Path) -> None:
    dry_run, check, run = read_commands(model)
    assert dry_run == [*run, "--dry-run"]
    assert check[1:] == run[1:]
    shown = agentrl(*dry_run)
    assert shown.code == 0, shown.stderr
    text = " ".join(re.sub(r"[│\s]+", " ", shown.stdout).split())
    assert "about 20.0 GiB: 8.9 weights, gradients and AdamW (596,049,920 parameters)" in text
    assert "7.3 activations (recomputed) and 2.9 logits of 32,768 tokens" in text
    assert "GPU: engine 50.8 GiB" in text
    assert "no problems found" in text
    for figure in ("8.9", "7.3", "2.9", "**20.0**", "**50.8**", "79.6", "105.1"):
        assert f" {figure} " in PAGE or f" {figure})" in PAGE or f"({figure} " in PAGE, figure


def test_an_engine_s_default_share_is_warned_of_where_the_trainer_shares_the_gpu(
    agentrl: Agentrl, model: Path
) -> None:
    arguments = [a for a in read_commands(model)[0] if "memory_fraction" not in a]
    shown = agentrl(*arguments)
    assert shown.code == 0
    text = " ".join(shown.stdout.split())
    assert "do not fit into the GPU's 79.6 GiB: engine.memory_fraction=0.71" in text


def test_check_finds_a_server_that_does_not_start(
    agentrl: Agentrl, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", "die")
    _, check, _ = read_commands(model)
    done = agentrl(*check)
    assert done.code == 3
    assert "trainer.device=cuda, but torch sees no GPU here" in done.stderr
    done = agentrl(*check, "trainer.device=auto")
    assert done.code in (3, 4), done.stderr
    assert "sglang" in done.stderr.lower()
