"""The checkpoint and the tasks of a small job: whoever rolls out needs no other files."""

from __future__ import annotations

import json
from pathlib import Path

from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.fakes.tiny_model import write_tiny_model
from tests.runners.tasks.example_repositories import make_task


def write_job_inputs(shared: Path, tasks: int, *, repository: Path) -> Path:
    """Write ``weights`` and ``tasks.jsonl`` into a shared directory, with tasks ``task-0``, … on
    a repository made below ``repository``; return the weights' directory.
    """
    weights = shared / "weights"
    write_tiny_tokenizer(weights)
    write_tiny_model(weights, vocab_size=tiny_tokenizer().get_vocab_size())
    row = {
        "problem_statement": "Fix add.",
        "repo_path": str(make_task(repository).repo),
        "workdir": "/repo",
        "f2p_script": "raise SystemExit(1)",
    }
    rows = [json.dumps({"instance_id": f"task-{number}", **row}) for number in range(tasks)]
    (shared / "tasks.jsonl").write_text("\n".join(rows) + "\n")
    return weights
