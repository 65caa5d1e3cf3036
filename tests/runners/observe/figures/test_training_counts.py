"""Groups and tokens of a run: status, summary and comparison count the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runners.observe.figures.training_counts import (
    GroupCounts,
    TokenCounts,
    TrainingCounts,
    count_trained,
)
from runners.observe.live.result import summarize
from runners.observe.live.status import read_store_status, render
from runners.observe.live.summary import summary_table
from runners.records.store.run_store import RunStore
from tests.fakes.records import CONFIG


def metrics(trained: int, flat: int, **others: Any) -> dict[str, Any]:
    """Return a step's metrics: 4 groups, 100 tokens sampled, 90 of them in the loss."""
    return {
        "rollout/groups": 4, "rollout/groups_flat": flat, "rollout/groups_dropped": 1,
        "tokens/sampled": 100, "tokens/in_loss": 90, "tokens/trained": trained, **others,
    }  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Return a run of two finished steps and one under way."""
    store = RunStore.create(tmp_path / "run", CONFIG)
    for step in (1, 2, 3):
        store.begin_step(step, ["a"])
    store.finish_step(1, metrics(40, 2))
    store.finish_step(2, metrics(60, 1))
    return store


def lines(table: Any) -> list[list[str]]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return [line.strip("│ ").split("  ", 1) for line in capture.get().splitlines()]


def test_tokens_of_examples_are_counted_apart_and_alone_where_nothing_is_sampled() -> None:
    counts = TrainingCounts(GroupCounts(), TokenCounts(examples=1234))
    assert list(counts.rows()) == [("tokens of examples trained", "1,234")]
    both = TrainingCounts(GroupCounts(2), TokenCounts(10, 10, 5, examples=7))
    assert [name for name, _ in both.rows()][:2] == ["tokens of examples trained", "groups"]
    assert count_trained({"trained": 5, "examples": 7}) == 12
    assert count_trained({"trained": 5}) == 5, "a document of an older version"


def test_status_and_summary_count_the_same(store: RunStore) -> None:
    status, summary = read_store_status(store), summarize(store, wall_s=1.0)
    document = status.to_dict()
    assert document["groups"] == summary["groups"] == {"total": 8, "flat": 3, "dropped": 2}
    wanted = {"sampled": 200, "in_loss": 180, "trained": 100, "examples": 0}
    assert document["tokens"] == summary["tokens"] == wanted
    shown = {
        "\n".join(" ".join(part.split()) for part in line) for line in lines(summary_table(summary))
    }
    also = {"\n".join(" ".join(part.split()) for part in line) for line in lines(render(status))}
    for name, value in (
        ("groups", "8"), ("flat: no gradient", "3 (37.5%)"), ("without a baseline", "2 (25.0%)"),
        ("tokens sampled", "200"), ("tokens in the loss", "180 (90.0%)"),
        ("tokens trained", "100 (50.0%)"),
    ):  # fmt: skip
        assert any(name in line and value in line for line in shown), name
        assert any(name in line and value in line for line in also), name


def test_a_run_of_an_older_version_does_not_claim_tokens_in_its_loss(store: RunStore) -> None:
    store.finish_step(3, {"tokens/sampled": 10, "tokens/trained": 10})
    assert read_store_status(store).tokens.in_loss is None
    assert "tokens in the loss" not in str(lines(render(read_store_status(store))))
