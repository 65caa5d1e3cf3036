"""``agentrl tasks``: what it lists, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentrl
from tests.runners.tasks.dataset_rows import CLASSIC, write


@pytest.mark.parametrize("sandbox", ["docker", "podman"])
def test_a_list_for_remote_sandboxes_needs_no_address_of_a_gateway(
    agentrl: Agentrl, tmp_path: Path, sandbox: str
) -> None:
    rows = write(tmp_path / "rows.jsonl", [{**CLASSIC, "image_name": "example/r:1"}])
    done = agentrl("tasks", "list", str(rows), f"sandbox={sandbox}", "--json")
    assert done.code == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["state"] == "ready"


def test_a_file_without_rows_is_no_list(agentrl: Agentrl, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    done = agentrl("tasks", "list", "empty.jsonl")
    assert (done.code, done.stderr) == (5, "error: empty.jsonl has no rows\n")
