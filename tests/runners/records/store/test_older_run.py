"""A run that an earlier version wrote can be looked at, exported and resumed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runners.observe.export.jsonl import NAME, validate
from runners.observe.export.run_dump import dump
from runners.observe.live.status import read_status
from runners.observe.report.page import write_report
from runners.records.session_summary import EARLIER_NAMES
from runners.records.store.run_store import RunStore
from runners.records.tokenizer import tiny_tokenizer, write_tiny_tokenizer
from tests.fakes.tiny_model import write_tiny_model

OLDER_RUN = Path(__file__).parents[3] / "fakes" / "older_run"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLDER_RUN, tmp_path / "older"))


def test_its_status_and_report_are_read(run_dir: Path) -> None:
    status = read_status(run_dir)
    assert (status.state, status.steps_done, status.outcomes) == (
        "done",
        1,
        {"policy.finished": 12},
    )
    assert [rate for _, rate in status.evaluations] == [0.25, 0.25]
    page = write_report(run_dir).read_text("utf-8")
    for part in ("Curves", "Outcomes", "eval-000000-000-00", "subagent", "compaction: a summary"):
        assert part in page


def test_its_rollouts_are_exported_whole(run_dir: Path, tmp_path: Path) -> None:
    formats = ("jsonl", "atif", "parquet", "slime", "html")
    with RunStore.open(run_dir, read_only=True) as store:
        report = dump(store, tmp_path / "out", formats=formats)
        sampled = sum(record.sampled_tokens for record in store.rollouts(counts=True))
    assert report.rollouts == 12
    assert validate(tmp_path / "out" / NAME) == []
    lines = [json.loads(line) for line in (tmp_path / "out" / NAME).open()]
    assert sum(line["tokens"]["sampled"] for line in lines) == sampled == 1716
    assert {kind for line in lines for kind in line["extra"]["session"]["branches"]} == {
        *("main", "subagent", "compaction")
    }
    for line in lines:  # counters have today's names
        assert not set(EARLIER_NAMES) & set(line["extra"]["session"])
        assert line["extra"]["session"]["parser_fallbacks"] == 0


def test_it_is_counted_from_an_index_once_it_was_opened_to_be_written(run_dir: Path) -> None:
    plan = "EXPLAIN QUERY PLAN SELECT code, count(*) FROM rollout WHERE counts = 1 GROUP BY code"

    def counts_from_index() -> bool:
        with RunStore.open(run_dir, read_only=True) as store:
            return any("COVERING INDEX rollout_ends" in row["detail"] for row in store.query(plan))

    before = read_status(run_dir).outcomes
    assert not counts_from_index()
    RunStore.open(run_dir).close()
    assert counts_from_index()
    assert read_status(run_dir).outcomes == before


@pytest.mark.slow
def test_it_goes_on_where_it_was_and_keeps_what_it_had(run_dir: Path, tmp_path: Path) -> None:
    """Its checkpoint was removed: the finished step is done again, and another after it."""
    policy = write_tiny_tokenizer(tmp_path / "policy")
    write_tiny_model(policy, vocab_size=tiny_tokenizer().get_vocab_size())
    with RunStore.open(run_dir) as store:
        turns = store.query("SELECT count(*) FROM turn")[0][0]
        config = store.config()
        config["model"] |= {"path": str(policy), "tokenizer": str(policy)}  # nothing to warm up
        store.replace_config(config)
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "run", "--resume", run_dir, "run.steps=2", "--json"],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 2
    with RunStore.open(run_dir, read_only=True) as store:
        assert [(row.step, row.state) for row in store.steps()] == [(1, "done"), (2, "done")]
        assert len(store.rollouts(split="train", counts=True)) == 8
        assert store.query("SELECT count(*) FROM turn")[0][0] > turns  # none was lost
        dump(store, tmp_path / "out")
    assert validate(tmp_path / "out" / NAME) == []
