"""A campaign with a teacher, an engine of its own: it trains on it, and goes on after its loss."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runners.records.store.run_store import RunStore
from runners.records.tokenizer import tiny_tokenizer
from tests.fakes.tiny_model import write_tiny_model
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration


@contextmanager
def run_teacher(directory: Path, tokenizer: Path) -> Iterator[str]:
    """Run the embedded engine with other weights and the policy's tokenizer; yield its address."""
    settings = {"model_path": str(directory), "tokenizer": str(tokenizer)}
    process = subprocess.Popen(
        [sys.executable, "-m", "runners.engines.embedded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()
    yield json.loads(process.stdout.readline())["url"]
    process.kill()
    process.communicate()


def rolled_out(store: RunStore) -> bool:
    return len(store.rollouts(split="train", counts=True)) >= 1


def test_a_run_learns_from_its_teacher_and_goes_on_when_that_is_back(
    miniature: Miniature, tmp_path: Path
) -> None:
    vocabulary = tiny_tokenizer().get_vocab_size()
    (tmp_path / "teacher").mkdir()
    weights = write_tiny_model(tmp_path / "teacher", vocab_size=vocabulary, seed=5)
    lines = [
        "sampling.temperature=1",
        "run.steps=1",
        "run.eval_tasks=0",
        "trainer.distill.alone=true",
    ]
    with run_teacher(weights, miniature.policy) as url:
        first = miniature.begin(
            *lines, f"trainer.distill.url={url}", "trainer.distill.deadline_s=3"
        )
        miniature.wait_until(rolled_out, first)
    _, err = first.communicate()
    assert first.returncode == 4, err.decode()
    assert "the teacher gave no logprobs of any rollout" in err.decode()
    with miniature.store() as store:
        kept = {record.session_id for record in store.rollouts(counts=True)}
        assert len(kept) == 8
        assert [row.state for row in store.steps()] == ["running"]
    with run_teacher(weights, miniature.policy) as url:
        document = miniature.finish(miniature.resume(f"trainer.distill.url={url}"))
    assert document["steps"] == 1
    (line,) = [json.loads(each) for each in (miniature.run_dir / "metrics.jsonl").open()]
    assert line["policy/kl_teacher"] > 0
    assert line["tokens/trained"] == line["tokens/in_loss"] > 0
    assert line["rollout/unbuilt"] == 0
    with miniature.store() as store:
        assert {record.session_id for record in store.rollouts(counts=True)} == kept


def test_a_teacher_with_another_vocabulary_is_refused_before_anything_starts(
    miniature: Miniature, tmp_path: Path
) -> None:
    weights = write_tiny_model(tmp_path, vocab_size=800)
    file = tmp_path / "tokenizer.json"
    bytes_only = json.loads((miniature.policy / "tokenizer.json").read_text())
    bytes_only["model"]["merges"] = []
    file.write_text(json.dumps(bytes_only))
    with run_teacher(weights, tmp_path) as url:
        lines = ["sampling.temperature=1", f"trainer.distill.url={url}"]
        process = miniature.begin(*lines)
        _, err = process.communicate()
    assert process.returncode == 3, err.decode()
    assert "has to be a model with the policy's tokenizer" in err.decode()
    assert not miniature.run_dir.exists()
